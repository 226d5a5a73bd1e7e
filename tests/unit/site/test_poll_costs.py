"""Polls of the batch system `local`: what they do once for all jobs or not each time, and shortages of the machine."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BatchError
from bridge.site.batch import local, local_records, processes
from bridge.site.batch.batch_interface import BatchJob, Site
from bridge.site.batch.local import LocalBatch
from bridge.site.batch.local_records import Record
from bridge.site.batch.local_resources import Local
from bridge.site.batch.processes import Process
from bridge.site.service import EAGER_PAUSE, LONGEST_PAUSE, pause_after
from tests.fakes.clock import FakeClock

STARTED = 500
FIRST = 4_000_000
"""The pid of the first job; larger than any of this machine."""


class Machine:
    """The batch system ``local`` with a table of processes; ``listed`` counts the reads of all of them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.path = FakeClock(), path
        self.batch = LocalBatch(Local(cpus=64, memory="64Gi", gpus=0), Site(path, (), self.clock))
        self.processes: dict[int, Process] = {}
        self.listed, self.killed = 0, list[int]()
        monkeypatch.setattr(processes, "read", lambda pid: self.processes.get(pid))
        monkeypatch.setattr(processes, "read_all", self._read_all)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(self.batch._leftovers, "gone", lambda *_: True)

    def _read_all(self) -> dict[int, Process]:
        self.listed += 1
        return dict(self.processes)

    def _kill(self, pid: int, _: int) -> None:
        self.killed.append(pid)

    def process(self, pid: int, session: int, started: int = STARTED) -> None:
        self.processes[pid] = Process(pid, 1, session, started, 0, zombie=False)

    def add(self, number: int, **more: Any) -> str:
        """Add a running job whose first process has the pid ``FIRST + number``."""
        folder = self.path / f"job{number}"
        folder.mkdir()
        job = Record(f"u{number}", str(folder), 1.0, 1, 2**20, 0, None, phase="running", started_at=1.0)
        job = dataclasses.replace(job, **more)
        self.batch._records.keep(job)
        claim = f"{FIRST + number} {STARTED} {processes.boot_id()}\n"
        (self.batch._records.path / f"{job.id}.pid").write_text(claim)
        return job.id


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_the_processes_are_read_once_for_all_jobs_that_end(machine: Machine) -> None:
    jobs = [machine.add(number) for number in range(20)]
    for number in range(20):
        machine.process(1000 + number, session=FIRST + number)  # what the first process has left
    alive = machine.add(20)
    machine.process(FIRST + 20, session=FIRST + 20)
    machine.batch._guarded_at = float("inf")
    found = machine.batch.jobs()
    assert [found[job].phase for job in jobs] == ["ended"] * 20
    assert found[alive].phase == "running"
    assert sorted(machine.killed) == [1000 + number for number in range(20)]
    assert machine.listed == 1


@pytest.mark.parametrize("number", sorted(processes.SHORTAGES))
def test_a_shortage_of_the_machine_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    machine = Machine(tmp_path, monkeypatch)
    running = machine.add(0)
    machine.process(FIRST, session=FIRST)
    folder = tmp_path / "new"
    folder.mkdir()
    queued = Record("new", str(folder), 1.0, 1, 2**20, 0, None)
    machine.batch._records.keep(queued)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "read", fail)
        patch.setattr(processes, "start", fail)
        with pytest.raises(BatchError, match=os.strerror(number)) as caught:
            machine.batch.jobs()
        assert caught.value.retryable
    jobs = machine.batch._records.jobs
    assert (jobs[running].phase, jobs[queued.id].phase) == ("running", "queued")


def test_a_process_exists_or_not_or_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.read(FIRST) is None
    assert (found := processes.read(os.getpid())) is not None and found.pid == os.getpid()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(OSError, match="Too many"):
        processes.read(os.getpid())


def test_a_poll_without_an_end_reads_no_other_process(machine: Machine) -> None:
    machine.add(1)
    machine.process(FIRST + 1, session=FIRST + 1)
    machine.batch._guarded_at = float("inf")
    machine.batch.jobs()
    assert machine.listed == 0


def test_the_session_of_a_process_with_a_reused_pid_is_left_alone(machine: Machine) -> None:
    job = machine.add(1)
    machine.process(FIRST + 1, session=FIRST + 1, started=STARTED + 1)
    assert (machine.batch.jobs()[job].phase, machine.killed) == ("ended", [])


def test_a_pid_that_was_reused_after_the_list_is_left_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    job = machine.add(1)
    machine.process(1000, session=FIRST + 1)
    machine.process(1001, session=FIRST + 1)
    old = machine._read_all()

    def read_all() -> dict[int, Process]:
        machine.process(1000, session=77, started=STARTED + 9)
        return old

    monkeypatch.setattr(processes, "read_all", read_all)
    assert (machine.batch.jobs()[job].phase, machine.killed) == ("ended", [1001])


def test_no_end_is_recorded_while_the_processes_cannot_be_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = machine.add(1)

    def fail() -> dict[int, Process]:
        raise OSError("Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(processes, "read_all", fail)
        with pytest.raises(local.BatchError):
            machine.batch.jobs()
    assert (machine.batch._records.jobs[job].phase, machine.batch.jobs()[job].phase) == ("running", "ended")


def test_a_poll_lists_the_records_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    queued = machine.add(1, phase="queued", cpus=1000)
    machine.batch.cancel([queued])
    real, listed = os.listdir, []
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    assert machine.batch.jobs()[queued].reason == "Cancelled"
    assert listed == [machine.batch._records.path]
    assert not (machine.batch._records.path / f"{queued}.cancel").exists()


def test_old_records_are_looked_at_once_a_minute(machine: Machine) -> None:
    old = machine.clock.time() - local_records.KEPT - 1
    job = machine.add(1, phase="ended", ended_at=old)
    assert job in machine.batch.jobs()
    (machine.path / "job1").rmdir()
    assert job in machine.batch.jobs()
    machine.clock.advance(local.SWEEP_PERIOD)
    machine.batch.jobs()
    assert job not in machine.batch.jobs()
    assert list(machine.batch._records.path.iterdir()) == []


def test_the_name_of_the_host_is_read_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    job, host = machine.add(1), os.uname().nodename
    monkeypatch.delattr(os, "uname")
    assert machine.batch.jobs()[job].host == host


def test_ended_batch_jobs_that_are_forgotten_are_not_compared_with_the_markers(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.folder.mark_forgotten("old", "c1")
    world.batch.table["7"] = BatchJob(id="7", uid="old", phase="ended")
    real, read = world.folder.all_forgotten, []
    monkeypatch.setattr(world.folder, "all_forgotten", lambda: read.append(1) or real())
    world.look()
    assert (read, world.batch.cancelled) == ([], [])
    world.batch.table["8"] = BatchJob(id="8", uid="old", phase="queued")
    world.look()
    assert (read, world.batch.cancelled) == ([1], ["8"])


@pytest.mark.parametrize(("took", "pause"), [(0.0, EAGER_PAUSE), (0.1, 0.3), (60.0, LONGEST_PAUSE)])
def test_the_pause_grows_with_the_cpu_time_of_a_poll(took: float, pause: float) -> None:
    assert pause_after(took) == pytest.approx(pause)
