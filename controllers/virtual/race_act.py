"""Carries out the actions for places of pods that race: offers to sites, the Binding that is the grant, its message."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.clock import Clock
from bridge.core import job_lifecycle
from bridge.errors import (
    KubeConflictError,
    KubeNotFoundError,
    MissingReferenceError,
    ScriptError,
    SiteError,
    SiteRefusedError,
)
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobStatus
from bridge.telemetry.metrics import RACE_GRANT_SECONDS, RACE_PLACES
from bridge.workload import places, pods, remote_gangs
from controllers.virtual import race_decide
from controllers.virtual.pod_reports import PodReports
from controllers.virtual.pod_state import Cancellation, Entry, Pod
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.volume_act import VolumeActor

log = logging.getLogger(__name__)

WITHDRAWN_AGAIN = 30.0
"""Seconds until the pod of a withdrawn place is read again: it may be gone, or bound elsewhere."""
REFUSED_AGAIN = 300.0
"""Seconds until a place that a site has refused is offered again: an administrator or the user must act first."""
CONFLICT_AGAIN = 0.5
"""Seconds until a Binding is sent again after the pod has changed twice meanwhile."""


class RaceActor:
    """Carries out :mod:`controllers.virtual.race_decide`. ``kube`` is fenced; ``wait``: seconds that a script waits.

    ``check_leadership`` raises LostLeadershipError. It only saves requests: the Binding makes a grant safe.
    """

    def __init__(
        self,
        kube: KubeClient,
        reports: PodReports,
        reader: ReferenceReader,
        volumes: VolumeActor,
        clock: Clock,
        check_leadership: Callable[[], None],
        submit_timeout: float,
        wait: float,
    ) -> None:
        self._kube, self._reports, self._reader, self._clock = kube, reports, reader, clock
        self._volumes = volumes
        self._check_leadership = check_leadership
        self._submit_timeout, self._wait = submit_timeout, wait

    def offer(self, pod: Pod, pool: Pool, entry: Entry) -> None:
        """Submit a job that waits for its grant. A place that the site or the pod rules out is offered again later."""
        if not pool.ready().ok:
            return
        try:
            holds = pool.holds
            if holds is None or not holds.allows_race():
                raise SiteRefusedError("the site allows no race", reason="RaceNotAllowed")
            prepared_pod = pool.prepare(pod)
            objects, refresh_in = self._reader.read(prepared_pod, pool.name)
            self._check_leadership()
            sent_at = self._clock.time()
            with job_lifecycle.sending(entry, lambda: self._clock.monotonic() + self._submit_timeout + pool.late):
                # after a kill, the next snapshot of the site lists the job by the UID of the pod
                answer = holds.offer(prepared_pod, objects, self._wait)
        except (ScriptError, MissingReferenceError, SiteError) as error:
            if isinstance(error, SiteError) and error.retryable:
                raise
            self._refused(pod, pool, entry, error.reason, error.with_hint)
            return
        now = self._clock.monotonic()
        entry.answered(now, answer)
        entry.offers, entry.offered_at = entry.offers + 1, now
        self._volumes.submitted(prepared_pod, pool, objects, entry, answer, sent_at, refresh_in)
        RACE_PLACES.labels(pool.name, "offered").inc()
        self._reports.offered(pod, pool.name, answer)
        log.info("place offered", extra=kv(pod=pods.key(pod), pool=pool.name, job=answer.job_id))

    def _refused(self, pod: Pod, pool: Pool, entry: Entry, reason: str, text: str) -> None:
        entry.not_before = self._clock.monotonic() + REFUSED_AGAIN
        if self._reports.refused(pod, pool.name, entry, reason, text):
            RACE_PLACES.labels(pool.name, "refused").inc()

    def claim(self, pod: Pod, ticket: str, pool: Pool, entry: Entry) -> None:
        """Send the Binding with the grant for this ticket. After a conflict, the pod is read from the API server."""
        if entry.asked_at is None:
            entry.asked_at = self._clock.monotonic()
        # once more with the pod as the API server has it: the resource version in the cache may be old
        for _ in range(2):
            # a kill after the Binding: the next leader finds a bound pod whose job asks with its ticket, and sends the
            # grant
            if self._bind(pod, ticket, pool.name):
                self._granted(pod, ticket, pool, entry)
                return
            current = self.current(pod)
            if current is not None and places.is_granted(current, pool.name, ticket):
                self._granted(pod, ticket, pool, entry)  # an earlier Binding got no answer
                return
            # another gang: this job is not that of the pod's group any more
            is_same = current is not None and remote_gangs.place_of(current) == remote_gangs.place_of(pod)
            if current is None or not is_same or pool.name not in places.open_pools(current):
                RACE_PLACES.labels(pool.name, "lost").inc()
                break
            pod = current
        entry.not_before = self._clock.monotonic() + CONFLICT_AGAIN

    def _bind(self, pod: Pod, ticket: str, pool: str) -> bool:
        try:
            self._kube.create(PODS.path_of(pod, "binding"), places.grant_binding(pod, pool, ticket))
        except (KubeConflictError, KubeNotFoundError) as error:
            log.debug("no grant", extra=kv(pod=pods.key(pod), pool=pool, error=error))
            return False
        return True

    def _granted(self, pod: Pod, ticket: str, pool: Pool, entry: Entry) -> None:
        entry.claimed = ticket
        RACE_PLACES.labels(pool.name, "granted").inc()
        if entry.asked_at is not None:
            RACE_GRANT_SECONDS.observe(self._clock.monotonic() - entry.asked_at)
        self._reports.granted(pod, pool.name)
        log.info("place granted", extra=kv(pod=pods.key(pod), pool=pool.name, ticket=ticket))

    def current(self, pod: Pod) -> Pod | None:
        """Read the pod from the API server; ``None`` if it is gone, or if another pod has its name."""
        try:
            current_pod = self._kube.get(PODS.path_of(pod))
        except KubeNotFoundError:
            return None
        return current_pod if pods.uid(current_pod) == pods.uid(pod) else None

    def withdraw_orphan(self, pod: Pod, job: JobStatus, pool: Pool, entry: Entry) -> None:
        """End the job of a pod that has neither a node nor a place here. It may get either later.

        So the record of the job stays at the site, for the next submission to replace, until the pod is gone or bound.
        """
        if job.phase in ("queued", "unknown"):
            RACE_PLACES.labels(pool.name, "withdrawn").inc()
            self.withdraw(pod, pool, entry)
            log.info("place withdrawn", extra=kv(pool=pool.name, job=job.job_id, uid=job.job))
        else:
            entry.reread_at = self._clock.monotonic() + WITHDRAWN_AGAIN

    def withdraw(self, pod: Pod, pool: Pool, entry: Entry) -> None:
        """End the job, if it has no grant."""
        if pool.holds is None:
            return
        self._check_leadership()
        entry.answered(self._clock.monotonic(), pool.holds.withdraw(pod))
        entry.cancellation = Cancellation("", self._clock.monotonic())

    def grant(self, action: race_decide.Grant, pool: Pool, entry: Entry) -> None:
        """Tell the site that the script may begin."""
        if pool.holds is None:
            return
        self._check_leadership()
        entry.granted_at = self._clock.monotonic()
        entry.answered(entry.granted_at, pool.holds.grant(action.pod, action.ticket))
