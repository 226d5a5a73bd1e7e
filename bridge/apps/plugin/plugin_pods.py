"""What the plugin does with pods: submit, report, cancel and read logs. Each call is idempotent by the pod's UID."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bridge.apps.plugin.bodies import Creation
from bridge.apps.plugin.deletions import Deletions
from bridge.apps.plugin.directory import Directory
from bridge.apps.plugin.missing import RequestedPods
from bridge.core.threads import at_once
from bridge.errors import (
    BridgeError,
    MissingReferenceError,
    SiteDownError,
    SiteError,
    SiteRefusedError,
    SiteUnknownOutcomeError,
    UnknownJobError,
    UntracedJobError,
)
from bridge.interlink.messages import LogStruct
from bridge.interlink.pod_status import pod_status
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.serving.http_error import AnswerError

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]

CREATE_PATIENCE = 60.0
"""Seconds for which a submission is repeated while the site does not answer. A virtual kubelet fails the pod at the
first error, and an API server waits 120 s for the answer."""
PAUSE = 0.5
ASKERS = 8
"""Concurrent requests to sites for the pods of one request."""
DEFAULT_GRACE = 30
MOST_CREATIONS = 112
"""Creations at once, divided among the pools. Each holds a thread while it waits for its site."""
LEAST_SHARE = 8
"""Creations of one pool at once, at least, and its cancellations at once."""


class Pods:
    """The pods of all pools of a directory. ``wait`` waits for some seconds and returns whether the process stops."""

    def __init__(self, directory: Directory, wait: Callable[[float], bool], patience: float = CREATE_PATIENCE) -> None:
        self._directory, self._wait, self._patience = directory, wait, patience
        self.requested = RequestedPods()
        """The pods that clients have named in requests for their state."""
        self._creations, self._cancellations = PoolSlots(), PoolSlots()
        self._deletions = Deletions()

    # --- create -------------------------------------------------------------------------------------------------------
    def create(self, creation: Creation) -> tuple[str, str]:
        """Submit a pod; return its UID and the batch system's name of its job, which is never empty."""
        end = time.monotonic() + self._patience
        uid = str(creation.pod["metadata"]["uid"])
        if creation.script:
            log.warning("a job script is ignored: podbridge builds its own", extra=kv(job=uid))
        share = max(LEAST_SHARE, MOST_CREATIONS // max(1, len(self._directory.pools())))
        with self._deletions.creating(uid), self._creations.hold(self._pool_name(creation.pod), share):
            return uid, self._submit_patiently(creation, end).job_id or uid

    def _pool_name(self, pod: Pod) -> str:
        """Return the name of the pod's pool; empty if it has not announced itself yet."""
        try:
            return self._directory.choose(pod).name
        except SiteDownError:
            return ""

    def _submit_patiently(self, creation: Creation, end: float) -> JobStatus:
        """Submit a pod, again and again until the monotonic time ``end`` while the site does not answer."""
        while True:
            try:
                return self._submit(creation)
            except MissingReferenceError:  # the request has all objects that the client will send
                raise
            except SiteError as error:
                if not error.retryable or time.monotonic() + PAUSE >= end or self._wait(PAUSE):
                    raise
                log.info("submission is repeated", extra=kv(job=creation.pod["metadata"]["uid"], error=error))

    def _submit(self, creation: Creation) -> JobStatus:
        uid = creation.pod["metadata"]["uid"]
        # before each attempt: the pod may be deleted while its submission is repeated
        if self._deletions.refuses_creation(uid):
            raise SiteRefusedError("the pod was deleted", reason="Forgotten")
        pool = self._directory.choose(creation.pod)
        readiness = pool.ready()
        if not readiness.ok:
            raise SiteDownError(f"pool {pool.name}: {readiness.reason}: {readiness.message}")
        return pool.submit(pool.prepare(creation.pod), creation.objects)

    # --- status -------------------------------------------------------------------------------------------------------
    def statuses(self, pods: Sequence[Pod]) -> list[dict[str, Any]]:
        """Return the PodStatus of each pod in their order; a pod whose state cannot be determined now is left out.

        Raises the error of a site if that concerns all pods.
        """
        self.requested.add(pod["metadata"]["uid"] for pod in pods)
        viewed = enumerate(map(self._viewed, pods))
        states: dict[int, JobStatus | None] = {index: job for index, job in viewed if job is not None}
        unsure = [index for index in range(len(pods)) if index not in states]
        errors: list[BridgeError | AnswerError] = []

        def ask(index: int) -> None:
            try:
                states[index] = self._site_status(pods[index])
            except (SiteError, AnswerError) as error:
                errors.append(error)

        at_once(ASKERS, ask, unsure)
        if errors and not states:
            raise errors[0]
        if errors:
            log.warning("pods without a state", extra=kv(pods=len(errors), error=errors[0]))
        # a pod without an answer is left out: the virtual kubelet then keeps its last state
        answered = [(pod, states[index]) for index, pod in enumerate(pods) if index in states]
        return [pod_status(pod, _of_this_pod(pod, state)) for pod, state in answered]

    def _viewed(self, pod: Pod) -> JobStatus | None:
        """Return the state of a job from the view of its pool, without a request."""
        if self._deletions.is_deleted(pod["metadata"]["uid"]):
            return None
        try:
            pool = self._directory.choose(pod)
        except (SiteError, AnswerError):
            return None
        return pool.job(pod["metadata"]["uid"]) if pool.lists is not None else None

    def _site_status(self, pod: Pod) -> JobStatus | None:
        pool = self._directory.choose(pod)
        status = pool.status(pod)
        if status is None and pool.lists is not None:
            self._deletions.gone(pod["metadata"]["uid"])
        return status

    # --- delete -------------------------------------------------------------------------------------------------------
    def delete(self, pod: Pod) -> str:
        """Cancel the job of a pod, and have its files deleted once it has ended; return a text for people.

        A pod that no site knows counts as deleted, and a submission that arrives later is refused. If the site does not
        answer, the error is raised and the plugin repeats the cancellation itself: a virtual kubelet does not.
        """
        metadata = pod["metadata"]
        try:
            with self._cancellations.hold(self._pool_name(pod), LEAST_SHARE):
                self._cancel(pod)
        except SiteError as error:
            if error.retryable:
                self._deletions.repeat(metadata["uid"], pod)
            raise
        return f"pod {metadata['namespace']}/{metadata['name']} is cancelled\n"

    def repeat_cancellations(self) -> None:
        """Send the cancellations again that sites have not answered; to a site that does not answer now, only one."""
        pods_of: dict[str, dict[str, Pod]] = {}
        for uid, pod in self._deletions.undelivered().items():
            try:
                pods_of.setdefault(self._pool_name(pod), {})[uid] = pod
            except (SiteError, AnswerError) as error:
                self._give_up(uid, error)
        # a site that does not answer must not delay the cancellations at others
        at_once(ASKERS, lambda name: self._repeat_at_site(pods_of[name]), pods_of)

    def _repeat_at_site(self, pods: Mapping[str, Pod]) -> None:
        for uid, pod in pods.items():
            try:
                self._cancel(pod)
            except (SiteError, AnswerError) as error:
                if not isinstance(error, SiteError) or not error.retryable:
                    self._give_up(uid, error)
                    continue
                self._deletions.postpone(uid)
                if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
                    return
            else:
                log.info("a repeated cancellation was accepted", extra=kv(job=uid))
                self._deletions.delivered(uid)

    def _give_up(self, uid: str, error: Exception) -> None:
        log.warning("a cancellation is not repeated", extra=kv(job=uid, error=error))
        self._deletions.delivered(uid)

    def _cancel(self, pod: Pod) -> None:
        metadata = pod["metadata"]
        pool = self._directory.choose(pod)
        is_first = False
        if pool.lists is None:  # its site would run a job that it gets later
            is_first, is_creating = self._deletions.begin(metadata["uid"])
            if is_creating:
                raise UnknownJobError("the pod is being created; its cancellation is repeated")
        try:
            job = pool.job(metadata["uid"]) or pool.status(pod)
        except UntracedJobError:
            # clients also delete pods that were refused, and no user can state no-job for a pod that is gone
            job = None
        # a wrong UID must not cancel the job of another pod
        if job is not None and _of_this_pod(pod, job) is None:
            if is_first:
                self._deletions.withdraw(metadata["uid"])
            raise AnswerError(404, f"pod {metadata['namespace']}/{metadata['name']} has another UID")
        running = pool.cancel(pod, _grace(pod), forget=True) is not None
        if running:
            follows = pool.follows if self._deletions.has_room() else None
            if follows is not None:
                follows.add(pod)
            self._deletions.ends(metadata["uid"], pool if follows is not None else None)

    def forget_ended(self) -> None:
        """Forget the deleted pods whose jobs have ended. A pool that lists its jobs does so itself."""
        for uid, pool in self._deletions.followed().items():
            job = pool.job(uid)
            if job is None or job.phase == "ended":
                if pool.follows is not None:
                    pool.follows.remove(uid)
                self._deletions.gone(uid)

    # --- logs ---------------------------------------------------------------------------------------------------------
    def logs(self, request: LogStruct, options: LogOptions) -> tuple[str, Iterator[bytes]]:
        """Return the name of the pool and the pieces of a log."""
        pod = {"metadata": {"namespace": request.namespace, "name": request.pod_name, "uid": request.pod_uid}}
        pool, status = self._find(pod)
        names = [each.name for each in (*status.containers, *status.init_containers)]
        if not options.container:
            if len(names) != 1:
                raise AnswerError(400, f"ContainerName: '' is not allowed; allowed: {', '.join(names) or 'none yet'}")
            options = options.model_copy(update={"container": names[0]})
        if pool.logs is None:
            raise AnswerError(501, f"pool {pool.name} has no logs")
        return pool.name, pool.logs(pod, options)

    def _find(self, pod: Pod) -> tuple[Pool, JobStatus]:
        """Return the pool of a pod of which only the identity is known, and the state of its job."""
        uid = pod["metadata"]["uid"]
        pools = list(self._directory.pools().values())
        found = next(((pool, job) for pool in pools if (job := pool.job(uid)) is not None), None)
        found = found or _at_sites(pod, pools)
        if found is None or _of_this_pod(pod, found[1]) is None:
            raise AnswerError(404, f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} has no job here")
        return found


def _at_sites(pod: Pod, pools: Sequence[Pool]) -> tuple[Pool, JobStatus] | None:
    """Ask the sites for the job of a pod. Raises the error of one that did not answer if no other one has the job."""
    failed: SiteError | None = None
    for pool in pools:
        try:
            if (status := pool.status(pod)) is not None:
                return pool, status
        except SiteError as error:
            failed = error
    if failed is not None:
        raise failed
    return None


def _of_this_pod(pod: Pod, status: JobStatus | None) -> JobStatus | None:
    """Return the state of a job if it is this pod's, so that a wrong UID shows nothing of another pod.

    The interLink Slurm plugin records no names of pods, so a job that a site has adopted has its UID as name.
    """
    metadata = pod["metadata"]
    if status is None or status.namespace != metadata["namespace"]:
        return None
    return status if status.name in (metadata["name"], status.job.lower()) else None


def _grace(pod: Pod) -> float:
    seconds = pod["metadata"].get("deletionGracePeriodSeconds")
    if seconds is None:
        seconds = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return float(DEFAULT_GRACE if seconds is None else seconds)


# --- the limit of requests for each pool ------------------------------------------------------------------------------
STALLED_AFTER = 10.0
"""Seconds without an accepted request after which a pool without a free slot counts as stalled."""


class PoolSlots:
    """Limits the requests that use one pool at once: a silent site must not hold the threads of others. Thread-safe.

    A virtual kubelet sends one request for each new pod, without a limit, and fails the pod for good at the first
    error. So a request waits for a slot as long as the pool accepts others. It is refused only if the pool has accepted
    none for a while.
    """

    def __init__(self, stalled_after: float = STALLED_AFTER) -> None:
        self._stalled_after = stalled_after
        self._changed = threading.Condition()
        self._used: Counter[str] = Counter()
        self._accepted_at: dict[str, float] = {}

    @contextmanager
    def hold(self, pool: str, most: int) -> Iterator[None]:
        """Wait for one of ``most`` slots and hold it. If the block raises no error, the pool has accepted a request.

        Raises :class:`SiteDownError` if the pool is stalled.
        """
        with self._changed:
            # the time without a request is no stall
            if not self._used[pool]:
                self._accepted_at[pool] = time.monotonic()
            while self._used[pool] >= most:
                left = self._accepted_at[pool] + self._stalled_after - time.monotonic()
                if left <= 0:
                    raise SiteDownError(f"pool {pool}: {most} requests wait for an answer of the site")
                self._changed.wait(left)
            self._used[pool] += 1
        try:
            yield
            self._accepted_at[pool] = time.monotonic()
        finally:
            with self._changed:
                self._used[pool] -= 1
                self._changed.notify_all()
