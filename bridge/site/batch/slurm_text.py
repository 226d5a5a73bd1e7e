"""Output of Slurm's commands, and one table of all job states. Pure.

``squeue`` prints one word for a job's state: a flag, such as COMPLETING, hides the state beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace

from bridge import gres_text, job_ends
from bridge.job_ends import End
from bridge.protocol.model.identifiers import UID_PATTERN
from bridge.site.batch.array_files import Arrays, no_arrays
from bridge.site.batch.batch_interface import NAME_PREFIX, Amount, BatchJob, Phase

FORMAT = "%i|%T|%N|%S|%e|%j|%r"
SACCT_FORMAT = "JobID,State,NodeList,Start,End,JobName,ExitCode"
SINFO_FORMAT = "NodeList:|,CPUsState:|,Memory:|,AllocMem:|,Gres:|,GresUsed:|,StateLong:|,Partition:|"
MIB = 2**20
Naming = Callable[[str], str | None]
_UID = re.compile(UID_PATTERN)
_CANCELLED_BY = re.compile(r"CANCELLED by (\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlurmState:
    """One row: the phase of a word, the pod's reason, and for an end from outside a predicate of the job."""

    phase: Phase
    reason: str = ""
    text: str = ""
    by_itself: bool = False


def _end(end: End) -> SlurmState:
    return SlurmState("ended", end.site_reason, end.text)


STATES: dict[str, SlurmState] = {
    # states
    "PENDING": SlurmState("queued"),
    "RUNNING": SlurmState("running"),
    "SUSPENDED": SlurmState("running", "Suspended"),
    "COMPLETED": SlurmState("ended", by_itself=True),
    "FAILED": SlurmState("ended", by_itself=True),
    "CANCELLED": _end(job_ends.CANCELLED),
    "TIMEOUT": _end(job_ends.TIME_LIMIT),
    "NODE_FAIL": _end(job_ends.NODE_FAIL),
    "PREEMPTED": _end(job_ends.PREEMPTED),
    "BOOT_FAIL": _end(job_ends.BOOT_FAIL),
    "DEADLINE": _end(job_ends.DEADLINE),
    "OUT_OF_MEMORY": _end(job_ends.OUT_OF_MEMORY),
    "REVOKED": _end(job_ends.REVOKED),
    # flags
    "CONFIGURING": SlurmState("running"),
    "COMPLETING": SlurmState("running"),
    "EXPEDITING": SlurmState("queued"),
    "LAUNCH_FAILED": SlurmState("running"),
    "POWER_UP_NODE": SlurmState("running"),
    "RECONFIG_FAIL": SlurmState("running"),
    "REQUEUED": SlurmState("queued", "Requeued"),
    "REQUEUE_FED": SlurmState("queued", "Requeued"),
    "REQUEUE_HOLD": SlurmState("queued", "RequeueHold"),
    "RESIZING": SlurmState("running"),
    "RESV_DEL_HOLD": SlurmState("queued", "ReservationDeleted"),
    "SIGNALING": SlurmState("running"),
    "SPECIAL_EXIT": SlurmState("queued", "RequeueHold"),
    "STAGE_OUT": SlurmState("running"),
    "STOPPED": SlurmState("running", "Stopped"),
    "UPDATE_DB": SlurmState("running"),
}

_OTHER = SlurmState("running")
"""For a word of a newer Slurm: it neither starts nor ends a job."""


def state(word: str) -> SlurmState:
    """Return the row of a word. sacct prints ``CANCELLED by 1000``."""
    return STATES.get(word.strip().rstrip("+").split(" ")[0], _OTHER)


Names = Mapping[str, tuple[str, str]]
"""Batch id -> UID and name, of adopted jobs."""
_NONE: Names = {}
_TASKS = re.compile(r"(\d{1,10})_(?:(\d{1,7})|\[([0-9,:-]+)(?:%\d+)?\])", re.ASCII)
"""``123_4``, a job of an array; ``123_[0,4-9%5]``, those of its jobs that are pending, of which 5 may run at once."""
COMPONENT_ENDED = "ComponentEnded"
"""Reason of a heterogeneous job of which a component has ended: the others are to be cancelled."""
_COMPONENT = re.compile(r"(\d{1,10})\+(\d{1,4})", re.ASCII)
"""``123+1``, the second component of the heterogeneous job 123; the script runs in the first one."""
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def jobs(output: str, adopted: Names = _NONE, arrays: Arrays = no_arrays) -> Iterator[BatchJob]:
    """Read the output of squeue; lines of other jobs, and malformed ones, are left out."""
    rows = _Rows()
    for line in output.splitlines():
        fields = line.strip().split("|", 6)
        if len(fields) == 7:
            shown_id, word, hosts, start, end, shown_name, reason = fields
            for job_id, name in _own_names(shown_id, shown_name, adopted, arrays):
                job = _job(job_id, word, hosts, start, end, name, reason, None)
                if job is not None:
                    yield from rows.alone(shown_id, job)
    yield from rows.heterogeneous()


class _Rows:
    """Collects the components of heterogeneous jobs: each is a line of squeue and of sacct."""

    def __init__(self) -> None:
        self._components: dict[str, dict[int, BatchJob]] = {}

    def alone(self, shown_id: str, job: BatchJob) -> Iterator[BatchJob]:
        """Return the job of a line, unless this is a component."""
        match = _COMPONENT.fullmatch(shown_id)
        if match is None:
            yield job
        else:
            self._components.setdefault(job.id, {})[int(match[2])] = job

    def heterogeneous(self) -> Iterator[BatchJob]:
        """Return one job for all components of each heterogeneous job, if the first one is listed."""
        for by_offset in self._components.values():
            if 0 in by_offset:
                yield _whole([by_offset[offset] for offset in sorted(by_offset)])


def _whole(components: Sequence[BatchJob]) -> BatchJob:
    """Return the heterogeneous job, whose first component runs the script. It has ended once all components have.

    If another component ended before its script, for example with its node, the job ended for that reason.
    """
    first, ended = components[0], [each for each in components if each.phase == "ended"]
    if len(ended) == len(components):
        cause = min(components, key=lambda each: (each.ended_at or math.inf, each.by_itself))
        return first if cause.by_itself else replace(cause, host=first.host, started_at=first.started_at)
    if first.phase == "ended":
        return replace(first, phase="running", reason="", message="", ended_at=None, by_itself=False)
    return replace(first, reason=COMPONENT_ENDED) if ended else first


def _own_names(shown_id: str, name: str, adopted: Names, arrays: Arrays) -> Iterator[tuple[str, str]]:
    """Return the jobs of a line of squeue or sacct, with the names that podbridge would give to each."""
    if shown_id.isdigit():
        yield shown_id, _own_name(shown_id, name, adopted)
    elif component := _COMPONENT.fullmatch(shown_id):
        yield component[1], name
    elif name.startswith(NAME_PREFIX) and (tasks := _TASKS.fullmatch(shown_id)):
        array, base = name.removeprefix(NAME_PREFIX), tasks[1]
        for index in _indexes(tasks[2] or tasks[3]):
            uid = arrays(array, index)
            if uid:
                yield f"{base}_{index}", NAME_PREFIX + uid


def _indexes(text: str) -> Iterator[int]:
    """Read ``0,4-9,12-20:2``."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is not None:
            yield from range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))


def _own_name(job_id: str, name: str, adopted: Names) -> str:
    """Return the name that podbridge would have given to an adopted job, and every other name unchanged."""
    uid, plugin_name = adopted.get(job_id, ("", ""))
    return NAME_PREFIX + uid if uid and name == plugin_name else name


def past_jobs(
    output: str, user_name: Callable[[int], str] = str, adopted: Names = _NONE, arrays: Arrays = no_arrays
) -> Iterator[BatchJob]:
    """Read the output of sacct: jobs that have ended. ``user_name`` returns the name of a UID.

    ``CANCELLED`` without a user is left out: slurmdbd sets it for all open records when slurmctld starts without its
    state, so the job was lost and not cancelled.
    """
    rows = _Rows()
    for line in output.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 7 and fields[1] != "CANCELLED":
            shown_id, word, hosts, start, end, shown_name, code = fields
            by_match = _CANCELLED_BY.fullmatch(fields[1])
            by = f" by user {user_name(int(by_match[1]))}" if by_match else ""
            for job_id, name in _own_names(shown_id, shown_name, adopted, arrays):
                job = _job(job_id, word, hosts, start, end, name, "", code, by)
                if job is not None and job.phase == "ended":
                    yield from rows.alone(shown_id, job)
    yield from rows.heterogeneous()


def _job(
    job_id: str, word: str, hosts: str, start: str, end: str, name: str, reason: str, code: str | None, by: str = ""
) -> BatchJob | None:
    uid = name.removeprefix(NAME_PREFIX)
    if uid == name or not _UID.fullmatch(uid):
        return None
    row = state(word)
    placed = hosts not in ("", "(null)", "None assigned", "N/A")
    if row.by_itself and not placed:
        return None  # a submission that Slurm refuses leaves a FAILED job
    waiting = row.phase == "queued"
    exit_code, _, word = (code or "").partition(":")
    number = int(word) if word.isdigit() else 0
    message = ""
    if row.text:
        message = f"Slurm job {job_id} {row.text}{by}"
    elif waiting and reason not in ("", "None"):
        message = f"Slurm job {job_id} is pending: {reason}"
    elif number:
        message = f"the script of Slurm job {job_id} was terminated by signal {number}"
    return BatchJob(
        id=job_id,
        uid=uid,
        phase=row.phase,
        reason=row.reason or (_camel(reason) if waiting else ""),
        message=message,
        exit_code=int(exit_code) if exit_code.isdigit() and not number else None,
        signal=number,
        host=hosts if placed else "",
        started_at=_moment(start) if placed else None,
        ended_at=_moment(end) if row.phase == "ended" else None,
        by_itself=row.by_itself,
    )


def _camel(reason: str) -> str:
    """Return the first word of Slurm's reason for a pending job."""
    match = re.match(r"[A-Za-z][A-Za-z0-9_]*", reason)
    word = match[0] if match else ""
    return "" if word in ("None", "null") else word


def _moment(word: str) -> float | None:
    return float(word) if word.isdigit() and int(word) else None


# --- nodes ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One working node. ``extended`` of its amounts are generic resources by ``name`` or ``name:type``."""

    name: str
    total: Amount
    free: Amount


_BAD = ("down", "drain", "drng", "fail", "err", "futur", "unk", "inval", "blocked", "reboot", "powering_down")


def nodes(output: str, partitions: Set[str]) -> list[NodeInfo]:
    """Read the output of sinfo: each working node of the partitions once (no partition: the default one)."""
    nodes_by_name: dict[str, NodeInfo] = {}
    for line in output.splitlines():
        fields = [word.strip() for word in line.split("|")]
        if len(fields) < 8:
            continue
        name, cpus, memory, allocated, gres, used, word, partition = fields[:8]
        # sinfo marks the default partition with *
        is_selected = partition.rstrip("*") in partitions if partitions else partition.endswith("*")
        counts = [int(part) if part.isdigit() else 0 for part in cpus.split("/")]
        if not is_selected or name in nodes_by_name or len(counts) != 4 or _is_bad(word):
            continue
        busy, idle, _, _ = counts
        size, allocated_memory = _integer(memory) * MIB, _integer(allocated) * MIB
        total_gres, used_gres = gres_counts(gres), gres_counts(used)
        free_gres = {kind: max(0, count - used_gres.get(kind, 0)) for kind, count in total_gres.items()}
        nodes_by_name[name] = NodeInfo(
            name, Amount(busy + idle, size, total_gres), Amount(idle, max(0, size - allocated_memory), free_gres)
        )
    return list(nodes_by_name.values())


def _is_bad(word: str) -> bool:
    lower = word.lower()
    # * marks a node that does not respond; the other marks may follow it: see sinfo(1)
    return lower.rstrip("~#!%$@^+-").endswith("*") or lower.startswith(_BAD)


def _integer(word: str) -> int:
    return int(word) if word.isdigit() else 0


def gres_counts(written: str) -> dict[str, int]:
    """Count ``gpu:a100:4(S:0-1),gpu:2`` by name and type: ``{"gpu:a100": 4, "gpu": 2}``; skip what has another form."""
    counts: dict[str, int] = {}
    for part in gres_text.listed(written):
        with suppress(ValueError):
            gres = gres_text.read(part)
            counts[gres.kind] = counts.get(gres.kind, 0) + gres.count
    return counts
