"""Carries out the actions of the pool scheduler."""

from __future__ import annotations

import logging

from bridge import names
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.telemetry import tracing
from bridge.telemetry.metrics import SCHEDULER_ACTIONS, counted, label_of
from bridge.workload import places, pods
from scheduler.group_actions import SetCondition
from scheduler.pod_writer import PodWriter
from scheduler.pools import pool_decide
from scheduler.pools.usage import Usage

log = logging.getLogger(__name__)


class PoolActor:
    """Carries out the actions of :mod:`scheduler.pools.pool_decide`; called by the workers, once at a time for each
    pod.

    ``local`` gets the UIDs of the pods that go to the colocated Slurm.
    """

    def __init__(self, writer: PodWriter, usage: Usage, local: set[str]) -> None:
        self._writer = writer
        self._usage = usage
        self._local = local

    def act(self, action: pool_decide.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        name = "pool_" + label_of(type(action))
        with counted(SCHEDULER_ACTIONS, name):
            match action:
                case pool_decide.Bind():
                    self._bind(action)
                case pool_decide.Local():
                    self._local.add(pods.uid(action.pod))
                    log.info("pod goes to the colocated Slurm", extra=kv(pod=pods.key(action.pod), why=action.why))
                case pool_decide.Race():
                    self._race(action)
                case SetCondition():
                    self._writer.set_condition(action.pod, action.reason, action.message)

    def _race(self, action: pool_decide.Race) -> None:
        """Record the places first: the controllers submit only to pools that the API server has recorded."""
        self._writer.patch(action.pod, places.places_patch(action.pod, action.places))
        if names.LOCAL_POOL in action.places:
            self._local.add(pods.uid(action.pod))
        log.info("pod races", extra=kv(pod=pods.key(action.pod), places=",".join(action.places), why=action.why))

    def _bind(self, action: pool_decide.Bind) -> None:
        pod = action.pod
        try:
            self._writer.bind(pod, action.pool, {}, f"pool {action.pool}: {action.why}")
        except BridgeError:
            self._usage.forget(pods.uid(pod))  # if the pod is bound, the cache will show it
            raise
        if tracing.tracer is not None:
            tracing.scheduled(pod, action.pool, self._writer.time())
        log.info("pod bound to a pool", extra=kv(pod=pods.key(pod), pool=action.pool))
