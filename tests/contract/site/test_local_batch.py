"""The batch system ``local`` alone: real processes, without a submitter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.site.batch import local
from bridge.site.batch.batch_interface import BatchJob, BatchJobRequest, Site
from bridge.site.batch.local import LocalBatch
from bridge.site.batch.local_resources import Local
from cluster.polling import eventually
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.real

DAY = 86400.0
SLEEPS = "touch ready\nexec sleep 600"
IGNORES_SIGTERM = "trap '' TERM\ntouch ready\nwhile :; do sleep 0.1; done"


class SteppedClock(FakeClock):
    """A clock whose time of day can be set without an effect on its monotonic seconds."""

    step = 0.0

    def time(self) -> float:
        return self.now + self.step


class Machine:
    """One machine with jobs of ``local``."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, SteppedClock()
        self.batch = self.start()

    def start(self) -> LocalBatch:
        """Start the batch system, as after a restart of the submitter."""
        self.batch = LocalBatch(Local(), Site(self.path, (), self.clock))
        return self.batch

    def submit(self, script: str, uid: str = "u", time_limit: float | None = None) -> str:
        folder = self.path / uid
        folder.mkdir()
        (folder / "job.sh").write_text(f"cd {folder}\n[[ ${{1-}} != leftovers ]] || exec touch removed\n{script}\n")
        return self.batch.submit(BatchJobRequest(uid=uid, folder=folder, memory=2**20, time_limit=time_limit))

    def look(self, job: str = "u") -> BatchJob:
        return self.batch.jobs()[job]

    def run(self, script: str, **more: float) -> str:
        """Submit a script and wait until it has created the file ``ready``."""
        job = self.submit(script, **more)
        eventually(lambda: self.look(job).phase == "running" and (self.path / job / "ready").exists())
        return job

    def claim(self, job: str = "u") -> Path:
        return self.path / "local" / f"{job}.pid"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for file in (tmp_path / "local").glob("*.pid"):
        for word in file.read_text().split()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(word), signal.SIGKILL)


@pytest.mark.parametrize("step", [8 * DAY, -8 * DAY])
def test_a_change_of_the_time_of_day_ends_no_job(machine: Machine, step: float) -> None:
    job = machine.run(SLEEPS, time_limit=7 * DAY)
    machine.clock.step = step
    for _ in range(3):
        assert machine.look(job).phase == "running"


def test_the_time_limit_counts_from_the_start_of_the_process_also_after_a_restart(machine: Machine) -> None:
    job = machine.run(SLEEPS, time_limit=2)
    machine.start()
    eventually(lambda: machine.look(job).phase == "ended", timeout=10)
    assert machine.look(job).reason == "DeadlineExceeded"


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_that_ignores_sigterm_is_killed_though_the_clock_was_set_back(machine: Machine, restart: bool) -> None:
    job = machine.run(IGNORES_SIGTERM)
    machine.batch.cancel([job])
    assert machine.look(job).phase == "running"
    machine.clock.step = -DAY
    if restart:
        machine.start()
        assert machine.look(job).phase == "running"
    machine.clock.advance(local.TERM_TIME)
    eventually(lambda: machine.look(job).phase == "ended", timeout=10)
    assert machine.look(job).reason == "Cancelled"


def test_the_memory_is_watched_though_the_clock_was_set_back(machine: Machine) -> None:
    job = machine.run("touch ready\nx=$(head -c 300000000 /dev/zero | tr '\\0' x)\ntouch grown\nsleep 600")
    machine.clock.step = -DAY
    eventually(lambda: (machine.path / job / "grown").exists(), timeout=60)
    machine.clock.advance(local.GUARD_PERIOD)
    eventually(lambda: machine.look(job).phase == "ended", timeout=10)
    assert machine.look(job).reason == "OOMKilled"


def test_a_job_whose_claim_the_disk_did_not_take_is_started_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(local, "_LAUNCH", local._LAUNCH.replace('echo "$$', 'exec 4>/dev/full\necho "$$'))
        job = machine.submit("touch ready\nexit 3")
        machine.look(job)
        assert machine.batch._children[job].wait(10) == local.UNCLAIMED
    assert not machine.claim(job).exists()
    eventually(lambda: machine.look(job).phase == "ended", timeout=10)
    assert (machine.look(job).exit_code, machine.look(job).by_itself) == (3, True)


def test_a_second_first_process_leaves_the_claim_of_the_other(machine: Machine) -> None:
    job = machine.run(SLEEPS)
    claim = machine.claim(job).read_text()
    machine.batch._launch(machine.batch._records.jobs[job])
    assert (machine.batch._children[job].wait(10), machine.claim(job).read_text()) == (0, claim)


def test_an_empty_claim_is_that_of_a_job_that_a_power_failure_ended(machine: Machine) -> None:
    job = machine.submit("touch ready")
    record = machine.path / "local" / f"{job}.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "phase": "running", "started_at": 1.0}))
    machine.claim(job).touch()
    machine.start()
    assert machine.look(job).phase == "running"
    machine.clock.advance(local.START_TIME + 1)
    eventually(lambda: machine.look(job).phase == "ended", timeout=10)
    assert machine.look(job).reason == "NodeFail"
    assert (machine.path / job / "removed").exists()
    assert not (machine.path / job / "ready").exists()
