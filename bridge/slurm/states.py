"""Every state that Slurm gives to a job or a node, in one table each.

A job has one base state and any number of flags beside it, e.g. ``{"RUNNING", "CONFIGURING"}``. Before v0.0.40 the API
tells one word only, and a flag hides the base state: ``{"COMPLETING"}`` may be the end of anything. So a flag has a
phase of its own, which counts where no base state stands beside it. A state that is not in the tables (a newer
Slurm's) neither binds nor ends anything.

The names are those of the OpenAPI documents that Slurm 22.05, 24.11 and 26.05 serve.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Phase(Enum):
    """What a job's state means to the pods that wait for it or live in it."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    ENDED = "ended"
    BETWEEN = "between"
    """On its way, or held still: nothing may be bound and nothing ended."""


@dataclass(frozen=True, slots=True)
class JobState:
    """One row: the phase and, for an end, the pod's reason and a sentence."""

    phase: Phase
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended: a CamelCase reason for the pod and its Event, and a sentence for people."""

    reason: str
    text: str


def _end(reason: str, text: str) -> JobState:
    return JobState(Phase.ENDED, reason, text)


BASE_STATES: dict[str, JobState] = {
    "PENDING": JobState(Phase.PENDING),
    "RUNNING": JobState(Phase.ALLOCATED),
    "SUSPENDED": JobState(Phase.BETWEEN),
    "COMPLETED": _end("JobCompleted", "the Slurm job completed"),
    "CANCELLED": _end("Cancelled", "the Slurm job was cancelled"),
    "FAILED": _end("JobFailed", "the Slurm job failed"),
    "TIMEOUT": _end("TimeLimit", "the Slurm job reached its time limit"),
    "NODE_FAIL": _end("NodeFail", "a node of the Slurm job failed"),
    "PREEMPTED": _end("Preempted", "the Slurm job was preempted by another one"),
    "BOOT_FAIL": _end("BootFail", "a node of the Slurm job did not boot"),
    "DEADLINE": _end("Deadline", "the Slurm job could not end before its deadline"),
    "OUT_OF_MEMORY": _end("OutOfMemory", "the Slurm job used more memory than it asked for"),
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
    "REVOKED": _end("Revoked", "the Slurm job was revoked: another cluster of the federation runs it"),
}

LEAVING = frozenset({"COMPLETING", "STAGE_OUT", "LAUNCH_FAILED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"})
"""With one of these beside it, RUNNING is about to be over: nothing is bound any more."""


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
    """Say what a job's states mean together."""
    return _row(frozenset(states)).phase


def is_pending(states: Set[str]) -> bool:
    """Whether the job waits for room (held and requeued ones do as well)."""
    return phase(states) is Phase.PENDING


def is_allocated(states: Set[str]) -> bool:
    """Whether the job has its nodes and keeps them: its pods may be bound."""
    return phase(states) is Phase.ALLOCATED


def end_of(states: Set[str]) -> End | None:
    """Say how the job ended; ``None`` while it has not. ``{"CANCELLED", "COMPLETING"}`` has."""
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
    "UNKNOWN": False,
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
"""Whether Slurm may give the node to somebody's job, now or after waking it. Reserved nodes and those in maintenance go
to the jobs of their reservation; NOT_RESPONDING passes by itself, or becomes DOWN."""


ASLEEP = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWER_UP", "POWERING_UP"})
"""Slurm's power saving has stopped the machine, stops it, or starts it."""


def is_asleep(states: Set[str]) -> bool:
    """Whether Slurm's power saving keeps the node down and a job would wake it, or it is being started."""
    return not is_drained(states) and not ASLEEP.isdisjoint(states)


def is_drained(states: Set[str]) -> bool:
    """Whether Slurm would give the node to nobody: drained, draining, down or failing. Unknown states don't count."""
    return any(NODE_STATES.get(name) is False for name in states)
