"""Input and output of HTCondor's commands. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bridge import job_ends
from bridge.errors import BatchError
from bridge.protocol.model.identifiers import UID_PATTERN
from bridge.site.batch.batch_interface import BatchJob, Phase

UID = "PodbridgeUid"
"""Attribute of a job: the pod's UID."""
ATTRIBUTES = (
    "ClusterId", "ProcId", UID, "JobUniverse", "JobStatus", "LastJobStatus", "HoldReason", "HoldReasonCode",
    "RemoveReason", "ExitCode", "ExitSignal", "ExitBySignal", "RemoteHost", "LastRemoteHost", "JobStartDate",
    "JobCurrentStartDate", "CompletionDate", "EnteredCurrentStatus", "NumJobStarts",
)  # fmt: skip
SLOT_ATTRIBUTES = (
    "Name", "Machine", "SlotType", "PartitionableSlot", "DynamicSlot", "State", "Cpus", "Memory", "GPUs",
    "TotalSlotCpus", "TotalSlotMemory", "TotalSlotGPUs",
)  # fmt: skip
PARALLEL, SECOND_RUN = 11, 113
"""``JobUniverse`` of a job on several machines; exit code of its command if the job has run before."""
NOT_ACTIVATED = 1006
"""``VacateReasonCode`` of a job that could not be started on one of its machines."""
# in the directory of the pod; without quotes, which the words of submit files would have to double
_COMMAND = "exec bash ./job.sh >>script.log 2>&1"
# a schedd runs a job of the parallel universe again, at once, if it has lost one of its machines
_PARALLEL_COMMAND = (
    "((_CONDOR_PROCNO == 0)) || exec bash ./job.sh machine $_CONDOR_PROCNO >>script.log 2>&1;"
    f" [[ ! -e started ]] || exit {SECOND_RUN}; {_COMMAND}"
)
_SCHEDD = re.compile(r"^-- Schedd: (\S+) : <", re.MULTILINE)
_UID = re.compile(UID_PATTERN)
_PHASES: dict[int, Phase] = {1: "queued", 2: "running", 3: "ended", 4: "ended", 5: "queued", 6: "running", 7: "running"}
"""JobStatus: idle, running, removed, completed, held, transferring output, suspended."""
_HOLDS = {34: job_ends.OUT_OF_MEMORY, 46: job_ends.TIME_LIMIT, 47: job_ends.TIME_LIMIT}
"""HoldReasonCode; any other is :data:`bridge.job_ends.HELD`."""
HELD_REASONS = frozenset(end.site_reason for end in (job_ends.HELD, *_HOLDS.values()))


def order(job_id: str) -> list[int]:
    """Return the sort key of a job's id, ``<cluster>.<process>``: both parts by value."""
    return [int(number) for number in re.findall("[0-9]+", job_id)]


def value(text: str) -> str:
    """Return a value for a submit file, in which ``$`` begins a macro."""
    if "\n" in text or "\r" in text:
        raise BatchError(f"{text!r} has more than one line")
    return text.replace("$", "$(DOLLAR)")


def arguments(*, is_parallel: bool) -> str:
    """Return the arguments of bash, which each job runs, in the new syntax of submit files."""
    return f"\"-c '{value(_PARALLEL_COMMAND if is_parallel else _COMMAND)}'\""


def string(text: str) -> str:
    """Return a ClassAd string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def environment(variables: Mapping[str, str]) -> str:
    """Return variables in the new syntax of submit files, in which quotes are doubled."""
    words = []
    for name, content in variables.items():
        quoted = content.replace('"', '""').replace("'", "''")
        words.append(f"{name}='{quoted}'")
    return '"' + value(" ".join(words)) + '"'


def jobs(output: str, *, held_ends: bool = True) -> list[BatchJob]:
    """Read the JSON of condor_q or condor_history; an empty answer means no jobs.

    A job that is removed or held may run on for its grace period, or while its machine is cut off: it is ``running`` as
    long as it has a RemoteHost, which the schedd renames to LastRemoteHost when the shadow has ended.
    """
    return [job for ad in _ads(output) if (job := _job(ad, held_ends)) is not None]


def _ads(output: str) -> list[dict[str, Any]]:
    if not output.strip():
        return []
    try:
        answer = json.loads(output)
    except ValueError as error:
        raise BatchError(f"HTCondor's answer is no JSON: {output[:200]!r}", retryable=True) from error
    return [ad for ad in answer if isinstance(ad, dict)] if isinstance(answer, list) else []


def _job(ad: Mapping[str, Any], held_ends: bool) -> BatchJob | None:
    uid, status = ad.get(UID), ad.get("JobStatus")
    if not isinstance(uid, str) or not _UID.fullmatch(uid) or status not in _PHASES:
        return None
    phase = _PHASES[status]
    reason = message = ""
    exit_code: int | None = None
    if status == 5:
        reason = _why_held(ad)
        message = str(ad.get("HoldReason", ""))
        phase = "ended" if held_ends else "queued"
    elif _ran_again(ad):
        reason, message = job_ends.NODE_FAIL.site_reason, "HTCondor lost a machine of the job"
    elif status == 3:
        message = str(ad.get("RemoveReason", ""))
        reason = _why_removed(ad, message)
    elif status == 4 and not ad.get("ExitBySignal"):
        exit_code = _integer(ad, "ExitCode")
    elif status == 7:
        reason = "Suspended"
    if status in (3, 5) and ad.get("RemoteHost"):
        phase = "running"
    ended = phase == "ended"
    return BatchJob(
        id=f"{ad.get('ClusterId')}.{ad.get('ProcId')}",
        uid=uid,
        phase=phase,
        reason=reason,
        message=message,
        exit_code=exit_code,
        signal=(_integer(ad, "ExitSignal") or 0) if ad.get("ExitBySignal") else 0,
        host=_machine(ad.get("RemoteHost") or ad.get("LastRemoteHost")),
        started_at=_moment(ad, "JobCurrentStartDate") or _moment(ad, "JobStartDate"),
        ended_at=(_moment(ad, "CompletionDate") or _moment(ad, "EnteredCurrentStatus")) if ended else None,
        by_itself=status == 4 and not _ran_again(ad),
    )


def _ran_again(ad: Mapping[str, Any]) -> bool:
    """Return whether a job of the parallel universe ended because it had lost a machine, and was run again.

    The second run ends at once. Its shadow may miss the exit code; the schedd then removes the job without a reason.
    """
    if ad.get("JobUniverse") != PARALLEL:
        return False
    status = ad.get("JobStatus")
    return (status == 4 and ad.get("ExitCode") == SECOND_RUN) or (status == 3 and not ad.get("RemoveReason"))


def _why_removed(ad: Mapping[str, Any], why: str) -> str:
    """Return why a job was removed: by its own PeriodicRemove (see the submit file), by podbridge, or by a person."""
    if "PeriodicRemove" in why:
        return (job_ends.TIME_LIMIT if ad.get("LastJobStatus") == 2 else job_ends.NODE_FAIL).site_reason
    if "held: podbridge ends it" in why:
        return _why_held(ad)
    return job_ends.CANCELLED.site_reason


def _why_held(ad: Mapping[str, Any]) -> str:
    return _HOLDS.get(ad.get("HoldReasonCode", 0), job_ends.HELD).site_reason


def _integer(ad: Mapping[str, Any], name: str) -> int | None:
    value = ad.get(name)
    return value if isinstance(value, int) else None


def _moment(ad: Mapping[str, Any], name: str) -> float | None:
    value = ad.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _machine(slot: object) -> str:
    """Return the machine of ``slot1_2@node7.example``."""
    return slot.rpartition("@")[2] if isinstance(slot, str) else ""


def schedd_name(output: str) -> str:
    """Return the name of the schedd that has answered ``condor_q -totals``."""
    match = _SCHEDD.search(output)
    if match is None:
        raise BatchError(f"condor_q names no schedd: {output[:200]!r}", retryable=True)
    return match[1]


def has_slots(output: str) -> bool:
    """Return whether condor_status lists a slot."""
    return bool(_ads(output))


def slots(output: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sums of all slots and of what is free: CPUs, MiB, GPUs.

    ``Cpus`` of a partitionable slot is the free part of its ``TotalSlotCpus``, which includes its dynamic slots.
    """
    total = {"Cpus": 0, "Memory": 0, "GPUs": 0, "TotalGPUs": 0}
    free = dict(total)
    for ad in _ads(output):
        if ad.get("DynamicSlot") or ad.get("SlotType") == "Dynamic":
            continue
        whole = bool(ad.get("PartitionableSlot")) or ad.get("SlotType") == "Partitionable"
        usable = ad.get("State") not in ("Owner", "Drained")
        for name in ("Cpus", "Memory", "GPUs"):
            now = _integer(ad, name) or 0
            size = (_integer(ad, f"TotalSlot{name}") or now) if whole else now
            if usable:
                total[name] += size
                free[name] += now if whole or ad.get("State") == "Unclaimed" else 0
    total["TotalGPUs"] = free["TotalGPUs"] = total["GPUs"]
    return total, free
