"""The only function that cancels jobs. It checks the comment of the job first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from bridge.errors import SlurmNotFoundError
from bridge.fencing import fence
from bridge.logs import kv
from bridge.metrics import SLURM_CANCELS_REFUSED
from bridge.slurm.client import SlurmClient
from bridge.slurm.components import is_over

log = logging.getLogger(__name__)


def cancel_if_ours(
    slurm: SlurmClient, job_id: int, cluster: str, keys: Iterable[str], check_leadership: Callable[[], None] | None
) -> bool:
    """Cancel a job if its comment names ``cluster`` and all of ``keys``; return whether it names them.

    ``keys`` are UIDs of pods, or the key of a group (:attr:`JobLink.keys`).

    The comment is read right before the cancellation (3 to 5 ms): since the last poll, slurmctld may have lost its
    state and assigned the id to a job of another user. A job that slurmctld does not know, or all of whose components
    have ended, is not cancelled. ``check_leadership`` raises when this process is not the leader. Raises the errors of
    :meth:`SlurmClient.job` and :meth:`SlurmClient.cancel`.
    """
    try:
        job = slurm.job(job_id)
    except SlurmNotFoundError:
        return False
    wanted = set(keys)
    if job.link is None or job.link.cluster != cluster or not wanted <= set(job.link.keys):
        SLURM_CANCELS_REFUSED.inc()
        log.warning(
            "not cancelled: the comment of this Slurm job does not name the pod",
            extra=kv(job=job_id, user=job.user_name, pods=sorted(wanted)),
        )
        return False
    if not is_over(job):
        with fence(check_leadership):
            slurm.cancel(job_id)
    return True
