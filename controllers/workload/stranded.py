"""Pods that podbridge holds for a scheduler name that no configuration has any more.

After a change of ``schedulerName``, the caches lack the pods with the former name: their jobs would not be released,
and podbridge's finalizer would keep deleted pods forever. These pods are listed when a process becomes the leader. A
pod is this installation's if its job is; another installation may have its name. Any pod that stays deleted for long is
released: a job that is left without a pod is cancelled by the installation that submitted it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from bridge import clock as clocks
from bridge.clock import Clock
from bridge.core.workers import Workers
from bridge.errors import KubeConflictError, KubeNotFoundError
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.paging import pages
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.slurm.models import Snapshot
from bridge.telemetry.metrics import STRANDED_PODS
from bridge.workload import links, pods

log = logging.getLogger(__name__)
Pod = Mapping[str, Any]

PERIOD = 30.0
"""Seconds between two checks of the pods."""
LIST_AGAIN = 300.0
"""Seconds after which the pods are listed once more: during an update, a former process admits pods with its name."""
OVERDUE = 300.0
"""Seconds after the end of its grace period until a deleted pod is released, whoever holds it."""
MOST_OTHERS = 100
"""Pods without a job of this installation that one check reads, in turn: another installation of the cluster may have
thousands, with a finalizer of the same name."""


class StrandedPods:
    """Finds the pods, reports them, and releases them at their end.

    ``cancel`` cancels a job, if it is this installation's and has this key in its comment. ``cached`` returns the pod
    with a UID from the cache of this scheduler's pods.
    """

    def __init__(
        self,
        kube: KubeClient,
        events: EventRecorder,
        scheduler_name: str,
        clock: Clock,
        cancel: Callable[[int, list[str]], object],
        cached: Callable[[str], object],
    ) -> None:
        self._kube, self._events, self._clock = kube, events, clock
        self._scheduler_name, self._cancel, self._cached = scheduler_name, cancel, cached
        self._held: dict[str, tuple[str, str]] = {}
        """The path, and the key of the job, of each pod with podbridge's finalizer or job that the cache lacks, by
        UID."""
        self._own_keys: set[str] = set()
        self._lists: list[float] = []
        self._inspect_at = 0.0
        self._has_inspected = False

    def on_started_leading(self) -> None:
        """List the pods now, and once more later."""
        now = self._clock.monotonic()
        self._lists, self._inspect_at, self._held, self._has_inspected = [now, now + LIST_AGAIN], now, {}, False

    def request(self, workers: Workers, snapshot: Snapshot) -> None:
        """Submit a check of the pods to a worker if it is due."""
        now = self._clock.monotonic()
        if snapshot.sequence and now >= self._inspect_at and (self._lists or self._held):
            workers.submit("stranded-pods", lambda: self._inspect(snapshot), 7, kind="stranded-pods")

    def follow(self, pod: Pod) -> None:
        """Follow a pod that has a job and is not in the cache, from now on."""
        self._inspect_at = 0.0
        self._add(pod)

    def _add(self, pod: Pod) -> None:
        self._held[pods.uid(pod)] = PODS.path_of(pod), links.key(pod)

    def keeps(self, keys: tuple[str, ...]) -> bool:
        """Whether a stranded pod has, or before the first check may have, the job with these keys: it is no orphan."""
        return not self._has_inspected or not self._own_keys.isdisjoint(keys)

    def _inspect(self, snapshot: Snapshot) -> None:
        now = self._clock.monotonic()
        # before the requests: after an error, the next check waits for a period too
        self._inspect_at = now + PERIOD
        if self._lists and now >= self._lists[0]:
            self._list()
            self._lists = [at for at in self._lists if at > now]
        own_keys: set[str] = set()
        for uid, path in self._next(snapshot):
            try:
                pod = self._kube.get(path)
            except KubeNotFoundError:
                pod = None
            # a pod in the cache is decided about as any other
            is_gone = pod is None or pods.uid(pod) != uid or self._cached(uid) is not None
            if pod is None or is_gone or not (pods.is_held(pod) or snapshot.by_uid.get(links.key(pod))):
                del self._held[uid]
            elif self._release_or_report(pod, path, snapshot):
                own_keys.add(links.key(pod))
        self._own_keys, self._has_inspected = own_keys, True
        STRANDED_PODS.set(len(own_keys))

    def _next(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        """Return UID and path of the pods to read: of those without a job of this installation, the next ones."""
        held = list(self._held.items())
        others = [(uid, path) for uid, (path, key) in held if key not in snapshot.by_uid][:MOST_OTHERS]
        for uid, _ in others:
            self._held[uid] = self._held.pop(uid)  # the last one of the next turns
        return [*((uid, path) for uid, (path, key) in held if key in snapshot.by_uid), *others]

    def _list(self) -> None:
        """List the metadata of all pods of other schedulers: podbridge holds few of them, or none."""
        params = {"fieldSelector": f"spec.schedulerName!={self._scheduler_name}"}
        for page in pages(self._kube, PODS.path(), params, metadata_only=True):
            for pod in filter(pods.is_held, page["items"]):
                self._add(pod)

    def _release_or_report(self, pod: Pod, path: str, snapshot: Snapshot) -> bool:
        """Release the pod if it has ended; return whether it is this installation's and stays."""
        key = links.key(pod)
        job_ids = snapshot.by_uid.get(key, ())
        is_overdue, former_scheduler = self._is_overdue(pod), pod["spec"].get("schedulerName")
        has_ended = pods.is_finished(pod) or pods.is_deleted(pod)
        # without a job in the snapshot, the pod may be that of another installation: only time decides then
        if pods.is_held(pod) and ((job_ids and has_ended) or is_overdue):
            try:
                self._kube.patch(path, pods.unhold_patch(pod), kind="strategic")
            except (KubeNotFoundError, KubeConflictError) as error:
                log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            log.info("stranded pod released", extra=kv(pod=pods.key(pod), jobs=job_ids))
        if pods.is_finished(pod) or is_overdue:  # the job of any other pod is an orphan when the pod is gone
            # the job of a group may still have other members
            for job_id in job_ids if links.membership(pod) is None else ():
                self._cancel(job_id, [key])
            return False
        if job_ids and key not in self._own_keys and former_scheduler != self._scheduler_name and not has_ended:
            text = (
                f"podbridge's scheduler is {self._scheduler_name} now, and the pod names {former_scheduler}: podbridge "
                f"releases Slurm job {job_ids[0]} with the pod, but the end of the job does not end the pod; create it "
                "again"
            )
            self._events.event(pod, "SchedulerNameChanged", text, warning=True)
            extra = kv(pod=pods.key(pod), job=job_ids[0], former=former_scheduler)
            log.warning("pod of a former schedulerName", extra=extra)
        return bool(job_ids)

    def _is_overdue(self, pod: Pod) -> bool:
        deleted = pod["metadata"].get("deletionTimestamp")
        return bool(deleted) and self._clock.time() > clocks.parse_rfc3339(deleted) + OVERDUE
