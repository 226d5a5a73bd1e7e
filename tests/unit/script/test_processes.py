"""How many programs the script of a simple pod starts: most of the time until its command runs goes into them."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects

# 12 until the command runs; the others record the start and the end
MOST = 20


def count_programs(folder: Path, script: str) -> dict[str, str]:
    """Make a directory of programs that write their name to a file, each before the machine's program replaces it."""
    programs = folder / "programs"
    programs.mkdir()
    words = set(re.findall(r"[a-z_]+", script)) - {"bash", "sh"}
    for name in words:
        if path := shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"):
            text = f'#!/bin/bash -p\necho {name} >>"{folder}/started"\nexec {path} "$@"\n'
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
    return {"PATH": str(programs), "HOME": "/"}


def test_a_simple_pod():
    spec = {"containers": [{"name": "main", "image": "x", "command": ["/bin/echo", "hello"]}], "restartPolicy": "Never"}
    pod = {"metadata": {"namespace": "a", "name": "b", "uid": "c"}, "spec": spec}
    settings = BuildConfig.model_validate({"runtime": {"kind": "none"}})
    script = build(pod, settings, Objects(), "virtual-a").script
    # not the directory of pytest, which may be in /dev: a new root takes four programs more
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        job = folder / "jobs" / "c"
        (job / "control").mkdir(parents=True)
        (job / "job.sh").write_text(script)
        command = ["/bin/bash", str(job / "job.sh")]
        done = subprocess.run(command, env=count_programs(folder, script), capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads((job / "state" / "pod.json").read_text())["phase"] == "Succeeded"
        assert (job / "logs" / "main.log").read_text() == "hello\n"
        started = (folder / "started").read_text().split()
    assert started[0] == "mkdir"  # the programs are counted
    assert len(started) <= MOST, started


def test_of_two_scripts_of_a_pod_one_runs(tmp_path):
    """Another one makes "started" just before this one does; a container has the same name."""
    pod = {"metadata": {"namespace": "a", "name": "b", "uid": "c"}, "spec": {"containers": [{"name": "started"}]}}
    pod["spec"]["containers"][0]["command"] = ["/bin/echo", "hello"]
    settings = BuildConfig.model_validate({"runtime": {"kind": "none"}})
    (tmp_path / "job.sh").write_text(build(pod, settings, Objects(), "virtual-a").script)
    mkdir = tmp_path / "bin" / "mkdir"
    mkdir.parent.mkdir()
    mkdir.write_text('#!/bin/bash\n/bin/mkdir -p ${*:2:8} work && exec /bin/mkdir "$@"\n')
    mkdir.chmod(0o755)
    subprocess.run(["/bin/bash", tmp_path / "job.sh"], env={"PATH": f"{mkdir.parent}:/bin"}, timeout=60, check=True)
    assert (tmp_path / "work" / "started").is_dir() and not list((tmp_path / "logs").iterdir())
    assert not (tmp_path / "started" / "job").exists()
