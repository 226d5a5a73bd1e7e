"""What one poll knows, asks and learns: plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bridge.slurm.identity import Identity
from bridge.slurm.models import Job, JobLink, Node, Partition, Snapshot

CONFIRMATIONS = 2

States = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Expected:
    """A job that should be there, and the monotonic time since when.

    ``sure``: this process has just submitted it. Else its details must prove that it is ours.
    """

    link: JobLink
    since: float
    sure: bool = True


@dataclass(frozen=True, slots=True)
class PollState:
    """What one poll leaves to the next.

    ``listed`` are all jobs of the last list in the states they had there. ``detailed`` is, for each job of ours, the
    sequence in which its details were last read; without, they never were. ``foreign`` are the jobs of others.
    ``changed_at`` is slurmctld's time before which every change is in the view (``update_time``).
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    listed: States = field(default_factory=dict)
    detailed: Mapping[int, int] = field(default_factory=dict)
    foreign: Mapping[int, Identity] = field(default_factory=dict)
    changed_at: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """What slurmctld has said in one poll that began at the monotonic time ``began``.

    ``started`` are jobs of ours of which only the nodes were read. ``nodes`` and ``partitions`` are ``None`` where they
    were not asked for.
    """

    began: float
    states: States
    details: Mapping[int, Job] = field(default_factory=dict)
    unknown: Collection[int] = ()
    started: Mapping[int, Job] = field(default_factory=dict)
    nodes: Mapping[str, Node] | None = None
    partitions: Mapping[str, Partition] | None = None
