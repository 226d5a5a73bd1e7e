"""The actions that are due for a job. Pure: takes its record and the time. Each action may be run twice."""

from __future__ import annotations

import enum

from bridge.core.job_lifecycle import Lifecycle, State
from bridge.site.jobs.job_record import JobRecord

KILL_ALLOWANCE = 10.0
"""Seconds after the grace period at which podbridge cancels the batch job, if its script has not ended."""
CANCEL_PERIOD = 30.0
"""Seconds between two cancellations of a job that does not end."""


class JobAction(enum.Enum):
    """An action for a job."""

    STOP = "request that the script ends"
    KILL = "cancel the job in the batch system"
    SUBMIT = "submit again: the last submission got no answer, and no job appeared"
    GIVE_UP = "record the end of a cancelled job that the batch system never had"
    FORGET = "remove the job's directory and record"


def due_actions(
    record: JobRecord, job: Lifecycle, now: float, *, has_ended: bool, killed_at: float | None, is_grace_over: bool
) -> list[JobAction]:
    """Return the actions that are due, in order.

    ``has_ended``: the status of the job is ended. ``killed_at``: when this process last cancelled it, by the
    monotonic clock of ``now``.
    ``is_grace_over``: the grace period and :data:`KILL_ALLOWANCE` have passed, by the clock of this process.
    """
    cancel = record.cancel
    if cancel is None:
        return [JobAction.SUBMIT] if job.is_absent and not record.meta.adopted else []
    if has_ended and record.end_confirmed:
        return [JobAction.FORGET] if cancel.forget else []
    if job.is_absent:
        return [JobAction.GIVE_UP]
    if job.state is State.UNKNOWN:
        return [JobAction.STOP]  # the job may still appear: its script then finds this request
    if record.end_confirmed:  # the shared file system may not show the job's own end yet
        return []
    is_kill_due = not record.started or record.meta.adopted or cancel.grace <= 0 or is_grace_over
    actions: list[JobAction] = [] if record.final else [JobAction.STOP]
    if (
        is_kill_due
        and (record.job_id or record.started_job or record.meta.place is not None)
        and (killed_at is None or now - killed_at >= CANCEL_PERIOD)
    ):
        actions.append(JobAction.KILL)
    return actions
