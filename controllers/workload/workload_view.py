"""The data that the decision of the workload controller depends on, and its result. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.control.brake import Brake
from bridge.slurm.models import ObservedJob, Snapshot
from controllers.workload.workload_actions import Action, Pod


@dataclass(frozen=True, slots=True)
class Displaced:
    """A bound pod whose job is pending again, runs on another node, or has another pod's comment.

    ``answers`` counts the different snapshots that showed it so; ``sequence`` is the sequence of the last one.
    """

    sequence: int
    answers: int


class Waiting(NamedTuple):
    """A pod that is not bound, and its live job: while both are the same objects, there is nothing to do for them."""

    pod: Pod
    observed: ObservedJob
    key: str


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """All data that a decision depends on.

    ``slurm_names`` maps the names of all Kubernetes nodes except virtual ones to their names in Slurm. ``silent`` holds
    the nodes that are not Ready, ``virtual`` the virtual nodes. ``displaced`` and ``waiting`` are those of the last
    decision, by UID. No pod is terminated for a missing job unless ``brake`` allows it; ``None``: there is no brake.
    ``expected`` holds the jobs that the poller will read in any case. ``max_grace`` is the maximum grace period, in
    seconds, of a pod whose job is over.
    """

    pods: Iterable[Pod]
    snapshot: Snapshot
    slurm_names: Mapping[str, str]
    displaced: Mapping[str, Displaced] = field(default_factory=dict)
    silent: Set[str] = frozenset()
    virtual: Set[str] = frozenset()
    brake: Brake | None = None
    expected: Set[int] = frozenset()
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    max_grace: float = 300


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a decision; ``displaced`` and ``waiting`` go into the next view."""

    actions: list[Action]
    displaced: Mapping[str, Displaced]
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
