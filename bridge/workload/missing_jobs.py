"""The bound pods whose jobs are missing in Slurm. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.core import isolation
from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.workload import links, pods

Pod = Mapping[str, Any]


def is_suspected(snapshot: Snapshot) -> bool:
    """Whether a job of podbridge that had not ended is missing; if none is, :func:`jobs` need not be called."""
    found = (snapshot.jobs[job_id] for job_id in snapshot.absent)
    return any(known.missing and known.is_confirmed and states.end_of(known.job.states) is None for known in found)


def jobs(everyone: Iterable[Pod], snapshot: Snapshot, max_grace: float) -> tuple[int, dict[str, Pod]]:
    """Return the number of pods that should have a job, and the pods whose job is missing, by UID.

    A deleted pod counts if its grace period exceeds ``max_grace`` seconds: the end of its job shortens it.

    A job counts as missing as soon as it is not in the list: polls read missing jobs a few at a time, and the loss of
    thousands must show at once. But no job counts before slurmctld itself has reported twice that one of them does not
    exist, or shows another pod's job with its id. Jobs that are listed and whose details are to be read do not count.
    """
    count, sure = 0, False
    found: dict[str, Pod] = {}
    for pod in everyone:
        try:
            labelled = pods.job_id(pod)
            if labelled is None or not pods.is_bound(pod) or pods.is_finished(pod):
                continue
            if pods.is_ending(pod, max_grace):
                continue
            count += 1
            uid = pods.uid(pod)
            known = snapshot.jobs.get(labelled)
            if known is None:
                if labelled not in snapshot.unread:
                    found[uid] = pod
            elif known.job.link is not None and links.key(pod) not in known.job.link.keys:
                found[uid] = pod
                sure = True
            elif known.missing or (labelled in snapshot.absent and states.end_of(known.job.states) is None):
                found[uid] = pod
                sure = sure or (known.missing and known.is_confirmed)
        except Exception as error:
            isolation.report("workload", pods.key(pod), error)
    return count, found if sure else {}
