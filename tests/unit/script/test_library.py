"""The library, whole and by its digest."""

import hashlib

import pytest

from bridge.script import library

RUNTIMES = ("apptainer", "charliecloud", "enroot", "none", "podman")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_library_is_known_by_its_digest(runtime):
    digest = hashlib.sha256(library.text(runtime).encode()).hexdigest()
    assert library.digest(runtime) == digest
    assert library.known(digest) == library.text(runtime)


def test_each_runtime_has_a_library_of_its_own():
    assert len({library.digest(runtime) for runtime in RUNTIMES}) == len(RUNTIMES)


@pytest.mark.parametrize("digest", ["", "0" * 64, "apptainer"])
def test_what_is_none_of_them_is_not_known(digest):
    assert library.known(digest) is None
