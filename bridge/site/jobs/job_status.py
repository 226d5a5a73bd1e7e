"""The status of a job, from the records of its script and of the batch system. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from bridge import job_ends
from bridge.protocol.model import jobs
from bridge.protocol.model.identifiers import TICKET_PATTERN
from bridge.site.jobs.job_record import JobRecord

Phase = Literal["queued", "running", "ended"]
Outcome = Literal["", "Succeeded", "Failed"]

KILLED = 137
# seconds since 1970, in the year 5138: a larger number in the record of a script is no time
LATEST = 1e11
SIGNALLED = "Terminated"
"""Reason of a script that received SIGTERM."""
AWAIT_REASON = 30.0
"""Seconds for which the end of such a script is withheld, until the batch system reports the cause."""
OUTSIDE = frozenset({"Terminated", "Killed", "Stopped"})
"""Reasons of a script that does not know what ended it: the batch system's reason replaces them."""
NEVER_RAN = "ScriptDidNotRun"
LOST = job_ends.LOST.reason
ASKING = "Asking"
"""Phase of a script that waits for its grant."""
MOST_TEXT = 12 * 1024
"""Characters of the termination messages of a pod, as of kubelets: each container has an equal share. It limits other
texts of containers too: the status of any job must fit into one message, or it would block the snapshot of all jobs."""
CONTAINER_REASONS = frozenset({job_ends.OUT_OF_MEMORY.site_reason, job_ends.TIME_LIMIT.site_reason})
"""Reasons that apply to killed containers too; all others apply to the pod only."""


def status(record: JobRecord, now: float, lag: float) -> jobs.JobStatus:
    """Return the status of a job; ``lag``: seconds for which a shared file system may hide what the job wrote last."""
    pod, batch, meta = record.pod or {}, record.batch, record.meta
    has_ended = is_over(record, now, lag)
    phase, outcome, reason, message = _progress(record, now, has_ended)
    messages = dict(record.messages)
    shown = record.containers[: jobs.MOST_CONTAINERS]
    most = MOST_TEXT // max(1, len(shown))
    containers = [_container(name, content, messages, most) for name, content in shown]
    if has_ended and not record.final:
        containers = [_as_killed(state, reason, _ended_at(record)) for state in containers]
    return jobs.JobStatus(
        job=record.uid,
        owner=meta.owner,
        namespace=meta.namespace,
        name=meta.name,
        job_id=record.job_id or record.started_job,
        phase=phase,
        gang="" if meta.place is None else meta.place.gang,
        missing=phase != "ended" and record.waiter.started and batch is not None and batch.phase == "missing",
        outcome=outcome,
        asks=asks(record) if phase == "queued" else "",
        unused=phase == "ended" and is_unused(record, now, lag),
        reason=reason,
        message=message,
        host=_text(pod, "host") or (batch.host if batch else ""),
        ip=_text(pod, "ip"),
        submitted_at=meta.submitted_at,
        started_at=(_number(pod, "startedAt") if pod.get("phase") != ASKING else None)
        or (batch.started_at if batch and phase != "queued" else None),
        ended_at=None if phase != "ended" else _number(pod, "finishedAt") or _ended_at(record),
        containers=containers,
    )


def _progress(record: JobRecord, now: float, has_ended: bool) -> tuple[Phase, Outcome, str, str]:
    """Return phase, outcome, reason and message. The script's record overrides that of the batch system."""
    batch = record.batch
    if record.final:
        return ("running", "", "", "") if awaits_reason(record, now) else ("ended", *_result(record))
    if has_ended:
        return ("ended", "Failed", *_why(record))
    if waits_for_grant(record):
        reason = "Cancelling" if record.cancel else jobs.GRANTED if record.waiter.grant else "AwaitingGrant"
        return "queued", "", reason, ""
    if record.started:
        return "running", "", "", ""
    if record.cancel is not None:
        return "queued", "", "Cancelling", ""
    if batch is not None:
        return (
            ("queued", "", batch.reason, batch.message) if batch.phase == "queued" else ("queued", "", "Starting", "")
        )
    return "queued", "", "" if record.job_id else "Submitting", ""


def _result(record: JobRecord) -> tuple[Outcome, str, str]:
    """Return outcome, reason and message of a script that has recorded its end."""
    pod, batch = record.pod or {}, record.batch
    if pod.get("phase") == "Succeeded":
        return "Succeeded", _text(pod, "reason"), _text(pod, "message")
    if _text(pod, "reason") in OUTSIDE and batch and batch.phase == "ended" and not batch.by_itself:
        return ("Failed", *_why(record))
    return "Failed", _text(pod, "reason"), _text(pod, "message")


def is_over(record: JobRecord, now: float, lag: float) -> bool:
    """Return whether the job is over: its own record says so, or the batch system has for ``lag`` seconds."""
    if record.final:
        return True
    batch = record.batch
    if batch is None or batch.phase != "ended":
        return False
    if not record.started and (record.cancel is not None or (not batch.by_itself and batch.started_at is None)):
        # a job that was cancelled while it waited wrote nothing, and the output of a deleted one is not needed
        return True
    return 0 < record.batch_at <= now - lag


def waits_for_grant(record: JobRecord) -> bool:
    """Return whether the script has started, but not recorded a grant yet."""
    waiter = record.waiter
    if record.meta.grant_wait is None or not waiter.started:
        return False
    return (waiter.pod or {}).get("phase") in (None, ASKING)


def is_unused(record: JobRecord, now: float, lag: float) -> bool:
    """Return whether the job of a pod that races is over and has started no container: it had no grant."""
    return has_no_grant(record) and is_over(record, now, lag)


def is_replaceable(record: JobRecord, grant_wait: float | None, now: float, lag: float) -> bool:
    """Return whether a submission with ``grant_wait`` replaces a job, because its script has ended without a grant.

    The pod of a cancelled job is gone or elsewhere, so a submission without a wait is a late one. The pod of a
    withdrawn place may be bound here later.
    """
    cancel = record.cancel
    if cancel is not None and not cancel.withdrawn and (cancel.forget or grant_wait is None):
        return False
    return is_unused(record, now, lag)


def has_no_grant(record: JobRecord) -> bool:
    """Return whether the job needs a grant, and its script has started no container because it had none yet.

    A script removes its ticket from its record when it begins. A script that was killed with a grant on disk may have
    started a container, so it does not count.
    """
    if record.meta.grant_wait is None:
        return False
    waiter = record.waiter
    pod = waiter.pod or {}
    return bool(pod.get("ticket")) if waiter.final else pod.get("phase") in (None, ASKING) and not waiter.grant


def asks(record: JobRecord) -> str:
    """Return the ticket that waits for a grant; empty if none does, or if it has its grant or is to end."""
    pod, batch = record.waiter.pod or {}, record.batch
    ticket = _text(pod, "ticket")
    ends = record.cancel is not None or (batch is not None and batch.phase in ("ended", "missing"))
    if not waits_for_grant(record) or ends or record.grant == ticket or not re.fullmatch(TICKET_PATTERN, ticket):
        return ""
    return ticket


def awaits_reason(record: JobRecord, now: float) -> bool:
    """Return whether a signal from outside ended the script, and the batch system has not reported the cause yet."""
    pod = record.pod or {}
    return (
        not record.end_confirmed
        and pod.get("reason") == SIGNALLED
        and now < max(_number(pod, "finishedAt") or 0, record.found_at) + AWAIT_REASON
    )


def _why(record: JobRecord) -> tuple[str, str]:
    batch = record.batch
    if batch is None:
        return LOST, ""
    if record.cancel is not None and batch.reason in ("", job_ends.CANCELLED.site_reason, LOST):
        return "Deleted", batch.message
    if not batch.by_itself:
        return batch.reason or LOST, batch.message
    code = "" if batch.exit_code is None else f" (exit code {batch.exit_code})"
    if not record.started:
        return NEVER_RAN, f"the batch job ended{code} before its script started: {batch.message or 'see script.log'}"
    words = f": {batch.message}" if batch.message else ""
    return LOST, f"the batch job ended{code}, but its script recorded no result{words}"


def _ended_at(record: JobRecord) -> float | None:
    batch = record.batch
    if batch is None or batch.phase != "ended":
        return None
    return batch.ended_at or record.batch_at or None


def _as_killed(state: jobs.ContainerState, reason: str, at: float | None) -> jobs.ContainerState:
    """Return the state of a container whose script was killed, as a kubelet reports a container that it killed."""
    if state.state != "running":
        return state
    ended = jobs.Termination(
        exit_code=KILLED,
        signal=9,
        reason=reason if reason in CONTAINER_REASONS else "Error",
        message="" if reason in CONTAINER_REASONS else reason,
        started_at=state.started_at,
        finished_at=at,
    )
    return replace(state, state="terminated", reason="", ended=ended, ready=False)


# --- the script's records: the user's code runs on the same machine and can change them, so each value is checked -----
def _container(name: str, content: Mapping[str, Any], messages: Mapping[str, str], most: int) -> jobs.ContainerState:
    """Return the state of a container, with at most ``most`` characters in each text."""
    state, message = content.get("state"), messages.get(name, "")[:most]
    ended = _ended(content.get("ended"), message, most)
    # while a container waits for its restart, the run that has ended is the last one too
    previous = message if content.get("last") == content.get("ended") else messages.get(f"{name}.previous", "")[:most]
    if state == "terminated" and ended is None:
        ended = jobs.Termination(exit_code=KILLED, reason="Error", message=message)
    return jobs.ContainerState(
        name=name,
        state=state if state in ("waiting", "running", "terminated") else "waiting",
        reason=_text(content, "reason", most),
        message=_text(content, "message", most),
        started_at=_number(content, "startedAt"),
        ended=ended,
        restarts=max(0, _integer(content, "restarts")),
        started=content.get("started") is True,
        ready=content.get("ready") is True,
        last=_ended(content.get("last"), previous, most),
        occurrences=_occurrences(content.get("occurrences"), most),
    )


def _occurrences(entries: object, most: int) -> tuple[jobs.Occurrence, ...]:
    number = jobs.MOST_OCCURRENCES if most >= 512 else 1
    most //= number
    return tuple(
        jobs.Occurrence(
            reason=_text(entry, "reason", most),
            message=_text(entry, "message", most),
            count=max(1, _integer(entry, "count", 1)),
            at=_number(entry, "at"),
        )
        for entry in (entries[:number] if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    )


def _ended(content: object, message: str, most: int) -> jobs.Termination | None:
    if not isinstance(content, dict):
        return None
    return jobs.Termination(
        exit_code=_integer(content, "exitCode", KILLED),
        signal=_integer(content, "signal"),
        reason=_text(content, "reason", most),
        message=message,
        started_at=_number(content, "startedAt"),
        finished_at=_number(content, "finishedAt"),
    )


def _text(content: Mapping[str, Any], key: str, most: int = jobs.LONGEST_TEXT) -> str:
    value = content.get(key)
    return value[: min(most, jobs.LONGEST_TEXT)] if isinstance(value, str) else ""


def _number(content: Mapping[str, Any], key: str) -> float | None:
    value = content.get(key)
    return float(value) if isinstance(value, int | float) and 0 < value < LATEST else None


def _integer(content: Mapping[str, Any], key: str, otherwise: int = 0) -> int:
    value = content.get(key)
    return value if isinstance(value, int) and abs(value) < 2**31 else otherwise
