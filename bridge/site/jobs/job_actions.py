"""The actions that are due for a job. Pure: takes its record and the time. Each action may be run twice."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.core.job_lifecycle import Lifecycle, State
from bridge.site.jobs.job_record import JobRecord

KILL_ALLOWANCE = 10.0
"""Seconds after the grace period at which podbridge cancels the batch job, if its script has not ended."""
CANCEL_PERIOD = 30.0
"""Seconds between two cancellations of a job that does not end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Request that the script ends within ``grace`` seconds."""

    grace: float
    reason: str = "Deleted"


@dataclass(frozen=True, slots=True)
class Kill:
    """Cancel the job in the batch system."""


@dataclass(frozen=True, slots=True)
class SubmitToBatch:
    """Submit again: the last submission got no answer, and no job appeared."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Record the end of a cancelled job that the batch system never had."""


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Remove the job's directory and record."""


JobAction = Stop | Kill | SubmitToBatch | GiveUp | ForgetJob


def confirmed(record: JobRecord) -> bool:
    """Return whether the batch system has reported the end of the job."""
    return record.batch is not None and record.batch.phase == "ended"


def lifecycle(record: JobRecord, settle: float) -> Lifecycle:
    """Return what the directory of a job says of its batch job; ``settle``: seconds in which one may still appear."""
    if confirmed(record):
        state = State.ENDED
    elif record.started:
        state = State.STARTED
    else:
        state = State.KNOWN if record.job_id else State.UNKNOWN
    return Lifecycle(state, until=record.meta.attempted_at + settle)


def due_actions(
    record: JobRecord,
    now: float,
    *,
    has_ended: bool,
    settle: float,
    listed_at: float,
    killed_at: float | None,
    is_grace_over: bool,
) -> list[JobAction]:
    """Return the actions that are due, in order.

    ``has_ended``: the status of the job is ended. ``listed_at``: when the last list of batch jobs was requested, which
    has none of the job if its record has none. ``killed_at``: when this process last cancelled it, in seconds since
    1970.
    ``is_grace_over``: the grace period and :data:`KILL_ALLOWANCE` have passed, by the clock of this process.
    """
    cancel, job = record.cancel, lifecycle(record, settle)
    if cancel is None:
        is_over = job.state is State.UNKNOWN and not job.may_take_effect(now)
        return [SubmitToBatch()] if is_over and not record.meta.adopted else []
    if has_ended and confirmed(record):
        return [ForgetJob()] if cancel.forget else []
    if job.state is State.UNKNOWN:
        # the job may still appear: its script then finds this request
        return [GiveUp()] if job.denied(listed_at).is_absent else [Stop(0)]
    if confirmed(record):  # the shared file system may not show the job's own end yet
        return []
    is_kill_due = not record.started or record.meta.adopted or cancel.grace <= 0 or is_grace_over
    actions: list[JobAction] = [] if record.final else [Stop(cancel.grace if record.started else 0)]
    if (
        is_kill_due
        and (record.job_id or record.started_job)
        and (killed_at is None or now - killed_at >= CANCEL_PERIOD)
    ):
        actions.append(Kill())
    return actions
