import os
import signal
import subprocess
import sys
import time

import pytest

from cluster.errors import ClusterError
from cluster.processes import Processes, inside, run


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path / "run", tmp_path / "logs")
    yield made
    made.stop(made.names(), grace=0)


def test_a_daemon_is_found_by_name_until_it_is_stopped(processes):
    pid = processes.start("sleeper", ["sleep", "60"])
    assert processes.pid("sleeper") == pid
    assert processes.names() == ["sleeper"]
    processes.stop(["sleeper"])
    assert processes.pid("sleeper") is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_daemon_is_found_by_another_process(processes, tmp_path):
    pid = processes.start("sleeper", ["sleep", "60"])
    code = "import sys; from pathlib import Path; from cluster.processes import Processes as P; "
    code += "here = Path(sys.argv[1]); print(P(here / 'run', here / 'logs').pid('sleeper'))"
    environ = {**os.environ, "PYTHONPATH": "hack"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == str(pid)


def test_a_pid_that_belongs_to_somebody_else_now_is_left_alone(processes, tmp_path):
    other = subprocess.Popen(["sleep", "60"])
    try:
        processes.start("sleeper", ["true"])
        (tmp_path / "run" / "sleeper.pid").write_text(f"{other.pid} 12345\n")
        assert processes.pid("sleeper") is None
        processes.stop(["sleeper"], grace=0)
        assert other.poll() is None
        with pytest.raises(ClusterError, match="sleeper is not running"):
            processes.signal("sleeper", signal.SIGTERM)
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("content", ["", "x y\n", "12\n", "1 2 3\n"])
def test_a_damaged_pid_file_is_nobody(processes, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "sleeper.pid").write_text(content)
    assert processes.pid("sleeper") is None


def test_a_daemon_that_ignores_sigterm_is_killed(processes):
    processes.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    processes.wait("stubborn", lambda: "ready" in processes.log("stubborn").read_text())
    processes.stop(["stubborn"], grace=0.05)
    assert processes.pid("stubborn") is None


def test_a_stopped_daemon_can_be_ended(processes):
    processes.start("frozen", ["sleep", "60"])
    processes.signal("frozen", signal.SIGSTOP)
    begun = time.monotonic()
    processes.stop(["frozen"], grace=10)
    assert processes.pid("frozen") is None
    assert time.monotonic() - begun < 5


def test_a_daemon_that_ends_at_its_start_is_an_error_with_its_last_words(processes):
    processes.start("broken", ["sh", "-c", "echo first; echo no such key >&2; exit 3"])
    with pytest.raises(ClusterError, match=r"(?s)broken ended at its start.*broken\.log.*no such key"):
        processes.wait("broken", lambda: False)


def test_a_daemon_that_is_late_is_an_error(processes):
    processes.start("late", ["sleep", "60"])
    with pytest.raises(ClusterError, match=r"late is not ready after 0 s.*\n.*\(empty\)"):
        processes.wait("late", lambda: False, timeout=0.01)


def test_processes_are_known_by_what_they_see(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        (folder / "mark").mkdir(parents=True)
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert child.pid in inside(mine, str(mine))
        assert child.pid not in inside(mine, str(other))
        assert inside(tmp_path / "gone", str(mine)) == []
    finally:
        child.kill()
        child.wait()


def test_a_tool_that_fails_is_an_error_with_its_words():
    with pytest.raises(ClusterError, match="ended with 4: no node"):
        run(["sh", "-c", "echo no node >&2; exit 4"])
    assert run(["sh", "-c", "echo out; echo err >&2; exit 4"], check=False) == "out\nerr\n"
    assert run(["cat"], "text") == "text"
