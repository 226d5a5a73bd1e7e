"""shellcheck reads the scripts of all kinds of pods, with the library of each runtime."""

import shutil
import subprocess

import pytest

from bridge.script import self_contained
from bridge.script.build import build
from tests.unit.script.test_golden import KINDS, OBJECTS, cases, config

# 2034: data that this pod's library does not read. 2004: "$" before keys of associative arrays is needed. 2016: what
# users wrote in single quotes. 2153: names differ by one letter on purpose. 1091: the pre-exec script does not exist
# yet. 2317: a runtime may replace a function that most runtimes share.
EXCLUDED = "SC2034,SC2004,SC2016,SC2153,SC1091,SC2317"


def findings(script, tmp_path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "job.sh"
    path.write_text(script)
    command = ["shellcheck", "-s", "bash", "-S", "style", "-e", EXCLUDED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "runtime"), cases())
def test_scripts(kind, runtime, tmp_path):
    assert findings(build(KINDS[kind], config(runtime), OBJECTS, "virtual-a").script, tmp_path) == ""


def test_a_script_that_makes_its_own_directory(tmp_path):
    pod = {"metadata": {"uid": "u-1"}, "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "a"}]}}
    assert findings(self_contained.wrap("true\n", pod), tmp_path) == ""
