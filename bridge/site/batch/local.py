"""A small batch system for one machine: first in, first out.

It allocates the requested CPUs, memory and GPUs. Each job is a session of its own and continues after the end of the
submitter. All state is on disk: one file for each job, and a claim file that only the first process of a job can
create, so a job that may have been started can be started again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bridge import job_ends
from bridge.errors import BatchError
from bridge.logs import kv
from bridge.site.batch import batch_interface, local_processes, processes
from bridge.site.batch.local_processes import Leftovers
from bridge.site.batch.local_records import Claim, Record, Records
from bridge.site.batch.local_resources import Local, measure

log = logging.getLogger(__name__)

TERM_TIME = 10.0
"""Seconds from SIGTERM to SIGKILL."""
START_TIME = 10.0
"""Seconds after its start in which a job must create its claim file."""
GUARD_PERIOD = 2.0
SWEEP_PERIOD = 60.0
"""Seconds between two removals of old records, which need one look at the disk for each ended job."""
UNCLAIMED = 75
"""Exit code of a first process that could not write the claim file, for example because the disk is full."""

# With noclobber, one process creates the claim file; any other fails and ends. Only the creator may remove it. Field 22
# of proc_pid_stat(5) is the start time; read splits the line correctly, as the name of the command has no blank.
_LAUNCH = f"""\
read -r -a stat </proc/$$/stat
read -r boot </proc/sys/kernel/random/boot_id
set -C
command exec 4>"$1" || {{ [[ -e $1 ]] && exit 0; exit {UNCLAIMED}; }}
echo "$$ ${{stat[21]}} $boot" >&4 || {{ rm -f "$1"; exit {UNCLAIMED}; }}
exec 4>&-
set +C
exec </dev/null >>"$3/script.log" 2>&1
exec bash "$3/job.sh"
"""


class LocalBatch(batch_interface.BatchSystem):
    """Jobs of this machine. :meth:`jobs`, which the leader calls, also starts and ends them."""

    kind = "local"
    settings = Local
    period = 0.5
    lag = 1.0
    eager = one_machine = gangs = heterogeneous = enters = True

    def __init__(self, config: Local, site: batch_interface.Site) -> None:
        self._config, self._clock = config, site.clock
        self._lock = threading.Lock()
        self._records = Records(site.folder / "local")
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._leftovers = Leftovers(batch_interface.job_environment(config.environment), site.clock)
        self._guarded_at = self._swept_at = float("-inf")
        self._waits_since: dict[str, float] = {}
        """Monotonic time since which this process waits for a job's claim file, or for its end after SIGTERM."""
        self._failed: OSError | None = None
        self._boot, self._room = processes.boot_id(), measure(config)

    def pods_per_machine(self, members: int, per_node: int) -> int:
        """Return all: there is one machine."""
        return members

    def entrance(
        self, job_id: str, host: str, folder: Path, *, tty: bool = False, component: int | None = None
    ) -> batch_interface.Entrance:
        """Return the environment of jobs: there is one machine."""
        return batch_interface.Entrance((), batch_interface.job_environment(self._config.environment))

    def version(self) -> str:
        """Return the name of the operating system."""
        system = os.uname()
        return f"local {system.sysname} {system.release}"

    def submit(self, request: batch_interface.BatchJobRequest) -> str:
        """Add a job to the end of the queue; refuse one that can never fit."""
        parts = request.components
        job = Record(
            uid=request.uid,
            folder=str(request.folder),
            queued_at=self._clock.time(),
            cpus=sum(part.cpus * part.members for part in parts),
            memory=sum(part.memory * part.members for part in parts),
            gpus=sum(part.gpus * part.members for part in parts),
            time_limit=request.time_limit,
            number=len(request.replaced) + 1,
        )
        for part in parts:
            if part.flags:
                raise BatchError(f"flags {list(part.flags)}: this batch system has none")
        if not self._room.fits(job):
            most = self._room
            raise BatchError(
                f"the job requests {job.cpus} CPUs, {job.memory} bytes of memory and {job.gpus} GPUs; this machine"
                f" gives out at most {most.cpus}, {most.memory} and {len(most.devices)}"
            )
        # a submission that is repeated after a lost answer has the same id
        if not self._records.exists(job.id):
            self._records.write(job)
        return job.id

    def find(self, uid: str) -> str | None:
        """Search for the last job of a pod."""
        return self._records.last(uid)

    def cancel(self, ids: Collection[str]) -> None:
        """Mark jobs as cancelled; the next call of :meth:`jobs` in the leader ends them."""
        with _records_needed():
            for job in ids:
                if self._records.exists(job):
                    (self._records.path / f"{job}.cancel").touch(mode=0o600)

    def jobs(self) -> dict[str, batch_interface.BatchJob]:
        """Record ends, start jobs that fit, and return all jobs."""
        with self._lock, _records_needed():
            now, monotonic = self._clock.time(), self._clock.monotonic()
            cancelled = self._records.read_new()
            self._failed = None
            self._record_ends(now)
            self._mark_cancelled(cancelled, now)
            if monotonic - self._guarded_at >= GUARD_PERIOD:
                self._guarded_at = monotonic
                self._guard(now)
            self._start_next(now)
            if monotonic - self._swept_at >= SWEEP_PERIOD:
                self._swept_at = monotonic
                self._records.drop_old(now)
            if self._failed is not None:
                raise self._failed
            return {name: job.as_batch_job() for name, job in self._records.jobs.items()}

    @contextlib.contextmanager
    def _one_job(self) -> Iterator[None]:
        """Continue with the other jobs after an error of the records of one; :meth:`jobs` raises it afterwards."""
        try:
            yield
        except OSError as error:
            self._failed = error

    def capacity(self) -> batch_interface.Capacity:
        """Return the resources of the machine, and what jobs leave of them."""
        with self._lock, _records_needed():
            self._records.read_new()
            return self._room.capacity(self._records.jobs.values(), self._config.gpu_resource)

    # --- a job's life -------------------------------------------------------------------------------------------------
    def _start_next(self, now: float) -> None:
        free = self._room.beside(self._records.jobs.values())
        waiting = [job for job in self._records.jobs.values() if job.phase == "queued" and self._records.may_start(job)]
        for job in sorted(waiting, key=lambda job: (job.queued_at, job.uid)):
            if not free.fits(job):
                break  # strictly in order: otherwise a large job could wait indefinitely
            devices = tuple(free.devices[: job.gpus])
            # before the start: after a kill in between, the job has no claim file, and the next leader starts it
            started = self._records.keep(replace(job, phase="running", started_at=now, devices=devices))
            free.cpus -= job.cpus
            free.memory -= job.memory
            del free.devices[: job.gpus]
            self._launch(started)

    def _launch(self, job: Record) -> None:
        variables = batch_interface.job_environment(self._config.environment)
        if self._room.devices:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.devices))
        words = ["bash", "-c", _LAUNCH, "podbridge-job", str(self._records.path / f"{job.id}.pid"), job.uid, job.folder]
        if self._config.nice:
            words = ["nice", "-n", str(self._config.nice), *words]
        self._waits_since[job.id] = self._clock.monotonic()
        try:
            self._children[job.id] = processes.start(words, job.folder, variables)
        except OSError as error:
            if error.errno in processes.SHORTAGES:
                self._records.keep(replace(job, phase="queued", started_at=None, devices=()))
                raise
            self._end(job, "BatchSystemRefused", f"the job can't be started: {error.strerror}")

    def _record_ends(self, now: float) -> None:
        """Record the ends of running jobs. All sessions of a poll that are over are killed at once."""
        ended_jobs: list[tuple[Record, Claim]] = []
        claims_to_kill: list[Claim] = []
        for job in [job for job in self._records.jobs.values() if job.phase == "running"]:
            with self._one_job():
                child = self._children.get(job.id)
                code = child.poll() if child else None  # first: a process that has ended has written its claim
                claim = self._records.claim(job.id)
                if claim is None:
                    self._look_without_claim(job, code, now)
                    continue
                if job.ending_at is None:
                    self._waits_since.pop(job.id, None)
                pid, started, boot = claim
                # after a restart of the machine, another process may have the same pid and start time
                if boot == self._boot and processes.is_running(pid, started):
                    if self._end_in_time(job, claim, now):
                        claims_to_kill.append(claim)
                    continue
                ended_jobs.append((job, claim))
                if boot == self._boot:
                    claims_to_kill.append(claim)
        with self._one_job():
            local_processes.kill(claims_to_kill)  # if this fails, the next poll repeats it
            for job, claim in ended_jobs:
                with self._one_job():
                    self._record_end(job, claim[2])

    def _record_end(self, job: Record, boot: str) -> None:
        """Record the end of a job whose first process has ended and whose session was killed."""
        child = self._children.get(job.id)
        code = child.poll() if child else None
        killed = code is None or code < 0
        if killed and not self._records.replaced(job) and not self._leftovers.gone(job.id, job.folder):
            return
        if boot != self._boot:
            self._end(job, job_ends.NODE_FAIL.site_reason, "the machine restarted")
        elif job.ending_at is not None:
            self._end(job, job.reason, job.message)
        elif code is None:
            self._end(job, "", "", by_itself=True)
        elif code < 0:
            self._end(job, job_ends.KILLED.site_reason, f"the job was terminated by signal {-code}", number=-code)
        else:
            self._end(job, "", "", by_itself=True, code=code)

    def _look_without_claim(self, job: Record, code: int | None, now: float) -> None:
        incomplete = self._records.has_incomplete_claim(job.id)
        if self._waited(job) <= START_TIME and (code is None or incomplete):
            return
        if incomplete:  # a power failure or a full disk emptied the file, so the job may have started
            if self._records.replaced(job) or self._leftovers.gone(job.id, job.folder):
                self._end(
                    job,
                    job_ends.NODE_FAIL.site_reason,
                    "the claim file of the job is incomplete, as after a power failure",
                )
        elif job.ending_at is not None:
            self._end(job, job.reason, job.message)
        elif code is None:  # another submitter died after it recorded the start and before it started the job
            self._launch(self._records.keep(replace(job, started_at=now)))
        elif code == UNCLAIMED:
            self._records.keep(replace(job, phase="queued", started_at=None, devices=()))
        else:
            self._end(job, "BatchSystemRefused", f"the job can't be started (exit code {code})")

    def _waited(self, job: Record) -> float:
        now = self._clock.monotonic()
        return now - self._waits_since.setdefault(job.id, now)

    def _end_in_time(self, job: Record, claim: Claim, now: float) -> bool:
        """Request the end of a job at its time limit; return whether the time after such a request is over."""
        if job.ending_at is not None:
            return self._waited(job) >= TERM_TIME
        if job.time_limit is not None and processes.age(claim[1]) >= job.time_limit:
            message = f"the job was terminated because it reached its time limit of {job.time_limit:.0f} s"
            self._ask_to_end(job, job_ends.TIME_LIMIT.site_reason, message, now)
        return False

    def _mark_cancelled(self, ids: Iterable[str], now: float) -> None:
        for job_id in ids:
            job = self._records.jobs.get(job_id)
            if job is None:
                continue
            with self._one_job():
                if job.phase == "queued":
                    self._end(job, job_ends.CANCELLED.site_reason, "")
                elif job.phase == "running" and job.ending_at is None:
                    self._ask_to_end(job, job_ends.CANCELLED.site_reason, "", now)
                elif job.phase == "running":
                    self._records.write(job)  # the disk may have been full
                # last: after an error above, the next poll finds the mark again
                self._records.drop_cancel_mark(job_id)

    def _ask_to_end(self, job: Record, reason: str, message: str, now: float) -> None:
        claim = self._records.claim(job.id)
        if claim is not None and processes.is_running(*claim[:2]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(claim[0], signal.SIGTERM)
        self._note_ending(replace(job, ending_at=now, reason=reason, message=message))

    def _note_ending(self, job: Record) -> None:
        """Store that a job was requested to end: in memory also if the disk is full, which this job may have filled."""
        self._records.jobs[job.id] = job
        self._waits_since[job.id] = self._clock.monotonic()
        self._records.write(job)

    def _guard(self, now: float) -> None:
        """Kill jobs that use more memory than they requested."""
        if not self._config.watch_memory:
            return
        running: dict[int, tuple[Record, Claim]] = {}
        for job in self._records.jobs.values():
            if job.phase == "running" and job.ending_at is None and (claim := self._records.claim(job.id)) is not None:
                running[claim[0]] = (job, claim)
        for job, claim, used in local_processes.over_memory(running):
            message = f"the job was terminated because it used {used} bytes of memory and requested {job.memory}"
            local_processes.kill([claim])
            with self._one_job():
                reason = job_ends.OUT_OF_MEMORY.site_reason
                self._note_ending(replace(job, ending_at=now, reason=reason, message=message))

    def _end(
        self,
        job: Record,
        reason: str,
        message: str,
        *,
        by_itself: bool = False,
        code: int | None = None,
        number: int = 0,
    ) -> None:
        log.debug("local job ended", extra=kv(job=job.id, reason=reason))
        self._records.keep(
            replace(
                job,
                phase="ended",
                ended_at=self._clock.time(),
                exit_code=code,
                signal=number,
                reason=reason,
                message=message,
                outside=not by_itself,
                devices=(),
            )
        )
        self._children.pop(job.id, None)  # only now: it has the exit code
        self._waits_since.pop(job.id, None)


@contextlib.contextmanager
def _records_needed() -> Iterator[None]:
    """Turn an error of the directory of records, for example a full disk, into a retryable :class:`BatchError`."""
    try:
        yield
    except OSError as error:
        raise BatchError(f"the records of jobs: {error.strerror or error}", retryable=True) from error
