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

from bridge import job_ends
from bridge.job_ends import End


class Phase(Enum):
    """The meaning of a job's states for its pods."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    ENDED = "ended"
    BETWEEN = "between"
    """Between two phases, or suspended: no pod is bound and no pod is terminated."""


@dataclass(frozen=True, slots=True)
class JobState:
    """One row: the phase, and how the job ended if it is over."""

    phase: Phase
    end: End | None = None

    @property
    def reason(self) -> str:
        """The reason of the end; empty without one."""
        return self.end.reason if self.end is not None else ""


def _end(end: End) -> JobState:
    return JobState(Phase.ENDED, end)


BASE_STATES: dict[str, JobState] = {
    "PENDING": JobState(Phase.PENDING),
    "RUNNING": JobState(Phase.ALLOCATED),
    "SUSPENDED": JobState(Phase.BETWEEN),
    "COMPLETED": _end(job_ends.COMPLETED),
    "CANCELLED": _end(job_ends.CANCELLED),
    "FAILED": _end(job_ends.FAILED),
    "TIMEOUT": _end(job_ends.TIME_LIMIT),
    "NODE_FAIL": _end(job_ends.NODE_FAIL),
    "PREEMPTED": _end(job_ends.PREEMPTED),
    "BOOT_FAIL": _end(job_ends.BOOT_FAIL),
    "DEADLINE": _end(job_ends.DEADLINE),
    "OUT_OF_MEMORY": _end(job_ends.OUT_OF_MEMORY),
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
    "REVOKED": _end(job_ends.REVOKED),
}

LEAVING = frozenset({"COMPLETING", "STAGE_OUT", "LAUNCH_FAILED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"})
"""With one of these flags, a RUNNING job is about to end: no pod is bound to it."""


@lru_cache(maxsize=1024)  # thousands of jobs have a dozen combinations
def _row(states: frozenset[str]) -> JobState:
    # together with PENDING: another cluster of the federation has started the job
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
    return _row(frozenset(states)).end


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
