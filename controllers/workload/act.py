"""Carries out the actions of the workload controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bridge import clock as clocks
from bridge import names
from bridge.errors import KubeConflictError, KubeNotFoundError
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.loop import Dependencies
from bridge.slurm.cancelling import cancel_if_ours
from bridge.slurm.models import JobLink
from bridge.workload import pods, translate
from controllers.brakes import mark_patch
from controllers.workload import decide

log = logging.getLogger(__name__)


class Actor:
    """Writes to Slurm and to Kubernetes; ``check_leadership`` raises when this process is not the leader."""

    def __init__(self, dependencies: Dependencies, check_leadership: Callable[[], None]) -> None:
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.pods
        self._events = dependencies.events
        self._cluster = dependencies.cluster
        self._clock = dependencies.clock
        self._check_leadership = check_leadership

    def act(self, action: decide.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        match action:
            case decide.Release():
                self._release(action)
            case decide.End():
                self._end(action)
            case decide.Ask():
                link = JobLink(self._cluster, (translate.pod_ref(action.pod),))
                self._poller.expect(action.job_id, link, sure=False)
                self._poller.wake()
            case decide.Cancel():
                self._cancel_second(action)
            case decide.Mark():
                patch = mark_patch(action.pod, action.missing, clocks.rfc3339(self._clock.time()))
                self._cache.apply(self._kube.patch(_path(action.pod, "status"), patch, kind="strategic"))
            case decide.Orphan():
                self._orphan(action)

    def _release(self, action: decide.Release) -> None:
        """Cancel the jobs, then remove the finalizer after Slurm has accepted every cancellation."""
        ids = [*action.job_ids, *(() if action.unseen is None else (action.unseen,))]
        for job_id in ids:
            self._cancel(job_id, [pods.uid(action.pod)])
        if pods.is_held(action.pod):
            try:
                self._cache.apply(self._kube.patch(_path(action.pod), pods.unhold_patch(action.pod), kind="strategic"))
            except (KubeNotFoundError, KubeConflictError) as error:
                log.debug("pod is gone", extra=kv(pod=pods.key(action.pod), error=error))
        log.info("job released", extra=kv(pod=pods.key(action.pod), jobs=ids))

    def _cancel(self, job_id: int, uids: list[str]) -> bool:
        ours = cancel_if_ours(self._slurm, job_id, self._cluster, uids, self._check_leadership)
        self._poller.wake()
        return ours

    def _cancel_second(self, action: decide.Cancel) -> None:
        if self._cancel(action.job_id, [pods.uid(action.pod)]):
            log.warning("cancelled a second job of a pod", extra=kv(pod=pods.key(action.pod), job=action.job_id))

    def _end(self, action: decide.End) -> None:
        """Write the reason to the pod, then delete it with its grace period, unless it has changed meanwhile."""
        pod, now = action.pod, clocks.rfc3339(self._clock.time())
        message = f"Slurm job {action.job_id} {action.text}"
        patch = pods.condition_patch(pod, names.DISRUPTION_TARGET, "True", action.reason, message, now)
        patch["status"].update(reason=action.reason, message=message)
        try:
            fresh = self._kube.patch(_path(pod, "status"), patch, kind="strategic")
            if pods.job_id(fresh) == action.job_id and not pods.is_finished(fresh):
                self._events.event(pod, action.reason, message, warning=True, action="Ending")
                self._kube.delete(_path(pod), {"preconditions": {"uid": pods.uid(pod)}})
        except (KubeNotFoundError, KubeConflictError) as error:
            log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            return
        log.info("pod ended", extra=kv(pod=pods.key(pod), job=action.job_id, reason=action.reason))

    def _orphan(self, action: decide.Orphan) -> None:
        """Cancel a job without a pod. The API server, not the cache, must confirm that its pods are gone."""
        for ref in action.pods:
            try:
                found = self._kube.get(PODS.path(ref.namespace, ref.name))
            except KubeNotFoundError:
                continue
            if pods.uid(found) == ref.uid and not pods.is_finished(found):
                return
        if self._cancel(action.job_id, [ref.uid for ref in action.pods]):
            refs = [ref.name for ref in action.pods]
            log.warning("job without a pod released", extra=kv(job=action.job_id, pods=refs))


def _path(pod: dict[str, Any] | decide.Pod, sub: str | None = None) -> str:
    return PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], sub)
