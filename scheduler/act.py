"""Carries the scheduler's actions out: the only place of it that writes to Slurm or to Kubernetes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bridge import names
from bridge.backoff import Backoff
from bridge.errors import (
    BridgeError,
    KubeConflictError,
    KubeNotFoundError,
    SlurmError,
    SlurmRefusedError,
    SlurmUnavailableError,
    SlurmUnknownOutcomeError,
)
from bridge.fencing import fence
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.loop import Dependencies
from bridge.metrics import SCHEDULER_ACTIONS, START_TO_BIND_SECONDS
from bridge.slurm import states
from bridge.slurm.cancelling import cancel_if_ours
from bridge.workload import pods, translate
from bridge.workload.annotations import InvalidAnnotationsError
from scheduler import decide
from scheduler.attempts import REFUSED, UNAVAILABLE, Attempts
from scheduler.conditions import write_condition
from scheduler.placement import Placement, Placements

log = logging.getLogger(__name__)

NO_NODE = Backoff(first=1, limit=15)
"""While no node of the pod's partition fits: nodes change without telling the pod."""

MOST_LOST = 3
"""Jobs of a waiting pod that may vanish within 10 minutes before it is submitted more slowly."""

URGENCY: dict[type[decide.Action], int] = {
    decide.Bind: 1,
    decide.Hold: 2,
    decide.Release: 2,
    decide.Cancel: 2,
    decide.GiveBack: 3,
    decide.Submit: 4,
    decide.Exclude: 6,
    decide.Tell: 9,
}


class Actor:
    """Does what :mod:`scheduler.decide` decided.

    ``check_leadership`` raises :class:`~bridge.errors.LostLeadershipError` when this process is not the leader. It is
    called right before every write to Slurm; ``kube`` is fenced and calls it itself.
    """

    def __init__(self, dependencies: Dependencies, attempts: Attempts, check_leadership: Callable[[], None]) -> None:
        self._dependencies = dependencies
        self._config = dependencies.config
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.pods
        self._events = dependencies.events
        self._clock = dependencies.clock
        self._attempts = attempts
        self._check_leadership = check_leadership
        self.placements = Placements([], {}, {})

    def act(self, action: decide.Action) -> None:
        """Carry one action out; what matters to the pod is remembered for it, other errors go to the caller."""
        name = type(action).__name__.lower()
        try:
            match action:
                case decide.Submit():
                    self._submit(action)
                case decide.Hold():
                    self._hold(action.pod, action.job_id)
                case decide.Bind():
                    self._bind(action)
                case decide.Release():
                    self._release(action)
                case decide.Cancel():
                    self._cancel(action.pod, action.job_id)
                    log.warning(
                        "cancelled a second job of a pod", extra=kv(pod=pods.key(action.pod), job=action.job_id)
                    )
                case decide.GiveBack():
                    self._give_back(action)
                case decide.Exclude():
                    self._exclude(action)
                case decide.Tell():
                    self._tell(action)
        except BridgeError:
            SCHEDULER_ACTIONS.labels(name, "error").inc()
            raise
        SCHEDULER_ACTIONS.labels(name, "ok").inc()

    def _submit(self, action: decide.Submit) -> None:
        pod = self._cache.by_uid(pods.uid(action.pod))
        if pod is None or pods.is_deleted(pod) or pods.is_bound(pod):
            return
        attempt = self._attempts.of(pods.uid(pod))
        snapshot = self._poller.snapshot
        known = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(pods.uid(pod), ())]
        if any(decide.lives(entry, attempt) for entry in known):
            return  # found since this was decided: another process's request, carried out late
        lost = sum(entry.missing and states.end_of(entry.job.states) is None for entry in known)
        if lost >= MOST_LOST:
            self._refused(pod, LostJobsError(f"Slurm lost {lost} jobs of this pod, or their comments"), REFUSED)
            return
        try:
            placement = self.placements.of(pod, self._config.partition)
            self._check_nodes(placement)
            version = self._slurm.version
            excluded = placement.refused if version.exclude_nodes else ()
            request = translate.request(pod, self._config, version, self._dependencies.cluster, excluded)
            with fence(self._check_leadership):
                submitted = self._slurm.submit(request)
        except SlurmUnknownOutcomeError as error:
            attempt.unknown_at = self._clock.monotonic()
            attempt.failed(self._clock.monotonic(), UNAVAILABLE, error.reason, str(error))
            self._poller.wake()
            raise
        except SlurmUnavailableError as error:
            attempt.failed(self._clock.monotonic(), UNAVAILABLE, error.reason, str(error))
            raise
        except (SlurmError, translate.UntranslatableError, InvalidAnnotationsError) as error:
            self._refused(pod, error, REFUSED)
            return
        attempt.succeeded(submitted.job_id, self._clock.monotonic())
        log.info("job submitted", extra=kv(pod=pods.key(pod), job=submitted.job_id))
        attempt.excluded = request.excluded_nodes
        self._poller.expect(submitted.job_id, request.link)
        self._poller.wake()
        self._hold(pod, submitted.job_id)
        if submitted.warning:
            self._events.event(pod, "SlurmWarning", f"Slurm job {submitted.job_id}: {submitted.warning}", warning=True)

    def _check_nodes(self, placement: Placement) -> None:
        """Refuse a pod that no node fits, or that Slurm could give a forbidden node because it can't exclude any."""
        if not placement.eligible:
            raise NoNodeError(f"no node fits: {placement.summary() or 'Slurm has none in the partition'}")
        if self._slurm.version.exclude_nodes:
            return
        nodes = self._poller.snapshot.nodes
        open_nodes = [n for n in placement.refused if n in nodes and not states.is_drained(nodes[n].states)]
        if open_nodes:
            reasons = ", ".join(f"{name} ({placement.refused[name]})" for name in open_nodes[:5])
            raise NoNodeError(
                f"Slurm could give nodes that Kubernetes refuses, and its API {self._slurm.version.name} can't exclude "
                f"them: {reasons}"
            )

    def _refused(self, pod: decide.Pod, error: BridgeError, backoff: Backoff) -> None:
        attempt = self._attempts.of(pods.uid(pod))
        backoff = NO_NODE if isinstance(error, NoNodeError) else backoff
        again = attempt.problem == (error.reason, str(error))
        attempt.failed(self._clock.monotonic(), backoff, error.reason, str(error))
        self._events.event(pod, error.reason, str(error), warning=True)
        if attempt.told[0] != error.reason:
            attempt.told = (error.reason, "")  # no second Event with the condition
        level = logging.DEBUG if again else logging.INFO
        log.log(level, "not submitted", extra=kv(pod=pods.key(pod), reason=error.reason, error=error))

    def _hold(self, pod: decide.Pod, job_id: int) -> None:
        try:
            self._patch(pod, pods.hold_patch(pod, job_id, self._config.scheduler_name))
        except KubeNotFoundError:
            self._cancel(pod, job_id)
        except KubeConflictError:
            if self._current(pod) is not None:
                raise
            self._cancel(pod, job_id)

    def _current(self, pod: decide.Pod) -> dict[str, Any] | None:
        """Read the pod afresh; ``None`` if it is gone, or another one has its name."""
        try:
            found = self._kube.get(PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"]))
        except KubeNotFoundError:
            return None
        return found if pods.uid(found) == pods.uid(pod) else None

    def _bind(self, action: decide.Bind) -> None:
        pod = self._cache.by_uid(pods.uid(action.pod))
        if pod is None or pods.is_deleted(pod) or pods.is_bound(pod):
            return
        if pods.job_id(pod) != action.job_id or not pods.is_held(pod):
            self._hold(pod, action.job_id)
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "binding")
        given = {names.NODE_ANNOTATION: action.node, names.SLURM_NODE_ANNOTATION: action.slurm_node}
        # fails also where the pod is gone, deleted, or bound by a request whose answer was lost: the cache will tell
        self._kube.create(path, pods.binding(pod, action.node, given))
        self._attempts.of(pods.uid(pod)).bound = True
        START_TO_BIND_SECONDS.observe(max(0.0, self._clock.time() - action.started))
        self._events.event(pod, "Scheduled", f"Slurm job {action.job_id} gave node {action.node}", action="Binding")
        log.info("pod bound", extra=kv(pod=pods.key(pod), job=action.job_id, node=action.node))

    def _release(self, action: decide.Release) -> None:
        for job_id in action.job_ids:
            self._cancel(action.pod, job_id)
        self._attempts.of(pods.uid(action.pod)).submitted = 0
        if pods.is_held(action.pod):
            self._patch(action.pod, pods.unhold_patch(action.pod))
        log.info("waiting pod released", extra=kv(pod=pods.key(action.pod), jobs=action.job_ids))

    def _cancel(self, pod: decide.Pod, job_id: int) -> None:
        cancel_if_ours(self._slurm, job_id, self._dependencies.cluster, [pods.uid(pod)], self._check_leadership)
        self._attempts.of(pods.uid(pod)).cancelled.add(job_id)
        self._poller.wake()

    def _give_back(self, action: decide.GiveBack) -> None:
        self._patch(action.pod, pods.forget_job_patch(action.pod))
        self._cancel(action.pod, action.job_id)
        attempt = self._attempts.of(pods.uid(action.pod))
        attempt.failed(self._clock.monotonic(), REFUSED, "NodeRefused", action.why)
        self._events.event(
            action.pod, "NodeRefused", f"Slurm job {action.job_id} given back: {action.why}", warning=True
        )

    def _exclude(self, action: decide.Exclude) -> None:
        attempt = self._attempts.of(pods.uid(action.pod))
        try:
            with fence(self._check_leadership):
                self._slurm.set_excluded_nodes(action.job_id, action.nodes)
        except SlurmRefusedError as error:
            # the job has started meanwhile, or all nodes are forbidden now: the node is checked again before the bind
            attempt.exclude_not_before = self._clock.monotonic() + UNAVAILABLE.limit
            log.info("excluded nodes not changed", extra=kv(pod=pods.key(action.pod), error=error))
            return
        attempt.excluded = action.nodes

    def _tell(self, action: decide.Tell) -> None:
        attempt = self._attempts.of(pods.uid(action.pod))
        write_condition(
            action.pod,
            attempt,
            action.reason,
            action.message,
            write=self._patch,
            events=self._events,
            clock=self._clock,
        )

    def _patch(self, pod: decide.Pod, patch: dict[str, Any], sub: str | None = None) -> None:
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], sub)
        self._cache.apply(
            self._kube.patch(path, pods.conditional(patch, self._cache.by_uid(pods.uid(pod)) or pod), kind="strategic")
        )


class LostJobsError(BridgeError):
    """Slurm did not keep the last jobs of a pod: nobody would cancel another one."""

    reason = "SlurmJobsLost"
    hint = "does a plugin of slurmctld change admin_comment?"


class NoNodeError(translate.UntranslatableError):
    """Kubernetes would refuse every node that Slurm could give."""
