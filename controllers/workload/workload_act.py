"""Carries out the actions of the workload controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from bridge import clock as clocks
from bridge import names
from bridge.control.control_loop import Dependencies
from bridge.errors import KubeConflictError, KubeNotFoundError
from bridge.kube.paging import pages
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.slurm.cancelling import cancel_if_ours
from bridge.slurm.models import GroupRef
from bridge.telemetry import tracing
from bridge.workload import links, pods, slurm_spans
from controllers.brakes import mark_patch
from controllers.workload import workload_actions

log = logging.getLogger(__name__)


class WorkloadActor:
    """Writes to Slurm and to Kubernetes; ``check_leadership`` raises when this process is not the leader."""

    def __init__(self, dependencies: Dependencies, check_leadership: Callable[[], None]) -> None:
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.pods
        self._events = dependencies.events
        self._cluster = dependencies.cluster
        self._scheduler_name = dependencies.config.scheduler_name
        self._max_grace = dependencies.config.max_grace_period
        self._clock = dependencies.clock
        self._check_leadership = check_leadership
        self.on_uncached_pod: Callable[[workload_actions.Pod], None] = lambda _: None
        """Called with a pod that exists, has a job, and was not in the cache."""

    def act(self, action: workload_actions.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        match action:
            case workload_actions.Release():
                self._release(action)
            case workload_actions.End():
                self._end(action)
            case workload_actions.Ask():
                # not sure: the id may belong to a job of others by now, so the comment must name the pod
                self._poller.expect(action.job_id, links.link(action.pod, self._cluster), sure=False)
                self._poller.wake()
            case workload_actions.CancelSecond():
                self._cancel_second(action)
            case workload_actions.Mark():
                patch = mark_patch(action.pod, action.missing, clocks.rfc3339(self._clock.time()))
                self._cache.apply(self._kube.patch(PODS.path_of(action.pod, "status"), patch, kind="strategic"))
            case workload_actions.Report():
                self._report(action)
            case workload_actions.Suspension():
                self._suspension(action)
            case workload_actions.Label():
                self._patch(action.pod, pods.label_patch(action.pod, action.job_id))
            case workload_actions.Orphan():
                self._orphan(action)
            case workload_actions.CancelRemainingComponents():
                if self.cancel(action.job_id, action.link.keys):
                    log.info("job cancelled because one of its components has ended", extra=kv(job=action.job_id))

    def _cancel_second(self, action: workload_actions.CancelSecond) -> None:
        if self.cancel(action.job_id, [links.key(action.pod)]):
            log.warning("cancelled a second job of a pod", extra=kv(pod=pods.key(action.pod), job=action.job_id))

    def _report(self, action: workload_actions.Report) -> None:
        report = pods.error_patch(action.pod, action.message, clocks.rfc3339(self._clock.time()))
        if report is not None:
            self._patch(action.pod, report, "status")

    def _release(self, action: workload_actions.Release) -> None:
        """Cancel the jobs, then remove the finalizer after Slurm has accepted every cancellation.

        A member of the gang that was created since the decision keeps the job: the next decision sees it.
        """
        ids = [*action.job_ids, *(() if action.unseen is None else (action.unseen,))]
        if ids and links.membership(action.pod) is not None and self._has_new_member(links.key(action.pod)):
            return
        # a process that is killed after the cancellation leaves the finalizer, from which its successor continues
        for job_id in ids:
            self.cancel(job_id, [links.key(action.pod)])
        if pods.is_held(action.pod):
            patch = pods.withdraw_patch(action.pod) if action.remote else pods.unhold_patch(action.pod)
            answer = self._patch(action.pod, patch)
            if answer is not None and tracing.tracer is not None:
                slurm_spans.released(answer, self._clock.time())
        log.info("job released", extra=kv(pod=pods.key(action.pod), jobs=ids))

    def _has_new_member(self, key: str) -> bool:
        # not of all pods: each of thousands of members that end together looks for one
        open_pods = (pod for pod in self._cache.picked().values() if not pods.is_deleted(pod))
        return any(links.key(pod) == key for pod in open_pods)

    def cancel(self, job_id: int, keys: Iterable[str]) -> bool:
        """Cancel a job if its comment names one of the keys; return whether it does."""
        # reads the job first (3 to 5 ms): slurmctld may have assigned the id to another user's job since the last poll
        is_ours = cancel_if_ours(self._slurm, job_id, self._cluster, keys, self._check_leadership)
        self._poller.wake()
        return is_ours

    def _end(self, action: workload_actions.End) -> None:
        """Write the reason to the pod, then delete it, unless it has changed meanwhile.

        The grace period is the pod's own, up to the maximum. The API server accepts a second deletion of a pod, and
        applies its grace period if it is shorter than that of the first one; kubelets do the same.
        """
        pod, end, now = action.pod, action.end, clocks.rfc3339(self._clock.time())
        message = f"Slurm job {action.job_id} {end.text}"
        if pods.grace(pod) > self._max_grace:
            message += f"; the pod's grace period is limited to {self._max_grace} s (maxGracePeriod)"
        # False too is written: kubelets keep this condition, and remove the reason and message of the status
        disrupted = "True" if end.disruption else "False"
        patch = pods.condition_patch(pod, names.DISRUPTION_TARGET, disrupted, end.reason, message, now)
        patch["status"].update(reason=end.reason, message=message)
        try:
            # the reason first: a deleted pod may be gone at once. After a kill in between, the next decision repeats
            # both
            fresh = self._kube.patch(PODS.path_of(pod, "status"), patch, kind="strategic")
            # newer than the cache: since the decision, the pod may have ended or may have got another job
            if pods.job_id(fresh) == action.job_id and not pods.is_finished(fresh):
                grace = min(pods.grace(fresh), self._max_grace)
                self._events.event(pod, end.reason, message, warning=True, action=names.ENDING)
                if (owner := pods.owner_reference(pod)) is not None:
                    # without the pod's name and its job: a thousand ends are one Event with a count
                    text = f"podbridge has ended a pod: its Slurm job {end.text}"
                    self._events.event(owner, end.reason, text, warning=True, action=names.ENDING)
                options = {"gracePeriodSeconds": grace, "preconditions": {"uid": pods.uid(pod)}}
                self._kube.delete(PODS.path_of(pod), options)
        except (KubeNotFoundError, KubeConflictError) as error:
            log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            return
        log.info("pod ended", extra=kv(pod=pods.key(pod), job=action.job_id, reason=end.reason))

    def _suspension(self, action: workload_actions.Suspension) -> None:
        """Write the condition and an Event. podbridge does not stop the containers: Kubernetes has no such request."""
        pod, job, now = action.pod, action.job_id, clocks.rfc3339(self._clock.time())
        status, reason, message = "False", "JobResumed", f"Slurm job {job} is no longer suspended"
        if action.suspended:
            status, reason = "True", "JobSuspended"
            message = f"Slurm job {job} is suspended; the containers of the pod continue"
        patch = pods.condition_patch(pod, names.JOB_SUSPENDED, status, reason, message, now)
        if self._patch(pod, patch, "status") is not None:
            self._events.event(pod, reason, message, warning=action.suspended, action="Suspending")

    def _patch(self, pod: workload_actions.Pod, patch: dict[str, Any], sub: str | None = None) -> dict[str, Any] | None:
        """Patch a pod and return it; ``None``: it is gone."""
        try:
            answer = self._kube.patch(PODS.path_of(pod, sub), patch, kind="strategic")
        except (KubeNotFoundError, KubeConflictError) as error:
            log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            return None
        self._cache.apply(answer)
        return answer

    def _orphan(self, action: workload_actions.Orphan) -> None:
        """Cancel a job without a pod. The API server, not the cache, must confirm that its pods are gone."""
        if action.link.group is not None and self._has_member(action.link.group):
            return
        for ref in action.link.pods:
            try:
                pod = self._kube.get(PODS.path(ref.namespace, ref.name))
            except KubeNotFoundError:
                continue
            # the cache has only pods of the present schedulerName, and may lag behind
            if pods.uid(pod) == ref.uid and not pods.is_finished(pod):
                self.on_uncached_pod(pod)
                return
        if self.cancel(action.job_id, action.link.keys):
            log.warning("job without a pod released", extra=kv(job=action.job_id, pods=action.link.keys))

    def _has_member(self, group: GroupRef) -> bool:
        """Whether the API server has a pod of the group that has not ended.

        A namespace may have thousands of pods: their metadata is read in pages, up to the first member.
        """
        unfinished = [f"status.phase!={phase}" for phase in pods.FINISHED]
        selector = ",".join((f"spec.schedulerName={self._scheduler_name}", *unfinished))
        listed = pages(self._kube, PODS.path(group.namespace), {"fieldSelector": selector}, metadata_only=True)
        return any(links.key(pod) == group.key for page in listed for pod in page["items"])
