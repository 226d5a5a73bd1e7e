import pytest

from bridge.errors import ConfigError, SlurmError
from bridge.slurm.versions import VERSIONS, newest_common, of_release


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (["v0.0.36", "v0.0.37", "v0.0.38"], "v0.0.38"),
        (["v0.0.42", "v0.0.40", "v0.0.41"], "v0.0.42"),
        (["v0.0.42", "v0.0.45", "v0.0.46"], "v0.0.45"),
    ],
)
def test_the_newest_that_both_know(served: list[str], expected: str) -> None:
    assert newest_common(served, None).name == expected


def test_a_pinned_version() -> None:
    assert newest_common(["v0.0.41", "v0.0.42"], "v0.0.41").name == "v0.0.41"
    with pytest.raises(ConfigError, match=r"slurmApiVersion: v0.0.43 is not served .*it serves v0.0.41, v0.0.42"):
        newest_common(["v0.0.41", "v0.0.42"], "v0.0.43")
    with pytest.raises(ConfigError, match=r"v0.0.99 is not known"):
        newest_common(["v0.0.99"], "v0.0.99")


def test_none_in_common() -> None:
    with pytest.raises(SlurmError, match=r"it serves v0.0.46, v0.0.47, podbridge knows v0.0.38"):
        newest_common(["v0.0.46", "v0.0.47"], None)
    with pytest.raises(SlurmError, match="it serves none"):
        newest_common([], None)


def test_what_the_oldest_can_not_do_is_said() -> None:
    assert len(VERSIONS["v0.0.38"].missing()) == 8
    assert len(VERSIONS["v0.0.42"].missing()) == 4
    assert [text for text in VERSIONS["v0.0.42"].missing() if "group" in text or "devices" in text] == [
        "names of groups (group-id must be a number)",
        "devices of a job (pods with resource claims stay pending)",
    ]
    assert VERSIONS["v0.0.45"].missing() == []


@pytest.mark.parametrize(
    ("name", "release", "able"),
    [
        ("v0.0.45", "26.05.5", True),
        ("v0.0.43", "26.05.3", True),
        ("v0.0.45", "26.11.0", True),
        ("v0.0.45", "26.05.2", False),
        ("v0.0.45", "", False),
        ("v0.0.45", "26.05.x", False),
        ("v0.0.42", "26.05.5", False),
    ],
)
def test_external_components_need_a_release(name: str, release: str, able: bool) -> None:
    assert of_release(VERSIONS[name], release).external_components is able
