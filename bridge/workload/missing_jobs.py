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
    absent_jobs = (snapshot.jobs[job_id] for job_id in snapshot.absent)
    return any(
        observed_job.missing and observed_job.is_confirmed and states.end_of(observed_job.job.states) is None
        for observed_job in absent_jobs
    )


def jobs(everyone: Iterable[Pod], snapshot: Snapshot, max_grace: float) -> tuple[int, dict[str, Pod]]:
    """Return the number of pods that should have a job, and the pods whose job is missing, by UID.

    A deleted pod counts if its grace period exceeds ``max_grace`` seconds: the end of its job shortens it.

    A job counts as missing as soon as it is not in the list: polls read missing jobs a few at a time, and the loss of
    thousands must show at once. But no job counts before slurmctld itself has reported twice that one of them does not
    exist, or shows another pod's job with its id. Jobs that are listed and whose details are to be read do not count.
    """
    count, is_certain = 0, False
    pods_by_uid: dict[str, Pod] = {}
    for pod in everyone:
        try:
            labelled = pods.job_id(pod)
            if labelled is None or not pods.is_bound(pod) or pods.is_finished(pod):
                continue
            if pods.is_ending(pod, max_grace):
                continue
            count += 1
            uid = pods.uid(pod)
            observed_job = snapshot.jobs.get(labelled)
            if observed_job is None:
                if labelled not in snapshot.unread:
                    pods_by_uid[uid] = pod
            elif observed_job.job.link is not None and links.key(pod) not in observed_job.job.link.keys:
                pods_by_uid[uid] = pod
                is_certain = True
            elif observed_job.missing or (
                labelled in snapshot.absent and states.end_of(observed_job.job.states) is None
            ):
                pods_by_uid[uid] = pod
                is_certain = is_certain or (observed_job.missing and observed_job.is_confirmed)
        except Exception as error:
            isolation.report("workload", pods.key(pod), error)
    return count, pods_by_uid if is_certain else {}
