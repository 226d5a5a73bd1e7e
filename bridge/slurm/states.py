"""The states of jobs and nodes in Slurm: one table each.

A job has one base state and any number of flags, e.g. ``{"RUNNING", "CONFIGURING"}``. Before v0.0.40 the API returns
one word only, and a flag hides the base state: ``{"COMPLETING"}`` may be the end of any job. So each flag has a phase
of its own, which counts if there is no base state. With a state that is not in the tables (of a newer Slurm), podbridge
neither binds nor terminates a pod.

The names are those of the OpenAPI documents that Slurm 22.05, 24.11 and 26.05 serve.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Phase(Enum):
    """The meaning of a job's states for its pods."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    ENDED = "ended"
    BETWEEN = "between"
    """Between two phases, or suspended: no pod is bound and no pod is terminated."""


@dataclass(frozen=True, slots=True)
class JobState:
    """One row: the phase and, for an end, the fields of :class:`End`."""

    phase: Phase
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job: a CamelCase reason for the pod and its Event, and a predicate, to follow ``Slurm job 14``."""

    reason: str
    text: str


def _end(reason: str, text: str) -> JobState:
    return JobState(Phase.ENDED, reason, text)


BASE_STATES: dict[str, JobState] = {
    "PENDING": JobState(Phase.PENDING),
    "RUNNING": JobState(Phase.ALLOCATED),
    "SUSPENDED": JobState(Phase.BETWEEN),
    "COMPLETED": _end("JobCompleted", "completed"),
    "CANCELLED": _end("Cancelled", "was cancelled"),
    "FAILED": _end("JobFailed", "failed"),
    "TIMEOUT": _end("TimeLimit", "was terminated because it reached its time limit"),
    "NODE_FAIL": _end("NodeFail", "was terminated because one of its nodes failed"),
    "PREEMPTED": _end("Preempted", "was preempted by another job"),
    "BOOT_FAIL": _end("BootFail", "was terminated because one of its nodes did not boot"),
    "DEADLINE": _end("Deadline", "was terminated because it could not complete before its deadline"),
    "OUT_OF_MEMORY": _end("OutOfMemory", "was terminated because it used more memory than it requested"),
}

FLAGS: dict[str, JobState] = {
    "CONFIGURING": JobState(Phase.ALLOCATED),
    "POWER_UP_NODE": JobState(Phase.ALLOCATED),
    "RESIZING": JobState(Phase.ALLOCATED),
    "SIGNALING": JobState(Phase.ALLOCATED),
    "STOPPED": JobState(Phase.ALLOCATED),
    "EXPEDITING": JobState(Phase.PENDING),
    "COMPLETING": JobState(Phase.BETWEEN),
    "STAGE_OUT": JobState(Phase.BETWEEN),
    "LAUNCH_FAILED": JobState(Phase.BETWEEN),
    "RECONFIG_FAIL": JobState(Phase.BETWEEN),
    "REQUEUED": JobState(Phase.PENDING),
    "REQUEUE_HOLD": JobState(Phase.PENDING),
    "REQUEUE_FED": JobState(Phase.PENDING),
    "RESV_DEL_HOLD": JobState(Phase.PENDING),
    "SPECIAL_EXIT": JobState(Phase.PENDING),
    "REVOKED": _end("Revoked", "was revoked because another cluster of the federation runs it"),
}

LEAVING = frozenset({"COMPLETING", "STAGE_OUT", "LAUNCH_FAILED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"})
"""With one of these flags, a RUNNING job is about to end: no pod is bound to it."""


@lru_cache(maxsize=1024)  # thousands of jobs have a dozen combinations
def _row(states: frozenset[str]) -> JobState:
    if "REVOKED" in states:
        return FLAGS["REVOKED"]
    bases = [BASE_STATES[name] for name in sorted(states) if name in BASE_STATES]
    if len(bases) == 1:
        if bases[0].phase is Phase.ALLOCATED and not LEAVING.isdisjoint(states):
            return JobState(Phase.BETWEEN)
        return bases[0]
    if not bases and states and all(name in FLAGS for name in states):
        phases = {FLAGS[name].phase for name in states}
        if len(phases) == 1:
            return JobState(phases.pop())
    return JobState(Phase.BETWEEN)


def phase(states: Set[str]) -> Phase:
    """Return the phase of a job with these states."""
    return _row(frozenset(states)).phase


def is_pending(states: Set[str]) -> bool:
    """Whether the job is pending; also true for held and requeued jobs."""
    return phase(states) is Phase.PENDING


def is_allocated(states: Set[str]) -> bool:
    """Whether the job is allocated and keeps its nodes: its pods may be bound."""
    return phase(states) is Phase.ALLOCATED


def end_of(states: Set[str]) -> End | None:
    """Return how the job ended, ``None`` if it has not ended. ``{"CANCELLED", "COMPLETING"}`` has ended."""
    row = _row(frozenset(states))
    return End(row.reason, row.text) if row.phase is Phase.ENDED else None


NODE_STATES: dict[str, bool] = {
    # base states
    "IDLE": True,
    "ALLOCATED": True,
    "MIXED": True,
    "DOWN": False,
    "ERROR": False,
    "FUTURE": False,
    "UNKNOWN": True,
    "INVALID": False,
    # flags
    "DRAIN": False,
    "FAIL": False,
    "INVALID_REG": False,
    "BLOCKED": False,
    "POWER_DRAIN": False,
    "POWER_DOWN_ASAP": False,
    "POWER_DOWN_FORCE": False,
    "REBOOT_ISSUED": False,
    "EXTERNAL": True,
    "CLOUD": True,
    "DYNAMIC_NORM": True,
    "DYNAMIC_FUTURE": True,
    "COMPLETING": True,
    "PLANNED": True,
    "RESERVED": True,
    "RES": True,
    "MAINTENANCE": True,
    "NOT_RESPONDING": True,
    "REBOOT_REQUESTED": True,
    "REBOOT_CANCELED": True,
    "POWER_DOWN": True,
    "POWER_UP": True,
    "POWERED_DOWN": True,
    "POWERING_DOWN": True,
    "POWERING_UP": True,
    "UNDRAIN": True,
    "RESUME": True,
}
"""Whether Slurm may allocate the node to a job, now or after starting it. Slurm allocates reserved nodes and nodes in
maintenance to the jobs of their reservation. NOT_RESPONDING ends by itself, or becomes DOWN. UNKNOWN is an idle node
after a restart of slurmctld, for some seconds until its slurmd has registered (seen on 22.05, 24.11 and 26.05)."""


ASLEEP = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWER_UP", "POWERING_UP"})
"""States of a node that Slurm's power saving has stopped, is stopping or is starting."""


def is_asleep(states: Set[str]) -> bool:
    """Whether Slurm's power saving keeps the node down until a job needs it, or is starting it."""
    return not is_drained(states) and not ASLEEP.isdisjoint(states)


def is_starting(states: Set[str]) -> bool:
    """Whether the node has jobs that wait for Slurm's power saving to start it. A drain would end these jobs."""
    # POWER_DOWN alone: Slurm stops the node after its jobs have ended, and they run
    return not (ASLEEP - {"POWER_DOWN"}).isdisjoint(states) and not {"ALLOCATED", "MIXED"}.isdisjoint(states)


def is_drained(states: Set[str]) -> bool:
    """Whether Slurm allocates the node to no job: it is drained, draining, down or failing. Ignores unknown states."""
    return any(NODE_STATES.get(name) is False for name in states)
