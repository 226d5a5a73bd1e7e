"""Which pods run although Slurm knows nothing of their jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.workload import pods

Pod = Mapping[str, Any]


def is_suspected(snapshot: Snapshot) -> bool:
    """Whether a job of ours that had not ended is missing; without one there is no need to look at all pods."""
    found = (snapshot.jobs[job_id] for job_id in snapshot.absent)
    return any(
        known.missing and known.confirmations >= 2 and states.end_of(known.job.states) is None for known in found
    )


def jobs(everyone: Iterable[Pod], snapshot: Snapshot) -> tuple[int, dict[str, Pod]]:
    """Count the pods that should have a job, and return those whose job is missing, by UID.

    A job counts as missing as soon as a list lacks it, so that the loss of thousands shows at once although they are
    asked about a few at a time; but none does before slurmctld itself has said twice of at least one that there is no
    such job, or shows another pod's job under its number.
    """
    count, sure = 0, False
    found: dict[str, Pod] = {}
    for pod in everyone:
        labelled = pods.job_id(pod)
        if labelled is None or not pods.is_bound(pod) or pods.is_finished(pod) or pods.is_deleted(pod):
            continue
        count += 1
        uid = pods.uid(pod)
        known = snapshot.jobs.get(labelled)
        if known is None:
            found[uid] = pod
        elif known.job.link is not None and not any(ref.uid == uid for ref in known.job.link.pods):
            found[uid] = pod
            sure = True
        elif known.missing or (labelled in snapshot.absent and states.end_of(known.job.states) is None):
            found[uid] = pod
            sure = sure or (known.missing and known.confirmations >= 2)
    return count, found if sure else {}
