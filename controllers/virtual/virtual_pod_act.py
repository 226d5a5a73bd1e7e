"""Carries out the actions for a pod: requests to its site, and writes to the pod."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from bridge import names
from bridge.clock import Clock, rfc3339
from bridge.core import isolation, job_lifecycle
from bridge.core.retries import Backoff
from bridge.errors import (
    BridgeError,
    KubeConflictError,
    KubeError,
    KubeInvalidError,
    KubeNotFoundError,
    LostLeadershipError,
    MissingReferenceError,
    ScriptError,
    SiteError,
    SiteUnknownOutcomeError,
    UnexpectedError,
)
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobStatus, pod_of
from bridge.script.references import Objects
from bridge.telemetry import tracing
from bridge.telemetry.metrics import RACE_PLACES
from bridge.workload import places, pods
from bridge.workload.kinds.kind import annotation
from controllers.brakes import mark_patch
from controllers.virtual import hub_status, race_decide, virtual_pod_decide
from controllers.virtual.pod_reports import PodReports
from controllers.virtual.pod_state import Cancellation, Entry, Pod
from controllers.virtual.race_act import RaceActor
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.volume_act import VolumeActor

log = logging.getLogger(__name__)


RETRY = Backoff(first=1.0, limit=30.0)
REFUSED_AGAIN = 60.0
"""Seconds until a status that the API server has refused as invalid is written again."""
FORGOTTEN = 5.0
"""Seconds for which the view may show a deleted job, or the cache may lack an existing pod."""


class PodActor:
    """Carries out actions. ``check_leadership`` raises LostLeadershipError if this process is not the leader."""

    def __init__(
        self,
        kube: KubeClient,
        events: EventRecorder,
        reader: ReferenceReader,
        clock: Clock,
        check_leadership: Callable[[], None],
        address: str,
        submit_timeout: float,
        grant_wait: float = 60.0,
    ) -> None:
        self._kube = kube.fenced(check_leadership)
        reports = self.reports = PodReports(events, clock)
        self._volumes = VolumeActor(reports, reader, clock, check_leadership)
        self._race = RaceActor(
            self._kube, reports, reader, self._volumes, clock, check_leadership, submit_timeout, grant_wait
        )
        self._reader = reader
        self._clock = clock
        self._check_leadership = check_leadership
        self._address = address
        self._submit_timeout = submit_timeout

    def act(self, action: virtual_pod_decide.Action, pool: Pool | None, entry: Entry, cache: Cache) -> None:
        """Carry out one action. A failure sets the entry's back-off, and becomes an Event of the pod once."""
        pod = getattr(action, "pod", None)
        try:
            try:
                self._do(action, pool, entry, cache)
            except BridgeError:
                raise
            except Exception as error:
                raise isolation.report("virtual-pods", pods.key(pod) if pod else "", error) from error
        except LostLeadershipError:
            raise
        except BridgeError as error:
            self._back_off(entry, error)
            if isinstance(error, KubeInvalidError) and isinstance(action, virtual_pod_decide.Write):
                entry.refused, entry.refused_until = action.job, entry.not_before
            if isinstance(error, SiteError | MissingReferenceError | UnexpectedError) and pod is not None:
                self.reports.waiting(pod, entry, error, topic=error.reason)
            raise
        entry.failures = 0

    def report(self, pod: Pod, message: str, cache: Cache) -> None:
        """Write the condition of an unexpected error about a pod, or with an empty message of its end."""
        patch = pods.error_patch(pod, message, rfc3339(self._clock.time()))
        if patch is not None:
            self._patch(pod, cache, patch["status"])

    def _do(self, action: virtual_pod_decide.Action, pool: Pool | None, entry: Entry, cache: Cache) -> None:
        match action:
            case virtual_pod_decide.Write():
                self._write(action, entry, cache)
            case virtual_pod_decide.Remove():
                self._remove(action, cache)
            case virtual_pod_decide.Fail():
                if action.unknown and pool is not None:  # the batch system may still have it
                    self._forget(action.pod, pool, entry)
                self._fail(action.pod, cache, "BridgeJobLost", action.reason, action.message)
            case virtual_pod_decide.Mark():
                patch = mark_patch(action.pod, action.missing, rfc3339(self._clock.time()))
                self._patch(action.pod, cache, patch["status"])
            case virtual_pod_decide.Submit() if pool is not None:
                self._submit(action.pod, pool, entry, cache)
            case _ if pool is not None:
                self._do_at_site(action, pool, entry)

    def _do_at_site(self, action: virtual_pod_decide.Action, pool: Pool, entry: Entry) -> None:
        match action:
            case virtual_pod_decide.Look():
                entry.answered(self._clock.monotonic(), pool.status(action.pod))
            case virtual_pod_decide.Cancel():
                self._cancel(action, pool, entry)
            case virtual_pod_decide.Forget():
                self._forget(action.pod, pool, entry)
            case virtual_pod_decide.Orphan():
                self._orphan(action.job, pool, entry)
            case virtual_pod_decide.Refresh():
                self._volumes.refresh(action.pod, pool, entry)
            case race_decide.Offer():
                self._race.offer(action.pod, pool, entry)
            case race_decide.Claim():
                self._race.claim(action.pod, action.ticket, pool, entry)
            case race_decide.Grant():
                self._race.grant(action, pool, entry)
            case race_decide.Withdraw():
                self._race.withdraw(action.pod, pool, entry)

    # --- at the site --------------------------------------------------------------------------------------------------
    def _submit(self, pod: Pod, pool: Pool, entry: Entry, cache: Cache) -> None:
        # all pods are queued again when the pool accepts submissions (PoolProgress.accepting)
        if not pool.ready().ok:
            return
        if virtual_pod_decide.remote_job(pod):  # the cache has only a part of a pod whose job gave its place back
            current = self._race.current(pod)
            if current is None or pods.is_deleted(current):
                return
            pod = current
        follows = pool.follows
        statement = (annotation(pod, follows.statement) or "") if follows is not None else ""
        try:
            prepared_pod = pool.prepare(pod)
            objects, refresh_in = self._reader.read(prepared_pod, pool.name)
            sent_at = self._clock.time()
            # before the request: the pool cannot list its jobs, so after a crash only the pod shows that one may exist
            if follows is not None and not self._record_intent(pod, pool.name, statement, cache):
                return
            with tracing.submitting(pod, pool.name, self._clock.time):
                answer = self._send(prepared_pod, objects, pool, entry)
        except MissingReferenceError as error:
            self._back_off(entry, error)
            self.reports.waiting(pod, entry, error)
            status = hub_status.waiting(pod, error.reason, error.with_hint, self._address, self._clock.time())
            self._patch(pod, cache, hub_status.patch(pod.get("status") or {}, status))
            return
        except ScriptError as error:
            self._fail(pod, cache, "BridgeRejected", error.reason, error.with_hint)
            return
        except SiteError as error:
            if statement and not isinstance(error, SiteUnknownOutcomeError):
                with contextlib.suppress(KubeError):  # else the user must state it again
                    self._record_intent(pod, pool.name, "", cache)  # nothing was sent: the statement still counts
            if error.retryable:
                raise
            self._fail(pod, cache, "BridgeRejected", error.reason, error.with_hint)
            return
        if answer.unused:
            self._fail(pod, cache, "BridgeRejected", "NoGrant", "the site does not replace the job that had no grant")
            return
        if prepared_pod is not pod:
            entry.note = "; without its service account token: the site does not say how to reach the API server"
        self._volumes.submitted(prepared_pod, pool, objects, entry, answer, sent_at, refresh_in)
        log.info("pod submitted", extra=kv(pod=pods.key(pod), pool=pool.name, job=answer.job_id))

    def _send(self, pod: Pod, objects: Objects, pool: Pool, entry: Entry) -> JobStatus:
        # here: the lease may be lost while objects are read, and a site checks no lease
        self._check_leadership()
        with job_lifecycle.sending(entry, lambda: self._clock.monotonic() + self._submit_timeout + pool.late):
            # a kill after it: the next leader finds the job in a snapshot of the site, or the intent on the pod
            answer = pool.submit(pod, objects)
        entry.answered(self._clock.monotonic(), answer)
        return answer

    def _record_intent(self, pod: Pod, pool: str, stated: str, cache: Cache) -> bool:
        """Write to the pod that it may have been submitted; return whether the API server accepted it."""
        if pods.intent(cache.by_uid(pods.uid(pod)) or pod) == (pool, stated):
            return True
        try:
            cache.apply(self._kube.patch(PODS.path_of(pod), pods.intent_patch(pod, pool, stated), kind="strategic"))
        except (KubeNotFoundError, KubeConflictError, KubeInvalidError) as error:
            # 422 (invalid): a pod that is being deleted takes no new finalizer
            log.debug("pod is gone or being deleted", extra=kv(pod=pods.key(pod), error=error))
            return False
        return True

    def _forget(self, pod: Pod, pool: Pool, entry: Entry) -> None:
        self._check_leadership()
        pool.cancel(pod, 0, forget=True)
        entry.forgotten = True

    def _cancel(self, action: virtual_pod_decide.Cancel, pool: Pool, entry: Entry) -> None:
        pod = action.pod
        self._check_leadership()
        requested_at, job = self._clock.monotonic(), pool.cancel(pod, action.grace)
        entry.answered(requested_at, job)
        # after the answer: a request without one is repeated after the back-off, not after CANCEL_AGAIN
        entry.cancellation = Cancellation(pod["metadata"].get("deletionTimestamp") or "", self._clock.monotonic())
        if job is not None:
            self.reports.cancelled(pod, pool.name, entry, job)

    def _orphan(self, job: JobStatus, pool: Pool, entry: Entry) -> None:
        """Cancel or delete a job without a pod, if the API server itself, not only the cache, has no such pod."""
        now = self._clock.monotonic()
        try:
            current_pod = self._kube.get(PODS.path(job.namespace, job.name))
        except KubeNotFoundError:
            current_pod = None
        is_alive = current_pod is not None and pods.uid(current_pod) == job.job
        if current_pod is not None and is_alive:
            if pool.holds is None or places.keeps_job(current_pod, pool.name):
                entry.reread_at = now + FORGOTTEN  # no pause for the grant once the cache shows the pod
                return
            if places.may_return(current_pod):
                self._race.withdraw_orphan(current_pod, job, pool, entry)
                return
        if is_alive and job.phase != "ended":
            RACE_PLACES.labels(pool.name, "withdrawn").inc()
        self._check_leadership()
        if job.phase == "ended":
            entry.not_before = now + FORGOTTEN
            if pool.cancel(pod_of(job), 0, forget=True) is None:
                log.info("job deleted", extra=kv(pod=f"{job.namespace}/{job.name}", pool=pool.name, job=job.job_id))
            return
        pool.cancel(pod_of(job), 0 if is_alive else virtual_pod_decide.ORPHAN_GRACE)
        entry.cancellation = Cancellation("", now)
        extra = kv(pool=pool.name, job=job.job_id, uid=job.job)
        if is_alive:
            log.info("place withdrawn", extra=extra)
        else:
            log.warning("job without a pod cancelled", extra=extra)

    # --- on the pod ---------------------------------------------------------------------------------------------------
    def _write(self, action: virtual_pod_decide.Write, entry: Entry, cache: Cache) -> None:
        """Write status and job id in one patch: the API server accepts annotations with a status."""
        pod = action.pod
        if self._patch(pod, cache, action.patch, action.job_id):
            self.reports.trace_end(pod, action.status, action.job)
        entry.written_at = self._clock.monotonic()
        self.reports.written(pod, action.job, action.status, action.job_id, entry)

    def _patch(self, pod: Pod, cache: Cache, status: dict[str, Any], job_id: str | None = None) -> bool:
        """Write a part of the status; return whether the API server has accepted it."""
        if not status and job_id is None:
            return False
        # a precondition: the API server refuses the patch (409) for a new pod with the same name
        metadata: dict[str, Any] = {"uid": pods.uid(pod)}
        if job_id is not None:
            metadata["annotations"] = {names.REMOTE_JOB: job_id}
        return self._send_patch(pod, cache, {"metadata": metadata, "status": status}, "status")

    def _send_patch(self, pod: Pod, cache: Cache, body: dict[str, Any], sub: str | None = None) -> bool:
        try:
            answer = self._kube.patch(PODS.path_of(pod, sub), body, kind="strategic")
        except (KubeNotFoundError, KubeConflictError) as error:
            log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            return False
        cache.apply(answer)
        return True

    def _remove(self, action: virtual_pod_decide.Remove, cache: Cache) -> None:
        """Write the final status, then delete the pod: the site has confirmed its end."""
        pod = action.pod
        # the final status first: the Job of a deleted pod counts its last phase
        if self._patch(pod, cache, action.patch):
            self.reports.trace_end(pod, action.status, action.job)
        if names.POOL_FINALIZER in (pod["metadata"].get("finalizers") or ()):
            self._send_patch(pod, cache, pods.release_patch(pod))
        # grace period 0 removes the pod at once: no kubelet would confirm the end of its containers
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pods.uid(pod)}}
        try:
            answer = self._kube.delete(PODS.path_of(pod), body)
        except (KubeNotFoundError, KubeConflictError) as error:
            log.debug("pod is gone", extra=kv(pod=pods.key(pod), error=error))
            return
        if "metadata" in answer and answer.get("kind") == "Pod":
            cache.apply(answer)  # a finalizer of others may keep it
        log.info("pod removed", extra=kv(pod=pods.key(pod)))

    def _fail(self, pod: Pod, cache: Cache, event: str, reason: str, message: str) -> None:
        status = hub_status.failed(pod, reason, message, self._address, self._clock.time())
        if self._patch(pod, cache, hub_status.patch(pod.get("status") or {}, status)):
            self.reports.trace_end(pod, status, None)
        self.reports.failed(pod, event, reason, message)
        log.info("pod failed", extra=kv(pod=pods.key(pod), reason=reason, message=message[:200]))

    def _back_off(self, entry: Entry, error: BridgeError) -> None:
        entry.failures += 1
        delay = REFUSED_AGAIN if isinstance(error, KubeInvalidError) else RETRY.delay(entry.failures)
        entry.not_before = self._clock.monotonic() + delay
