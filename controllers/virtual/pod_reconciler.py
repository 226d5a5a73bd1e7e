"""The reconciler of pods on virtual nodes: a work queue of pods, and its workers.

A pod is queued when it or its job has changed. A worker decides for one pod and writes to the API server. Requests to a
site run on the workers of its pool, so that a site that does not answer delays only its own pods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from bridge.clock import Clock
from bridge.core import isolation
from bridge.core.job_lifecycle import NEW, Event
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError, LostLeadershipError
from bridge.kube.work_queue import WorkQueue
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobStatus
from bridge.telemetry.metrics import POOL_ACTIONS, POOL_EVENT_SECONDS, counted, label_of
from bridge.workload import pods
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_state import Entry, ObjectKey, Pod, PodView, PoolView
from controllers.virtual.pool_state import PoolState
from controllers.virtual.virtual_pod_act import PodActor
from controllers.virtual.volume_act import unknown_until

log = logging.getLogger(__name__)

GATHER = 0.05
"""Seconds for which events of one pod are collected: containers of a pod change together."""
FAILED_AGAIN = 15.0
"""Seconds until the next decision about a pod after an unexpected error."""
LATE = 60.0
"""Seconds after its time-out for which an unknown pool may still carry out a submission."""
_URGENCY: dict[type[virtual_pod_decide.Action], int] = {
    # a script that has started holds its nodes while it waits for the grant
    race_decide.Grant: 0,
    virtual_pod_decide.Cancel: 1,
    virtual_pod_decide.Look: 2,
    virtual_pod_decide.Forget: 4,
    virtual_pod_decide.Submit: 5,
    race_decide.Offer: 6,
    virtual_pod_decide.Refresh: 7,  # a change of one object may concern the volumes of ten thousand pods
    race_decide.Withdraw: 1,
    virtual_pod_decide.Orphan: 8,
}
"""Priority of the actions that run on the pool's workers; smaller first. Other actions run at once."""


class PodReconciler:
    """Reconciles pods one by one.

    ``leading_since`` returns the monotonic time since which this process is the leader, ``None`` if it is not.
    """

    def __init__(
        self,
        actor: PodActor,
        clock: Clock,
        address: str,
        leading_since: Callable[[], float | None],
        check_leadership: Callable[[], None],
        submit_timeout: float,
    ) -> None:
        self._actor = actor
        self._submit_timeout = submit_timeout
        self._clock = clock
        self._address = address
        self._leading_since = leading_since
        self._check_leadership = check_leadership
        self.families_of: Callable[[str], Collection[str] | None] = lambda _: frozenset()
        """Returns the IP families of the Services that select the pod with this UID; ``None``: not known yet."""
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue("virtual-pods", clock=clock)
        self._lock = threading.Lock()
        """Guards these two, and the calls of each pool."""
        self._records: dict[str, PoolState] = {}
        self._changed_at: dict[tuple[str, str], float] = {}

    def start(self, supervisor: Supervisor, workers: int) -> None:
        """Start the workers."""
        for number in range(workers):
            supervisor.spawn(f"virtual-pods-{number}", lambda: self._work(supervisor.stopping), writes=True)

    @property
    def backlog(self) -> bool:
        """Whether pods are queued."""
        return len(self._queue) > 0

    def add_pool(self, record: PoolState) -> None:
        """Add the pods of a pool."""
        with self._lock:
            self._records[record.name] = record

    def remove_pool(self, name: str) -> None:
        """Remove a pool that has no pods."""
        with self._lock:
            self._records.pop(name, None)
            self._changed_at = {key: at for key, at in self._changed_at.items() if key[0] != name}

    def add(self, pool: str, uid: str) -> None:
        """Queue a pod."""
        self._queue.add((pool, uid))

    def decide_again(self, uid: str) -> None:
        """Queue a pod although neither it nor its job has changed."""
        with self._lock:
            records = list(self._records.values())
        for record in records:
            if (entry := record.entries.get(uid)) is not None:
                entry.settled = None
                self.add(record.name, uid)

    def add_soon(self, pool: str, uid: str) -> None:
        """Queue a pod whose job has changed, after a short delay."""
        if self._leading_since() is not None:
            with self._lock:
                # the first of the changes that one decision serves
                self._changed_at.setdefault((pool, uid), self._clock.monotonic())
        self._queue.add_after((pool, uid), GATHER)

    def followed(self) -> dict[ObjectKey, list[tuple[PoolState, str]]]:
        """Return the objects in volumes of pending and running jobs, with the pool and UID of each."""
        followers: dict[ObjectKey, list[tuple[PoolState, str]]] = {}
        if self._leading_since() is None:
            return followers
        with self._lock:
            records = list(self._records.values())
        for record in records:
            jobs = record.pool.jobs() if record.pool is not None else {}
            for uid, entry in record.known():
                if entry.files is not None and uid in jobs and jobs[uid].phase in ("queued", "running"):
                    for key in entry.files.versions:
                        followers.setdefault(key, []).append((record, uid))
        return followers

    def tell_version(self, follower: tuple[PoolState, str], key: ObjectKey, version: str) -> None:
        """Queue a pod if the site has another version of an object."""
        record, uid = follower
        entry = record.entries.get(uid)
        if entry is not None and entry.changed(key, version):
            self.add(record.name, uid)

    def needs(self, record: PoolState, uid: str, job: JobStatus | None) -> bool:
        """Whether the decision for a pod is to act."""
        pod, entry = record.cache.by_uid(uid), record.entries.get(uid) or Entry()
        if uid in record.calls or entry.is_settled(pod, job):
            return False
        try:
            action = virtual_pod_decide.decide(self._view(record, uid, pod, job, entry))
            return not isinstance(action, virtual_pod_decide.Wait | None)
        except Exception as error:
            isolation.report("virtual-pods", uid, error)
            return False  # it is queued already, with a pause

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            key = self._queue.get(0.5)
            if key is None:
                continue
            try:
                if self._leading_since() is not None:
                    self._check_leadership()
                    self._reconcile(*key)
            except LostLeadershipError as error:
                log.warning("not sent: this process is not the leader any more", extra=kv(key=key, error=error))
            except Exception as error:
                self._report_unexpected(*key, error)
            finally:
                self._queue.done(key)

    def _report_unexpected(self, name: str, uid: str, error: Exception) -> None:
        """Report an unexpected error about a pod, in its condition too, and decide again later."""
        unexpected = isolation.report("virtual-pods", f"{name}/{uid}", error)
        self._queue.add_after((name, uid), FAILED_AGAIN)
        record = self._records.get(name)
        pod = record.cache.by_uid(uid) if record is not None else None
        if record is not None and pod is not None:
            self._report(record, pod, str(unexpected))

    def _report(self, record: PoolState, pod: Pod, message: str) -> None:
        try:
            self._actor.report(pod, message, record.cache)
        except BridgeError as error:
            log.warning("condition not written", extra=kv(pod=pods.key(pod), error=error))

    def _reconcile(self, name: str, uid: str) -> None:
        record = self._records.get(name)
        if record is not None and uid in record.calls:
            return  # the pod is queued again when the call has ended
        with self._lock:
            changed_at = self._changed_at.pop((name, uid), None)
        if record is None or not record.usable or not record.cache.synced:
            return  # the pod is queued again when this changes
        pod = record.cache.by_uid(uid)
        job = record.pool.job(uid) if record.pool is not None else None
        if pod is None and job is None and record.racer(uid) is None:
            record.forget(uid)
            return
        if pod is not None:
            record.follow(pod)
        entry = record.entries.get(uid) or record.begin(uid, self._new_entry(pod, record.pool))
        # before the decision: the rest of the grace period counts from here
        entry.see(pod, self._clock.monotonic())
        if entry.is_settled(pod, job):
            return
        if job is not None:
            entry.listed(job, self._clock.monotonic())
            record.note(uid, entry)
            if pod is not None:
                self._actor.reports.occurrences(pod, job, entry)
        action = virtual_pod_decide.decide(self._view(record, uid, pod, job, entry))
        if pod is not None and pods.has_error(pod):
            self._report(record, pod, "")
        if action is None:
            entry.settled = None if pod is None or job is None else (pod["metadata"]["resourceVersion"], job)
            return
        self._carry_out(action, uid, record, entry)
        if changed_at is not None and isinstance(action, virtual_pod_decide.Write) and not entry.failures:
            POOL_EVENT_SECONDS.observe(self._clock.monotonic() - changed_at)

    def _carry_out(self, action: virtual_pod_decide.Action, uid: str, record: PoolState, entry: Entry) -> None:
        if isinstance(action, virtual_pod_decide.Wait):
            self._queue.add_after((record.name, uid), max(0.01, action.seconds))
        elif type(action) in _URGENCY:
            self._submit_to_pool(uid, record, action, entry)
        else:
            self._act(uid, record, action, entry)

    def _view(self, record: PoolState, uid: str, pod: Pod | None, job: JobStatus | None, entry: Entry) -> PodView:
        pool = record.pool
        view = PoolView(
            name=record.name,
            synced=record.cache.synced,
            complete_at=pool.complete_at() if pool is not None else None,
            ready=pool is not None and pool.ready().ok,
            leading_since=self._leading_since() or 0.0,
            address=self._address,
            lists=pool is None or pool.lists is not None,
        )
        brake = record.brake
        may_fail = uid in brake.allowed
        is_held = brake.engaged and uid in brake.missing and not may_fail
        racer = record.racer(uid) if pod is None else None
        families = self.families_of(uid)
        now, time = self._clock.monotonic(), self._clock.time()
        return PodView(pod, job, entry, view, now, time, may_fail, is_held, racer, families)

    def _new_entry(self, pod: Pod | None, pool: Pool | None) -> Entry:
        entry = Entry()
        if pod is None:
            return entry
        if virtual_pod_decide.remote_job(pod):
            entry.refresh_at = unknown_until(pod, self._clock.monotonic())
        elif pods.has_intent(pod) and not pods.is_finished(pod):
            # an earlier process may have sent the request a moment ago
            late_seconds = pool.late if pool is not None else LATE
            until = self._clock.monotonic() + self._submit_timeout + late_seconds
            entry.lifecycle = NEW.after(Event.SEND).unanswered(until)
        return entry

    def _submit_to_pool(self, uid: str, record: PoolState, action: virtual_pod_decide.Action, entry: Entry) -> None:
        """Run a request to the site on the pool's workers, and queue the pod again afterwards."""
        with self._lock:
            record.calls.add(uid)

        def call() -> None:
            try:
                self._act(uid, record, action, entry)
            finally:
                with self._lock:
                    record.calls.discard(uid)
                self._queue.add((record.name, uid))

        # the last call for this pod has left the set, but its worker is not done
        if not record.workers.submit(uid, call, _URGENCY[type(action)]):
            with self._lock:
                record.calls.discard(uid)
            self._queue.add_after((record.name, uid), GATHER)

    def _act(self, uid: str, record: PoolState, action: virtual_pod_decide.Action, entry: Entry) -> None:
        kind = label_of(type(action))
        try:
            with counted(POOL_ACTIONS, kind):
                self._actor.act(action, record.pool, entry, record.cache)
        except LostLeadershipError:
            raise
        except BridgeError as error:
            # a site that is down fails the calls of all its pods, each with a back-off of 30 s at most
            if entry.failures in (1, 2) or entry.failures % 10 == 0:
                extra = kv(pool=record.name, uid=uid, action=kind, failures=entry.failures, error=error)
                log.warning("action failed; it will be repeated", extra=extra)
            self._queue.add_after((record.name, uid), max(GATHER, entry.not_before - self._clock.monotonic()))
        finally:
            record.note(uid, entry)
