"""How containers end, and what is written down of it."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bridge.script.references import Objects
from tests import processes
from tests.pod_specs import mounts, spec_of

pytestmark = pytest.mark.real


class Full(threading.Thread):
    """Keeps a file system full inside its context, as another job of the same user does."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path, self._over = path, threading.Event()

    def __enter__(self) -> None:
        self.start()
        time.sleep(0.5)

    def run(self) -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # on a busy machine too, it takes what becomes free
        with self._path.open("wb", buffering=0) as file:
            while not self._over.is_set():
                try:
                    file.write(bytes(4096))
                except OSError:
                    self._over.wait(0.0005)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._path.unlink(missing_ok=True)


@pytest.fixture
def small_disk():
    """A file system of 1 MB that all users may write."""
    place = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "podbridge-test", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)
    place.rmdir()


def test_a_state_that_a_full_disk_refuses_is_written_later(ordinary, small_disk):
    waits = "until [ -e {} ]; do sleep 0.1; done"
    first = ordinary.shell(waits.format(small_disk / "first"))
    second = {**ordinary.shell(waits.format(small_disk / "second") + "; exit 3"), "name": "second"}
    job = ordinary.job({"containers": [first, second]})
    job.move(small_disk / "site")
    job.start()
    for name in ("main", "second"):
        job.eventually(lambda name=name: job.state(name).get("state") == "running")
    with Full(small_disk / "fill"):
        os.mkfifo(small_disk / "first")
        time.sleep(2)
        assert job.state("main")["state"] == "running" and job.pod()["phase"] == "Running"
    job.eventually(lambda: job.state("main").get("state") == "terminated")
    with Full(small_disk / "fill"):
        os.mkfifo(small_disk / "second")
        time.sleep(3)
        assert job.process.poll() is None
    assert job.wait(30) == 1
    assert job.ended()["exitCode"] == 0 and job.ended("second")["exitCode"] == 3 and job.pod()["phase"] == "Failed"
    assert (job.folder / "script.log").read_text().count("the state was written late") == 2


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("true", 0, "Completed"),
        ("exit 42", 42, "Error"),
        ("kill -9 $$$$", 137, "Error"),
        ("kill -TERM $$$$", 143, "Error"),
    ],
)
def test_exit_codes(site, text, code, reason):
    before = int(time.time())
    job = site.run({"containers": [site.shell(text)]})
    state = job.state("main")
    assert state["state"] == "terminated" and not state["ready"]
    assert (state["ended"]["exitCode"], state["ended"]["reason"]) == (code, reason)
    assert state["ended"]["signal"] == (code - 128 if code > 128 else 0)
    assert before <= state["ended"]["startedAt"] <= state["ended"]["finishedAt"] <= time.time()
    assert job.pod()["phase"] == ("Failed" if code else "Succeeded")
    assert job.wait() == (1 if code else 0)
    assert job.pod()["host"] and job.pod()["ip"] and job.pod()["finishedAt"] >= before
    assert (job.home / "changed" / job.folder.name).exists()


@pytest.mark.parametrize(
    ("command", "code"), [(["/no/such/program"], 127), (["no-such-program"], 127), (["/etc/passwd"], 126)]
)
def test_command_not_found(site, command, code):
    job = site.run({"containers": [{"name": "main", "image": "x", "command": command}]})
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (code, "ContainerCannotRun")
    assert command[0] in job.message()


def test_command_not_found_by_a_shell_is_the_shells_own_code(ordinary):
    job = ordinary.run({"containers": [ordinary.shell("no-such-program")]})
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (127, "Error")


def test_parallel_containers_one_fails(site):
    job = site.run(
        spec_of(
            site.shell("echo a; sleep 1", name="a"),
            site.shell("echo b; exit 5", name="b"),
            site.shell("echo c; sleep 1", name="c"),
        )
    )
    assert [job.ended(name)["exitCode"] for name in "abc"] == [0, 5, 0]
    assert job.pod()["phase"] == "Failed"
    assert [job.log(name) for name in "abc"] == ["a\n", "b\n", "c\n"]
    began = [job.ended(name)["startedAt"] for name in "abc"]
    assert max(began) - min(began) <= 1


def test_output_is_kept_byte_by_byte(ordinary):
    job = ordinary.run({"containers": [ordinary.shell(r"printf '\377\000\n'; printf err >&2")]})
    assert (job.folder / "logs" / "main.log").read_bytes() == b"\xff\x00\nerr"


def test_index_of_the_log(ordinary):
    job = ordinary.run({"containers": [ordinary.shell("for i in 1 2 3; do echo line $i; sleep 1; done")]})
    lines = [tuple(map(int, line.split())) for line in (job.folder / "logs" / "main.index").read_text().splitlines()]
    assert lines == sorted(lines) and lines[-1][0] == len(job.log()) and len(lines) >= 3


def test_termination_message(site):
    job = site.run({"containers": [site.shell("printf done >/dev/termination-log")]})
    assert job.message() == "done"


def test_termination_message_at_another_path_is_cut(site):
    text = "head -c 5000 /dev/zero | tr '\\0' x >/place/of/my/own"
    job = site.run({"containers": [site.shell(text, terminationMessagePath="/place/of/my/own")]})
    assert job.message() == "x" * 4096


def test_termination_message_falls_back_to_the_log(ordinary):
    spec = [
        ordinary.shell("seq 1000; exit 3", name="fails", terminationMessagePolicy="FallbackToLogsOnError"),
        ordinary.shell("seq 1000", name="succeeds", terminationMessagePolicy="FallbackToLogsOnError"),
        ordinary.shell("seq 1000; exit 3", name="fails-as-usual"),
    ]
    job = ordinary.run({"containers": spec})
    assert job.message("fails") == "".join(f"{n}\n" for n in range(921, 1001))
    assert job.message("succeeds") == "" == job.message("fails-as-usual")


def test_second_copy_does_nothing(ordinary):
    job = ordinary.job({"containers": [ordinary.shell("echo once; sleep 2")]}).start()
    job.eventually(lambda: job.state("main").get("state") == "running")
    before = {path: path.read_bytes() for path in (job.folder / "state").glob("*.json")}
    assert job.spawn().wait(10) == 0
    assert {path: path.read_bytes() for path in (job.folder / "state").glob("*.json")} == before
    assert (job.wait(), job.spawn().wait(10), job.log()) == (0, 0, "once\n")


def test_killed_child_is_an_end_like_any_other(ordinary):
    job = ordinary.job({"containers": [ordinary.shell("sleep 1000 & echo $$$$; wait")]}).start()
    job.eventually(lambda: job.state("main").get("state") == "running" and "\n" in job.log())
    pid = int(job.log())
    os.kill(pid, 9)
    assert (job.wait(10), job.ended()["exitCode"]) == (1, 137)
    assert processes_below(job) == []


def test_what_a_container_leaves_behind_goes_with_it(ordinary):
    job = ordinary.run({"containers": [ordinary.shell("sleep 12321 & sleep 0.3")]})
    assert job.pod()["phase"] == "Succeeded"
    assert processes_below(job, "12321") == []


def guards(job):
    return processes_below(job, f"--pid={job.process.pid}\0")


@pytest.mark.parametrize("terminated", [False, True], ids=["running", "stopping"])
def test_what_a_killed_script_left_ends(site, terminated):
    job = site.job({"containers": [site.shell("trap '' TERM; sleep 12322 & echo ready; wait; wait")]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n" and guards(job))
    if terminated:  # all of a job gets SIGTERM
        os.killpg(job.process.pid, signal.SIGTERM)
        for pid, _ in guards(job):
            os.kill(int(pid), signal.SIGTERM)
    assert processes_below(job, "12322") != []
    job.process.kill()
    job.wait(5)
    job.eventually(lambda: processes_below(job, "12322") == [] == guards(job), 10)
    assert site.user is not None or "what is left" in (job.folder / "script.log").read_text()


def test_a_job_that_ends_takes_its_guard_along(site):
    job = site.job({"containers": [site.shell("sleep 0.5")]}).start()
    job.eventually(lambda: guards(job))
    assert job.wait(10) == 0
    job.eventually(lambda: guards(job) == [], 1)
    assert "what is left" not in (job.folder / "script.log").read_text()


def test_a_number_that_is_another_process_by_now_is_left_alone(ordinary):
    other = ordinary.job({"containers": [ordinary.shell("echo ready; sleep 12323")]}).start()
    other.eventually(lambda: other.log_if_any() == "ready\n")
    job = ordinary.job({"containers": [ordinary.shell("echo ready; sleep 1000")]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    job.process.kill()
    job.wait(5)
    pid, began, boot = (other.folder / "run" / "main.pid").read_text().split()
    for text in (f"{pid} {int(began) - 1} {boot}\n", f"{pid} {began} {boot[::-1]}\n", "", "x\n"):
        (job.folder / "run" / "main.pid").write_text(text)
        assert job.spawn("leftovers").wait(10) == 0
        assert processes_below(other, "12323") != [], text


def processes_below(job, word=""):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
            if (str(job.folder) in line) or (word and word in line):
                found.append((entry.name, line))
        except OSError:
            continue
    return found


def test_files_are_ones_own_alone(site):
    job = site.run({"containers": [site.shell("echo secret")]})
    for path in job.folder.rglob("*"):
        if path.name == "script.log":
            continue  # the caller's
        mode = path.stat().st_mode & 0o777
        assert mode & 0o077 == 0 or path.parent.name in ("run", "scratch", "volumes"), (path, oct(mode))
    assert job.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["by itself", "failed", "leftovers", "refused"])
def test_secrets_go_with_the_last_container(site, how):
    """Nothing in the job's folder holds them any more; the lines that the submitter reads again stay."""
    word = base64.b64encode(b"a very secret word").decode()
    login = base64.b64encode(json.dumps({"auths": {"r.example": {"auth": word}}}).encode()).decode()
    objects = Objects(secrets={"s": {"data": {"key": word}}, "r": {"data": {".dockerconfigjson": login}}})
    main = site.shell(
        "cat /s/key >/dev/null; echo done; " + ("exit 3" if how == "failed" else "sleep 0.5"),
        env=[{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}}],
        **mounts(("s", "/s")),
    )
    volumes = [{"name": "s", "secret": {"secretName": "s"}}]
    if how == "refused":
        volumes.append({"name": "h", "hostPath": {"path": "/no/such/place"}})
    job = site.job(
        {"volumes": volumes, "imagePullSecrets": [{"name": "r"}], "containers": [main]},
        objects=objects,
        config={"volumes": {"host_paths": ["/no"]}},
    )
    head = (job.folder / "job.sh").read_text().splitlines()[:2]
    job.start()
    if how == "leftovers":
        job.eventually(lambda: job.log_if_any() == "done\n")
        assert holders(job)
        os.killpg(job.process.pid, signal.SIGKILL)
        job.wait()
        job.eventually(lambda: not holders(job), 15)
    else:
        job.wait()
    assert holders(job) == [], job.everything()
    assert (job.folder / "job.sh").read_text().splitlines() == head
    # whoever calls it once more does nothing
    assert job.spawn("leftovers").wait(10) == 0 and job.spawn().wait(10) == 0


def test_leftovers_of_a_job_whose_directory_has_a_new_job_leave_its_script(site):
    """A batch system may call for them when the next job of the pod has the directory already, and waits."""
    job = site.job({"containers": [site.shell("echo ran")]})
    script = (job.folder / "job.sh").read_bytes()
    assert job.spawn("leftovers").wait(10) == 0
    assert (job.folder / "job.sh").read_bytes() == script
    job.start()
    job.wait()
    assert job.log_if_any() == "ran\n"


def holders(job):
    """List the files of a job that hold the secret, plain or as base64 of itself or of what it stands in."""
    words = (b"a very secret word", base64.b64encode(b"a very secret word"), b"eyJhdXRocyI6")
    found = []
    for folder, _, names in os.walk(job.folder):  # unlike rglob, while directories are removed
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file() and any(word in path.read_bytes() for word in words):
                    found.append(path)
    return found


def test_a_command_beside_a_container_ends_with_the_shell_that_started_it(ordinary):
    """As Slurm without cgroups kills a step: it may miss the command."""
    job = ordinary.job(spec_of(ordinary.shell("sleep 60"))).start()
    job.eventually(lambda: job.state("main").get("state") == "running")
    mark = f"63{os.getpid()}.5"
    shell = job.beside("session", "main", "", "run/session.1", "sleep", mark)
    job.eventually(lambda: [pid for pid in processes.with_word(mark) if pid != shell.pid])
    shell.kill()
    shell.wait()
    job.eventually(lambda: not processes.with_word(mark))
    job.ask_to_stop(0)
    job.wait()
