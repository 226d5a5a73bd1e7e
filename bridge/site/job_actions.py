"""What must be done for a job now. Pure: record and the time in, chores out, each of which may be done twice."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.site.job_record import JobRecord

KILL_ALLOWANCE = 10.0
"""Seconds after the grace period at which the batch system ends a job that did not end by itself."""
CANCEL_PERIOD = 30.0
"""Seconds between two cancels of a job that does not go away."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the script to end."""

    grace: float
    reason: str = "Deleted"


@dataclass(frozen=True, slots=True)
class Kill:
    """Have the batch system end the job."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask the batch system again: the last time brought no answer, and no job."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The end is wanted of a job that the batch system never had: it has ended."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop everything of the job."""


JobAction = Stop | Kill | Submit | GiveUp | Forget


def confirmed(record: JobRecord) -> bool:
    """Whether the batch system has nothing of the job any more."""
    return record.batch is not None and record.batch.phase == "ended"


def due_actions(
    record: JobRecord, now: float, *, over: bool, settle: float, killed_at: float | None, grace_over: bool
) -> list[JobAction]:
    """List what is to be done, in order.

    ``over``: the job has ended as far as anyone can tell. ``killed_at``: when it was last cancelled by this process.
    ``grace_over``: the job was given all the time to end by itself, by the clock of this process alone.
    """
    cancel = record.cancel
    unknown = not record.job_id and not record.started and not confirmed(record)
    settled = now - record.meta.attempted_at >= settle
    if cancel is None:
        return [Submit()] if unknown and settled else []
    if over and confirmed(record):
        return [Forget()] if cancel.forget else []
    if unknown:
        return [GiveUp()] if settled else [Stop(0)]
    if confirmed(record):  # it may yet be seen to have ended well: the folder lags
        return []
    due = not record.started or cancel.grace <= 0 or grace_over
    todo: list[JobAction] = [] if record.final else [Stop(cancel.grace if record.started else 0)]
    if due and (record.job_id or record.started_job) and (killed_at is None or now - killed_at >= CANCEL_PERIOD):
        todo.append(Kill())
    return todo
