"""The data of one poll: the state before it, the jobs that it should find, and the answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bridge.slurm.identity import Identity
from bridge.slurm.models import Job, JobLink, Node, Partition, Snapshot

States = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Expected:
    """A job that the next polls should find, since the monotonic time ``since``.

    ``sure``: this process has just submitted it. Otherwise its comment must show that it belongs to podbridge.
    """

    link: JobLink
    since: float
    sure: bool = True


@dataclass(frozen=True, slots=True)
class PollState:
    """The state that one poll hands to the next.

    ``listed`` are all jobs of the last list with their states. ``detailed`` is the sequence in which the details of a
    job were last read; it lacks the jobs whose details were never read. ``foreign`` are the jobs of others.
    ``changed_at`` is a time of slurmctld (``update_time``): all earlier changes are in this state. ``list_began`` is
    the monotonic time of the request for the last list of all jobs, 0 if there was none. ``unread`` are the listed
    states of jobs whose details are still to be read.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    listed: States = field(default_factory=dict)
    detailed: Mapping[int, int] = field(default_factory=dict)
    foreign: Mapping[int, Identity] = field(default_factory=dict)
    changed_at: int = 0
    list_began: float = 0
    unread: States = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of slurmctld in one poll that began at the monotonic time ``began``.

    ``unknown`` are the ids that slurmctld reported as unknown. ``started`` are podbridge's jobs of which only the nodes
    were read. ``nodes`` and ``partitions`` are ``None`` if they were not read. ``complete``: the states contain those
    of a new list of all jobs; otherwise those of the jobs of others are older. ``list_began`` is the monotonic time of
    the request for this list, ``None`` if it is ``began``.
    """

    began: float
    states: States
    details: Mapping[int, Job] = field(default_factory=dict)
    unknown: Collection[int] = ()
    started: Mapping[int, Job] = field(default_factory=dict)
    nodes: Mapping[str, Node] | None = None
    partitions: Mapping[str, Partition] | None = None
    complete: bool = True
    list_began: float | None = None
