"""The identity of a job: whether two answers about one job id are about the same job.

slurmctld assigns a job id again after it has lost its state, has restored an older one, or has reached MaxJobId. It
assigns ids in ascending order. So if any listed id belongs to another job than before, the highest one does. One job,
the witness, therefore shows whether the answers of a poll can be compared with earlier ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from bridge.slurm.models import Job, JobLink


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
