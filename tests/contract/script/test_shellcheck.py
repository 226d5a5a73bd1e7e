"""shellcheck reads the scripts of all kinds of pods, with the library of each runtime."""

import shutil
import subprocess

import pytest

from bridge.script import library, self_contained
from bridge.script.build import build
from bridge.script.runtimes import runtime_table as runtimes
from bridge.site.batch.batch_interface import BatchJobRequest, GangStarter
from bridge.site.gangs import launcher
from tests.unit.script.test_golden import KINDS, OBJECTS, RUNTIMES, cases, config

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


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_scripts(runtime, tmp_path):
    """The library once, and the data of all kinds of pods: to read the library takes seconds."""
    settings = config(runtime)
    shared = library.text(runtimes.of(settings).library)
    kinds = [kind for kind, of_runtime in cases() if of_runtime == runtime]
    scripts = [build(KINDS[kind], settings, OBJECTS, "virtual-a").script for kind in kinds]
    assert all(shared in script for script in scripts)
    others = "".join(script.replace(shared, "") for script in scripts[1:])
    assert findings(scripts[0] + others, tmp_path) == ""


def test_a_script_that_makes_its_own_directory(tmp_path):
    pod = {"metadata": {"uid": "u-1"}, "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "a"}]}}
    assert findings(self_contained.wrap("true\n", pod), tmp_path) == ""


def test_the_job_of_a_group(tmp_path):
    requests = [BatchJobRequest("a", tmp_path, members=3, together=2, gpus=gpus) for gpus in (0, 1)]
    starter = GangStarter(("srun", "--ntasks=3", ":", "--ntasks=3"), "member", {"A": "b"})
    assert findings(launcher.script(requests, starter), tmp_path) == ""
