"""What Slurm's accounting says of jobs that squeue has forgotten: sacct, slurmdbd and MariaDB as they really are.

Memory is watched by slurmd itself here, which needs no control groups: such a job is FAILED with signal 9. The state
OUT_OF_MEMORY takes control groups that are this cluster's to change; ``tests/unit/site/test_slurm.py`` has its words.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.clock import SystemClock
from bridge.errors import BatchError
from bridge.protocol.model.requests import EqualPods
from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from bridge.site.batch import slurm
from bridge.site.batch.batch_interface import BatchJob, BatchSystem
from bridge.site.config.site_config import make_batch_system, parse
from cluster import Cluster
from cluster.polling import eventually
from cluster.systems.slurm import ACCOUNTING
from tests.contract.site.jobs import submit, uid

pytestmark = pytest.mark.real

TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONF = [
    ACCOUNTING, "MinJobAge=2", "JobAcctGatherType=jobacct_gather/linux", "JobAcctGatherFrequency=task=1",
    "JobAcctGatherParams=OverMemoryKill",
]  # fmt: skip
FORGOTTEN = 150
"""Seconds until squeue has no job any more: time limit and its grace (30 s each), then slurmctld's own look (60 s)."""
OUTLIVES = "trap '' TERM; sleep 300"
JOBS: dict[str, tuple[str, ...]] = {
    "completed": ("true",),
    "failed": ("exit 3",),
    "crashed": ("kill -SEGV $$",),
    "grew": ("x=$(head -c 60000000 /dev/zero | tr '\\0' a); sleep 60", "--mem=20"),
    "cancelled": ("sleep 300",),
    "cancelled waiting": ("true", "--begin=now+1hour"),
    "late": ("sleep 300", "--time=1"),
    "on a bad node": ("sleep 300", "--nodelist=node-1"),
    "failed, two components": ("exit 3", "--nodelist=node-0", ":", "--nodelist=node-1"),
    "a component on a bad node": ("sleep 300", "--nodelist=node-0", ":", "--nodelist=node-1"),
    "requeued": ('[ "$SLURM_RESTART_COUNT" ] && exit 5; sleep 300', "--requeue"),
    "running": ("sleep 300",),
    "somebody else's": ("true", "--job-name=other"),
}


class Scene:
    """A Slurm with accounting, and one job for each way to end, asked for at the very beginning."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bin = cluster.state / "site-bin"
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(cluster.state / "bin" / name)
        self.sacct = self.bin / "sacct"
        self.sacct.write_text(f'#!/bin/sh\nexec {cluster.state}/slurm/enter sacct "$@"\n')
        self.sacct.chmod(0o755)
        self.uids = {name: uid() for name in JOBS}
        self.ids = {name: self.sbatch(self.uids[name], *words) for name, words in JOBS.items()}

    def run(self, *words: str) -> str:
        return self.cluster.run_slurm(*words)

    def sbatch(self, pod: str, command: str, *options: str) -> str:
        own = ["--parsable", "--no-requeue", "--output=/dev/null", "--mem=10", f"--job-name=pb-{pod}"]
        more = [word for option in options for word in ([option, *own] if option == ":" else [option])]
        return self.run("sbatch", *own, f"--wrap={command}", *more).strip()

    def state(self, job: str) -> str:
        """What squeue says of a job; nothing once it has forgotten it."""
        words = self.run("squeue", "-h", "--states=all", "-o", "%i %T").split()
        found = dict(zip(words[::2], words[1::2], strict=True))
        return found.get(job) or found.get(f"{job}+0", "")

    def known(self) -> str:
        """A job of which there is a record."""
        job = self.ids["failed"]
        eventually(lambda: self.batch().past([job]))
        return job

    def batch(self, **more: object) -> BatchSystem:
        lines = "".join(f"{key} = {value!r}\n" for key, value in more.items())
        return make_batch_system(parse(f'pool = "p"\n[slurm]\nbin_dir = "{self.bin}"\n{lines}'), SystemClock())

    def hurt(self) -> None:
        """End the jobs that don't end by themselves."""
        ids = self.ids
        for name in ("cancelled", "late", "on a bad node", "a component on a bad node", "requeued", "running"):
            eventually(lambda n=name: self.state(ids[n]) == "RUNNING")  # type: ignore[misc]
        self.run("scancel", ids["cancelled"], ids["cancelled waiting"])
        self.let_time_pass(ids["late"])
        self.run("scontrol", "requeue", ids["requeued"])
        self.fail_node()
        time.sleep(1)  # the site ends the others after the component
        self.run("scancel", ids["a component on a bad node"])
        eventually(lambda: self.state(ids["requeued"]) == "PENDING")
        self.run("scontrol", "update", f"jobid={ids['requeued']}", "starttime=now+8")  # its first run must be over

    def let_time_pass(self, job: str) -> None:
        """Have a job reach its time limit: slurmctld looks every 30 s."""
        end = time.strftime("%FT%T", time.localtime(time.time() + 2))  # one that is past is refused
        self.run("scontrol", "update", f"jobid={job}", f"endtime={end}")

    def fail_node(self) -> None:
        self.run("scontrol", "update", "nodename=node-1", "state=down", "reason=test")
        # it may have come back by itself
        self.cluster.run_slurm("scontrol", "update", "nodename=node-1", "state=resume", check=False)
        eventually(lambda: "down" not in self.run("sinfo", "-h", "--nodes=node-1", "-o", "%T"))

    def lose_state(self, first: str) -> None:
        """Kill slurmctld, and have it come back knowing nothing: it gives ids again, from ``first`` on."""
        self.cluster.kill("slurmctld")
        with (self.cluster.state / "slurm" / "etc" / "slurm.conf").open("a") as conf:
            conf.write(f"FirstJobId={first}\n")
        for entry in (self.cluster.state / "slurm" / "state").iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.cluster.start_daemon("slurmctld")
        eventually(lambda: self.run("sinfo", "-h", "-o", "%T").split() == ["idle"], timeout=30)


@pytest.fixture(scope="module")
def scene(state_folder: Path) -> Iterator[Scene]:
    """Slurm 24.11 with accounting, in which the jobs end while the first test goes on."""
    with Cluster(state_folder / "accounting", slurm="24.11", nodes=2, kube=False, slurm_conf=CONF) as cluster:
        made = Scene(cluster)
        made.hurt()
        yield made


@pytest.fixture
def site(scene: Scene, make_site: Any, request: pytest.FixtureRequest) -> Any:
    """A site in front of it; the parameter is how long a vanished job may stay unexplained."""
    made = make_site(
        "slurm",
        f'[limits]\nallow_user_flags = true\n[slurm]\nbin_dir = "{scene.bin}"\n'
        f'[batch]\nkind = "slurm"\nperiod = 0.5\nlost_after = {request.param}\nsettle = 4\nlag = 1\n',
    )
    made.start()
    return made


# --- accounting that is not there -------------------------------------------------------------------------------------
def test_a_slurmdbd_that_is_down_is_asked_again(scene: Scene) -> None:
    batch, job = scene.batch(), scene.known()
    scene.cluster.stop_daemon("slurmdbd")
    try:
        for _ in range(2):
            with pytest.raises(BatchError, match="Connection refused") as refused:
                batch.past([job])
            assert refused.value.retryable
    finally:
        scene.cluster.start_daemon("slurmdbd")
    assert batch.past([job])[job].exit_code == 3


def test_a_slurmdbd_that_hangs_does_not_hold_up_every_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ACCOUNTING_REST", 2.0)
    batch, job = scene.batch(timeout=1), scene.known()
    scene.cluster.kill("slurmdbd", signal.SIGSTOP)
    try:
        for most in (1.5, 0.2):
            began = time.monotonic()
            with pytest.raises(BatchError) as refused:
                batch.past([job])
            assert refused.value.retryable
            assert time.monotonic() - began < most
    finally:
        scene.cluster.kill("slurmdbd", signal.SIGCONT)
    time.sleep(2)
    assert batch.past([job])[job].exit_code == 3


@pytest.mark.parametrize("missing", ["accounting", "sacct"])
def test_accounting_that_comes_later_is_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(slurm, "ACCOUNTING_RETRY", 1.0)
    batch, job = scene.batch(), scene.known()
    file = scene.sacct if missing == "sacct" else scene.cluster.state / "slurm" / "etc" / "slurm.conf"
    content = file.read_text()
    if missing == "sacct":
        file.unlink()
    else:
        file.write_text(content.replace(ACCOUNTING, "AccountingStorageType=accounting_storage/none"))
    try:
        assert batch.past([job]) == {}
    finally:
        file.write_text(content)
        file.chmod(0o755)
    assert batch.past([job]) == {}, "asked again at once"
    time.sleep(1)
    assert batch.past([job])[job].exit_code == 3


# --- the submitter ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("site", [2], indirect=True)
def test_ends_that_came_while_the_submitter_was_down(scene: Scene, site: Any) -> None:
    """Neither squeue nor the jobs' own records tell of them, and when the submitter is back slurmdbd is not."""
    array = {"array": EqualPods(owner=uid(), wanted=True)}
    asked = {
        "first of an array": submit(OUTLIVES, **array),
        "second of an array": submit(OUTLIVES, **array),
        "late": submit(OUTLIVES, flags=["--time=1"]),
        "on a bad node": submit(OUTLIVES, flags=["--nodelist=node-1"]),
        "cancelled": submit(OUTLIVES),
        "failed": submit("exit 3"),
    }
    uids = {name: uid() for name in asked}
    for name, wanted in asked.items():
        # deaf to the signal, so that it can't write down how it ended
        deaf = wanted.script.replace("trap 'reason", "trap '' TERM; : '")
        site.client.call(SUBMIT, uids[name], wanted.model_copy(update={"script": deaf}))
    ids = {name: site.wait(uids[name], "running" if name != "failed" else "ended").job_id for name in asked}
    site.kill(site.processes[0])
    scene.run("scancel", *(ids[name] for name in ("cancelled", "first of an array", "second of an array")))
    scene.fail_node()
    scene.let_time_pass(ids["late"])
    eventually(lambda: not any(scene.state(job) for job in ids.values()), timeout=FORGOTTEN)
    scene.cluster.stop_daemon("slurmdbd")
    site.start()
    try:
        eventually(lambda: "no records of ended jobs" in site.said(-1))
        time.sleep(4)
        assert site.status(uids["late"]).phase == "running", "ended without a word of its end"
    finally:
        scene.cluster.start_daemon("slurmdbd")
    ends = {name: site.wait(pod, "ended", 8) for name, pod in uids.items()}
    assert ids["second of an array"].partition("_")[0] == ids["first of an array"].partition("_")[0]
    assert {name: end.reason for name, end in ends.items()} == {
        "first of an array": "Cancelled",
        "second of an array": "Cancelled",
        "late": "DeadlineExceeded",
        "on a bad node": "NodeFail",
        "cancelled": "Cancelled",
        "failed": "",
    }
    assert ends["failed"].containers[0].ended.exit_code == 3


# --- words ------------------------------------------------------------------------------------------------------------
ENDS = {
    "completed": {"by_itself": True, "exit_code": 0, "host": "node-0", "reason": ""},
    "failed": {"by_itself": True, "exit_code": 3, "reason": ""},
    "crashed": {"by_itself": True, "exit_code": None, "signal": 11},
    "grew": {"by_itself": True, "exit_code": None, "signal": 9},
    "cancelled": {"by_itself": False, "reason": "Cancelled", "host": "node-0"},
    "cancelled waiting": {"by_itself": False, "reason": "Cancelled", "host": "", "started_at": None},
    "late": {"by_itself": False, "reason": "DeadlineExceeded"},
    "on a bad node": {"by_itself": False, "reason": "NodeFail", "host": "node-1"},
    "failed, two components": {"by_itself": True, "exit_code": 3, "reason": "", "host": "node-0"},
    "a component on a bad node": {"by_itself": False, "reason": "NodeFail", "host": "node-0"},
    "requeued": {"by_itself": True, "exit_code": 5},
}


MESSAGES = {
    "completed": "",
    "crashed": "the script of Slurm job {job} was terminated by signal 11",
    "cancelled": "Slurm job {job} was cancelled by user root",
    "late": "Slurm job {job} was terminated because it reached its time limit",
    "on a bad node": "Slurm job {job} was terminated because one of its nodes failed",
}


@pytest.fixture(scope="module")
def past(scene: Scene) -> dict[str, BatchJob]:
    gone = [scene.ids[name] for name in ENDS]
    eventually(lambda: not any(scene.state(job) for job in gone), timeout=FORGOTTEN)
    return scene.batch().past([*scene.ids.values(), "4000000"])


@pytest.mark.parametrize("name", ENDS)
def test_how_a_job_ended(scene: Scene, past: dict[str, BatchJob], name: str) -> None:
    found = past[scene.ids[name]]
    assert (found.phase, found.uid) == ("ended", scene.uids[name])
    if name == "grew" and found.exit_code == 9:  # of a signal that it sent itself, Slurm makes now this, now that
        found = replace(found, exit_code=None, signal=9)
    assert {key: getattr(found, key) for key in ENDS[name]} == ENDS[name]
    if name in MESSAGES:
        assert found.message == MESSAGES[name].format(job=found.id)
    assert found.ended_at is not None
    assert abs(found.ended_at - time.time()) < 600


def test_a_requeued_job_has_two_records_and_the_newer_one_counts(scene: Scene, past: dict[str, BatchJob]) -> None:
    job = scene.ids["requeued"]
    words = scene.run("sacct", "-nXD", f"--jobs={job}", "-o", "State%20").split()
    assert words == ["REQUEUED", "FAILED"]
    assert past[job].exit_code == 5


def test_nothing_is_said_of_jobs_that_run_or_are_not_ours(scene: Scene, past: dict[str, BatchJob]) -> None:
    assert scene.state(scene.ids["running"]) == "RUNNING"
    assert set(past) == {scene.ids[name] for name in ENDS}


# --- a slurmctld that has lost its state, and with it all that was before: this comes last ----------------------------
@pytest.mark.parametrize("site", [5], indirect=True)
def test_jobs_that_slurmctld_forgot_have_no_end(scene: Scene, site: Any) -> None:
    """Slurmdbd closes their records. What had not begun is submitted again; another's record is not believed."""
    waiting, running = uid(), uid()
    told = site.client.call(SUBMIT, waiting, submit("echo ran", flags=["--begin=now+1hour"])).status
    site.client.call(SUBMIT, running, submit("sleep 300"))
    job = site.wait(running, "running", 30).job_id
    scene.lose_state(job)
    records = ("sacct", "-nXPD", f"--jobs={told.job_id},{job}", "-o", "State")
    eventually(lambda: scene.run(*records).split() == ["CANCELLED"] * 2)
    assert scene.batch().past([told.job_id, job]) == {}
    again = scene.sbatch(uid(), "true", "--begin=now+1hour")
    assert again == job, "the id was not given again"
    scene.run("scancel", again)
    eventually(lambda: scene.batch().past([job]))
    eventually(lambda: site.status(waiting).job_id not in ("", told.job_id), timeout=30)
    scene.run("scontrol", "update", f"jobid={site.status(waiting).job_id}", "starttime=now")
    assert (site.wait(waiting, "ended", 30).outcome, site.log(waiting)) == ("Succeeded", b"ran\n")
    eventually(lambda: site.status(running).missing, timeout=30)
    assert site.status(running).phase == "running", "the hub decides"
    site.client.call(CANCEL, running, CancelMessage(grace=0))
    assert site.wait(running, "ended", 30).outcome == "Failed"
