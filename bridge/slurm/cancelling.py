"""The only functions that cancel and change jobs, after a check of the comment; and the record of cancellations."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.clock import Clock
from bridge.errors import SlurmNotFoundError
from bridge.http.fencing import fence
from bridge.logs import kv
from bridge.slurm.components import is_over
from bridge.slurm.states import is_allocated
from bridge.telemetry.metrics import SLURM_CANCELS_REFUSED

if TYPE_CHECKING:
    from bridge.slurm.models import Job, JobPart
    from bridge.slurm.slurm_client import SlurmClient

log = logging.getLogger(__name__)


class Cancellations:
    """The jobs that this process has cancelled and that a snapshot may still show as live. For any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ended: dict[int, float] = {}

    @contextmanager
    def sending(self, job_id: int) -> Iterator[None]:
        """Record a cancellation from its request on; also one whose outcome is unknown."""
        with self._lock:
            # infinite while the request is in progress: no snapshot that begins meanwhile shows its effect for certain
            self._ended[job_id] = math.inf
        try:
            yield
        finally:
            with self._lock:
                self._ended[job_id] = self._clock.monotonic()

    def forget(self, job_id: int) -> None:
        """Forget a job: slurmctld has given its id to a new one."""
        with self._lock:
            self._ended.pop(job_id, None)

    def since(self, began: float) -> Set[int]:
        """Return the jobs whose cancellation a snapshot does not show that ``began`` at this monotonic time.

        Later snapshots began later, so that the others are forgotten.
        """
        with self._lock:
            if self._ended:
                # a snapshot that began after the answer shows the cancellation, so the entry is not needed any more
                self._ended = {job_id: ended for job_id, ended in self._ended.items() if ended >= began}
            return frozenset(self._ended)


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
    job = _read_if_ours(slurm, job_id, cluster, keys)
    if job is None:
        return False
    if not is_over(job):
        # slurmrestd has no conditional cancellation: between the read above and this request, nothing protects a job
        # that got the same id; a slurmctld that loses its state takes longer to restart
        with fence(check_leadership):
            slurm.cancel(job_id)
    return True


def exclude_if_ours(
    slurm: SlurmClient,
    link_of: int,
    job_id: int,
    nodes: tuple[str, ...],
    cluster: str,
    keys: Iterable[str],
    check_leadership: Callable[[], None] | None,
) -> bool:
    """Set the excluded nodes of job or component ``job_id``, if the comment names ``cluster`` and all of ``keys``.

    ``link_of`` is the job itself, or the one that has the component. Returns whether it names them: see
    :func:`cancel_if_ours`. Raises the errors of :meth:`SlurmClient.job` and :meth:`SlurmClient.set_excluded_nodes`.
    """
    job = _read_if_ours(slurm, link_of, cluster, keys)
    if job is None or (job_id != link_of and job_id not in [part.job_id for part in job.parts]):
        return False
    with fence(check_leadership):
        slurm.set_excluded_nodes(job_id, nodes)
    return True


def shrink_if_ours(
    slurm: SlurmClient,
    link_of: int,
    job_id: int,
    released: Set[str],
    cluster: str,
    keys: Iterable[str],
    check_leadership: Callable[[], None] | None,
) -> tuple[str, ...]:
    """Take the nodes ``released`` from running job or component ``job_id``; return the nodes that this call has taken.

    The checks are those of :func:`exclude_if_ours`. A job keeps at least one node, and a batch job the one on which its
    script runs. Raises the errors of :meth:`SlurmClient.job` and :meth:`SlurmClient.shrink`.
    """
    # read now, not from the snapshot: the request names the nodes that the job keeps, and before a crash an earlier
    # leader may have released some of them already
    job = _read_if_ours(slurm, link_of, cluster, keys)
    parts: list[Job | JobPart] = [] if job is None else [*job.parts, job]
    part = next((part for part in parts if part.job_id == job_id), None)
    if part is None or not is_allocated(part.states):
        return ()
    # Slurm refuses to take the node of the script from a batch job
    nodes, released = part.nodes, released - {part.batch_host}
    kept_nodes = tuple([node for node in nodes if node not in released])
    if not kept_nodes or len(kept_nodes) == len(nodes):
        return ()
    with fence(check_leadership):
        slurm.shrink(job_id, kept_nodes)
    return tuple([node for node in nodes if node in released])


def _read_if_ours(slurm: SlurmClient, job_id: int, cluster: str, keys: Iterable[str]) -> Job | None:
    """Read a job; return ``None`` if slurmctld does not know it, or if its comment does not name ``keys``."""
    try:
        job = slurm.job(job_id)
    except SlurmNotFoundError:
        return None
    required_keys = set(keys)
    # the cluster too: the key of a group without an object is its name, which pods of another cluster may have
    if job.link is not None and job.link.cluster == cluster and required_keys <= set(job.link.keys):
        return job
    SLURM_CANCELS_REFUSED.inc()
    log.warning(
        "not cancelled or updated: the comment of this Slurm job does not name the pod",
        extra=kv(job=job_id, user=job.user_name, pods=sorted(required_keys)),
    )
    return None
