"""The records of the machine's jobs on disk: one file for each, and the claim file of its first process."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bridge.logs import kv
from bridge.site.batch.batch_interface import BatchJob, Finite
from bridge.site.files.atomic_files import read_some, validated, write

log = logging.getLogger(__name__)

KEPT = 600.0
"""Seconds for which an ended job is still listed."""
Claim = tuple[int, int, str]
"""Pid of a job's first process, its start in clock ticks, and the boot id of the machine."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one job."""

    uid: str
    folder: str
    queued_at: Finite
    cpus: int
    memory: int
    gpus: int
    time_limit: Finite | None
    phase: str = "queued"
    devices: tuple[int, ...] = ()
    started_at: Finite | None = None
    ended_at: Finite | None = None
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    message: str = ""
    outside: bool = False
    """Whether it was ended from outside."""
    ending_at: Finite | None = None
    """When podbridge sent SIGTERM to it."""
    number: int = 1
    """Counts the jobs of one pod: a job that ended without a container may be replaced."""

    @property
    def id(self) -> str:
        """The id of the job, and the name of its files."""
        return job_id(self.uid, self.number)

    def as_batch_job(self) -> BatchJob:
        """Return it in the form of all batch systems."""
        waiting = self.phase == "queued"
        return BatchJob(
            id=self.id,
            uid=self.uid,
            phase=self.phase,  # type: ignore[arg-type]
            reason="WaitingForResources" if waiting else self.reason if self.phase == "ended" else "",
            message=self.message if self.phase == "ended" else "",
            exit_code=self.exit_code,
            signal=self.signal,
            host="" if waiting else _HOST,
            started_at=self.started_at,
            ended_at=self.ended_at,
            by_itself=self.phase == "ended" and not self.outside,
        )


_HOST = os.uname().nodename
_RECORD = TypeAdapter(Record)
_LARGEST = 65536
_CLAIM = re.compile(rb"(\d+) (\d+) (\S+)\n")


def job_id(uid: str, number: int) -> str:
    """Return the id of the job of a pod with this number."""
    return uid if number == 1 else f"{uid}.{number}"


class Records:
    """All jobs, on disk and in memory, by id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs: dict[str, Record] = {}
        self._unreadable: set[str] = set()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def exists(self, job: str) -> bool:
        """Return whether there is a job with this id."""
        return (self.path / f"{job}.json").exists()

    def last(self, uid: str) -> str | None:
        """Return the id of the last job of a pod; ``None`` if there is none."""
        number = 0
        while self.exists(job_id(uid, number + 1)):
            number += 1
        return job_id(uid, number) if number else None

    def replaced(self, job: Record) -> bool:
        """Return whether the pod has a later job, which has the directory of this one."""
        return job_id(job.uid, job.number + 1) in self.jobs

    def may_start(self, job: Record) -> bool:
        """Return whether the earlier jobs of the pod have ended."""
        earlier = (self.jobs.get(job_id(job.uid, number)) for number in range(1, job.number))
        return all(record is None or record.phase == "ended" for record in earlier)

    def write(self, job: Record) -> None:
        """Write a job for the leader to find."""
        write(self.path / f"{job.id}.json", _RECORD.dump_json(job))

    def keep(self, job: Record) -> Record:
        """Store a job's new state."""
        self.write(job)
        self.jobs[job.id] = job
        return job

    def read_new(self) -> list[str]:
        """Read jobs that other submitters have written, and return the ids of jobs that are marked as cancelled.

        A record of another version that can't be read stays.
        """
        cancelled: list[str] = []
        for name in os.listdir(self.path):
            job, dot, kind = name.rpartition(".")
            if kind == "cancel":
                cancelled.append(job)
            if kind != "json" or not dot or name.startswith(".") or job in self.jobs or job in self._unreadable:
                continue
            content = read_some(self.path / name, _LARGEST)
            if content is None:  # not now
                continue
            record = validated(_RECORD, content)
            if record is not None:
                self.jobs[job] = record
            elif not content.strip(b"\0"):  # after a power failure; the job's directory still exists
                (self.path / name).unlink(missing_ok=True)
            else:
                self._unreadable.add(job)
                log.warning("the record of a job can't be read; it is ignored", extra=kv(file=self.path / name))
        return cancelled

    def drop_cancel_mark(self, job: str) -> None:
        """Remove the mark that a job is cancelled."""
        (self.path / f"{job}.cancel").unlink(missing_ok=True)

    def drop_old(self, now: float) -> None:
        """Remove jobs that ended more than :data:`KEPT` seconds ago."""
        for name, job in tuple(self.jobs.items()):
            # without its directory, no submitter needs the record
            if job.phase == "ended" and job.ended_at and now - job.ended_at > KEPT and not os.path.exists(job.folder):
                for kind in ("cancel", "pid", "json"):
                    (self.path / f"{name}.{kind}").unlink(missing_ok=True)
                del self.jobs[name]

    def claim(self, job: str) -> Claim | None:
        """Read the claim file of a job; ``None``: its first process has not written it yet."""
        match = _CLAIM.fullmatch(self._claim_text(job) or b"")
        return (int(match[1]), int(match[2]), match[3].decode()) if match else None

    def has_incomplete_claim(self, job: str) -> bool:
        """Return whether the claim file exists without its line."""
        content = self._claim_text(job)
        return content is not None and not _CLAIM.fullmatch(content)

    def _claim_text(self, job: str) -> bytes | None:
        return read_some(self.path / f"{job}.pid", 256)
