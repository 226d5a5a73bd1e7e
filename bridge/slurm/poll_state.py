"""The data of one poll: the state before it, the jobs that it should find, the answers, and the identity of a job.

slurmctld assigns a job id again after it has lost its state, has restored an older one, or has reached MaxJobId. It
assigns ids in ascending order. So if any listed id belongs to another job than before, the highest one does. One job,
the witness, therefore shows whether the answers of a poll can be compared with earlier ones.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.slurm.models import Job, JobLink, Node, Partition, Snapshot

States = Mapping[int, frozenset[str]]


class Identity(NamedTuple):
    """Submit time (seconds since the epoch, 0 if not read) and number of requeues.

    ``ordered``: Slurm assigned the id at the submission, so higher ids have later submit times. ``partition`` is where
    the job was when it was read; it is no part of the comparison.
    """

    submit_time: float = 0
    restarts: int = 0
    ordered: bool = True
    partition: str = ""


UNREAD = Identity()


def identity(job: Job) -> Identity:
    """Return the job's identity."""
    return Identity(job.submit_time, job.restarts, not job.is_array_task, sys.intern(job.partition))


def is_same(before: Identity, now: Identity) -> bool:
    """Whether both may belong to the same job.

    A requeue sets a new submit time and increments ``restarts``. Hold, release, suspend, resume and updates change
    neither (seen on Slurm 22.05 and 26.05).
    """
    if not before.submit_time or not now.submit_time:
        return True
    return before.submit_time == now.submit_time or now.restarts > before.restarts


class Witness(NamedTuple):
    """The recorded data of the witness. If its submit time has not been read, its comment is compared instead."""

    identity: Identity
    link: JobLink | None

    def agrees(self, job: Job) -> bool:
        """Whether ``job``, which was read now, is still the same job."""
        if self.identity.submit_time:
            return is_same(self.identity, identity(job))
        return self.link is None or job.link == self.link


def highest(ids: Mapping[int, object], listed: Mapping[int, object]) -> int | None:
    """Return the highest of ``ids`` that is also in ``listed``."""
    return max(ids.keys() & listed.keys(), default=None)


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
