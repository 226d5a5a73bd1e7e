"""Carries out the actions of the pool scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.metrics import SCHEDULER_ACTIONS
from bridge.workload import pods
from scheduler.pod_states import Bound, PodStates
from scheduler.pod_writer import PodWriter
from scheduler.pools import decide
from scheduler.pools.usage import Usage

log = logging.getLogger(__name__)


class Actor:
    """Carries out the actions of :mod:`scheduler.pools.decide`; called by the workers, once at a time for each pod.

    ``check_leadership`` raises when this process is not the leader. ``local`` gets the UIDs of the pods that go to the
    colocated Slurm.
    """

    def __init__(
        self,
        kube: KubeClient,
        cache: Cache,
        events: EventRecorder,
        clock: Clock,
        states: PodStates,
        usage: Usage,
        local: set[str],
        check_leadership: Callable[[], None],
    ) -> None:
        self._kube = kube.fenced(check_leadership)
        self._events = events
        self._writer = PodWriter(self._kube, cache, events, clock, states)
        self._states = states
        self._usage = usage
        self._local = local

    def act(self, action: decide.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        name = "pool-" + type(action).__name__.lower()
        try:
            match action:
                case decide.Bind():
                    self._bind(action)
                case decide.Local():
                    self._local.add(pods.uid(action.pod))
                    log.info("pod goes to the colocated Slurm", extra=kv(pod=pods.key(action.pod), why=action.why))
                case decide.Tell():
                    self._writer.tell(action.pod, action.reason, action.message)
        except BridgeError:
            SCHEDULER_ACTIONS.labels(name, "error").inc()
            raise
        SCHEDULER_ACTIONS.labels(name, "ok").inc()

    def _bind(self, action: decide.Bind) -> None:
        pod, uid = action.pod, pods.uid(action.pod)
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "binding")
        try:
            self._kube.create(path, pods.binding(pod, action.pool, {}))
        except BridgeError:
            # the pod may be gone, or bound by a request without an answer: the cache will show it
            self._usage.forget(uid)
            raise
        self._states.update(uid, lambda state: replace(state, phase=Bound()))
        self._events.event(pod, "Scheduled", f"pool {action.pool}: {action.why}", action="Binding")
        log.info("pod bound to a pool", extra=kv(pod=pods.key(pod), pool=action.pool))
