"""Carries the pool scheduler's decisions out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.metrics import SCHEDULER_ACTIONS
from bridge.workload import pods
from scheduler.attempts import Attempts
from scheduler.conditions import write_condition
from scheduler.pools import decide
from scheduler.pools.usage import Usage

log = logging.getLogger(__name__)


class Actor:
    """Binds pods to virtual nodes; ``check_leadership`` raises once this process leads no more.

    ``local`` collects the UIDs of pods that go to the colocated Slurm.
    """

    def __init__(
        self,
        kube: KubeClient,
        cache: Cache,
        events: EventRecorder,
        clock: Clock,
        attempts: Attempts,
        usage: Usage,
        local: set[str],
        check_leadership: Callable[[], None],
    ) -> None:
        self._kube = kube.fenced(check_leadership)
        self._cache = cache
        self._events = events
        self._clock = clock
        self._attempts = attempts
        self._usage = usage
        self._local = local

    def act(self, action: decide.Action) -> None:
        """Carry one action out."""
        name = "pool-" + type(action).__name__.lower()
        try:
            match action:
                case decide.Bind():
                    self._bind(action)
                case decide.Local():
                    self._local.add(pods.uid(action.pod))
                    log.info("pod goes to the colocated Slurm", extra=kv(pod=pods.key(action.pod), why=action.why))
                case decide.Tell():
                    attempt = self._attempts.of(pods.uid(action.pod))
                    reason, message = action.reason, action.message
                    write_condition(
                        action.pod,
                        attempt,
                        reason,
                        message,
                        write=self._patch,
                        events=self._events,
                        clock=self._clock,
                    )
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
            # also when the pod is gone, or bound by a request whose answer was lost: the cache will tell
            self._usage.forget(uid)
            raise
        self._attempts.of(uid).bound = True
        self._events.event(pod, "Scheduled", f"pool {action.pool}: {action.why}", action="Binding")
        log.info("pod bound to a pool", extra=kv(pod=pods.key(pod), pool=action.pool))

    def _patch(self, pod: decide.Pod, patch: dict[str, Any], sub: str) -> None:
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], sub)
        self._cache.apply(
            self._kube.patch(path, pods.conditional(patch, self._cache.by_uid(pods.uid(pod)) or pod), kind="strategic")
        )
