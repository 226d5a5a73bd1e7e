"""shellcheck reads the scripts of all kinds of pods, and the library of each runtime once: it is the largest part."""

import shutil
import subprocess

import pytest

from bridge.script import library, self_contained
from bridge.script.build import build
from bridge.script.runtimes import table as runtimes
from tests.unit.script.test_golden import KINDS, OBJECTS, cases, config

# 2034: data that this pod's library does not read. 2004: "$" before keys of associative arrays is needed. 2016: what
# users wrote in single quotes. 2153: names differ by one letter on purpose. 1091: the pre-exec script does not exist
# yet. 2317: a runtime may replace a function that most runtimes share.
EXCLUDED = "SC2034,SC2004,SC2016,SC2153,SC1091,SC2317"


def runtimes_once():
    """Return one case for each runtime."""
    return {runtime: (kind, runtime) for kind, runtime in cases()}.values()


def findings(script, tmp_path, excluded=EXCLUDED):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "job.sh"
    path.write_text(script)
    command = ["shellcheck", "-s", "bash", "-S", "style", "-e", excluded, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "runtime"), runtimes_once())
def test_scripts_with_their_library(kind, runtime, tmp_path):
    assert findings(build(KINDS[kind], config(runtime), OBJECTS, "virtual-a").script, tmp_path) == ""


@pytest.mark.parametrize(("kind", "runtime"), cases())
def test_what_a_pod_adds_to_the_library(kind, runtime, tmp_path):
    settings = config(runtime)
    script = build(KINDS[kind], settings, OBJECTS, "virtual-a").script
    shared = library.text(runtimes.of(settings).library)
    assert script.count(shared) == 1
    own = script.replace(shared, "")
    # the library sets variables and declares associative arrays
    assert findings(own, tmp_path, EXCLUDED + ",SC2154,SC2079") == ""


def test_a_script_that_makes_its_own_directory(tmp_path):
    pod = {"metadata": {"uid": "u-1"}, "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "a"}]}}
    assert findings(self_contained.wrap("true\n", pod), tmp_path) == ""
