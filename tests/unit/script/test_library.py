"""The library, whole and by its digest."""

import hashlib
import re

import pytest

from bridge.script import library

RUNTIMES = ("apptainer", "charliecloud", "enroot", "none", "podman")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_library_is_known_by_its_digest(runtime):
    digest = hashlib.sha256(library.text(runtime).encode()).hexdigest()
    assert library.digest(runtime) == digest
    assert library.of_digest(digest) == library.text(runtime)


def test_each_runtime_has_a_library_of_its_own():
    assert len({library.digest(runtime) for runtime in RUNTIMES}) == len(RUNTIMES)


@pytest.mark.parametrize("digest", ["", "0" * 64, "apptainer"])
def test_what_is_none_of_them_is_not_known(digest):
    assert library.of_digest(digest) is None


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_file_with_several_lines_about_a_process_is_read_to_its_end(runtime):
    """If the process ends meanwhile, bash cannot seek back, and the next read of any file would return the rest."""
    one_line = ("uptime", "boot_id", "uuid", "stat", "statm")
    reads = re.findall(r"\bread (.*?)<\"?(/proc/\S+?)\"?[;\s]", library.text(runtime))
    assert ("-r -d '' _ position _ ", "/proc/$1/fdinfo/1") in reads
    assert [file for words, file in reads if "-d ''" not in words and not file.endswith(one_line)] == []


def test_the_shell_in_a_namespace_has_all_functions_and_variables_that_it_uses():
    text = library.text("none")
    bodies = dict(re.findall(r"^(\w+)\(\) ([{(].*?)(?=^\w+\(\) [{(]|\Z)", text, re.MULTILINE | re.DOTALL))
    found = (re.search(rf"^{name}=\((.*?)\)$", text, re.MULTILINE | re.DOTALL) for name in ("FUNCTIONS", "DATA"))
    given, data = (set(match[1].split()) for match in found)
    used = "".join(bodies[name] for name in given - {"mounts_of"})  # each pod has its own mounts_of
    called = set(re.findall(r"(?:^|[|&;({!]|\b(?:then|do|if|elif|while|until)\b)\s*(\w+)", used, re.MULTILINE))
    assert called & bodies.keys() <= given
    assert given <= called | {"step_inside", "mounts_of", "add_mount", "add_own_file"}
    read = set(re.findall(r"\$\{?[!#]?([A-Z_]{2,})\b", used))
    assigned = set(re.findall(r"\b([A-Z_]{2,})(?:\[[^]]*\])?\+?=", used))
    # HELD is set by mounts_of; the others stand between two functions
    assert read - assigned - {"BASH", "PWD", "HELD", "ARGV", "ENV", "PODBRIDGE_NAMESPACE"} <= data
    assert {name for name in data if name.isupper()} <= read
