"""The use of CPU and memory at the sites: one request a pool for all its pods, cached for some seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobUsage

log = logging.getLogger(__name__)

CACHED = 8.0
"""Seconds for which an answer is cached."""
FAILED = 30.0
"""Seconds without a further request to a site that has not answered: a thread of the server waits for each request."""
SILENT = 3
"""Missing announcements after which a site is not asked."""
LEAST = 0.001
"""Seconds between two measurements of a pod, at least."""


@dataclass(frozen=True, slots=True)
class Use:
    """Seconds of CPU time, which never falls, and bytes of memory.

    ``rate``: the CPUs in use since the measurement before; ``None``: there was none.
    """

    cpu: float
    memory: int
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PodUse:
    """The use of a pod and of its running containers, by name and number of restarts, measured ``at``."""

    at: float
    pod: Use
    containers: Mapping[tuple[str, int], Use]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The use of the pods of one pool, by UID, requested ``at``. ``total``: of all; ``None``: nothing is known."""

    pods: Mapping[str, PodUse] = field(default_factory=dict)
    at: float = 0.0
    total: Use | None = None
    failed: bool = False


NOTHING = PoolUse()


class UsageCache:
    """Requests and caches the use of the running pods. It never raises: what no site says is absent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: SingleFlightCache[PoolUse] = SingleFlightCache(clock)
        self._last: dict[str, PoolUse] = {}

    def of(self, pool: Pool) -> PoolUse:
        """Return the use of a pool's pods."""
        return self._answers.get(pool.name, lambda: self._load(pool))

    def _load(self, pool: Pool) -> tuple[PoolUse, float]:
        if (request := pool.usage) is None or self._is_silent(pool):
            return NOTHING, CACHED
        jobs = [uid for uid, status in pool.jobs().items() if status.phase == "running"]
        try:
            measured = {usage.job: usage for usage in request(jobs)} if jobs else {}
        except BridgeError as error:
            log.info("the use of CPU and memory is not known", extra=kv(pool=pool.name, error=error))
            return PoolUse(failed=True), FAILED
        # the cache lets one thread load a pool at a time
        last = self._last.get(pool.name, NOTHING)
        pods = {uid: pod_use(measured[uid], last.pods.get(uid)) for uid in jobs if uid in measured}
        self._last[pool.name] = answer = PoolUse(pods, self._clock.time(), total(pods, last))
        return answer, CACHED

    def _is_silent(self, pool: Pool) -> bool:
        announced = pool.announced()
        return announced is not None and self._clock.monotonic() - announced[1] > SILENT * announced[0].period


def pod_use(measured: JobUsage, last: PodUse | None) -> PodUse:
    """Return the use of a pod; ``last``: the one before.

    A site counts the processes that it finds. One that has just ended is in no count for a moment, and one that no
    process has waited for never again, so the CPU time of a container may fall; that of a pod falls with a restart.
    """
    if last is not None and 0 <= measured.at - last.at < LEAST:
        return last
    if last is None or last.at > measured.at:  # another machine
        last = PodUse(measured.at, Use(0.0, 0), {})
    seconds = measured.at - last.at
    containers, grown = {}, 0.0
    for each in measured.containers:
        key = (each.name, each.restarts)
        before = last.containers.get(key)
        cpu = max(each.cpu, before.cpu) if before else each.cpu
        added = cpu - before.cpu if before else cpu
        containers[key] = Use(cpu, each.memory, added / seconds if before else None)
        grown += added
    memory = sum(each.memory for each in measured.containers)
    return PodUse(measured.at, Use(last.pod.cpu + grown, memory, grown / seconds if seconds else None), containers)


def total(pods: Mapping[str, PodUse], last: PoolUse) -> Use | None:
    """Return the use of all pods; ``last``: the one before. The end of a pod does not reduce its CPU time."""
    if last.total is None:
        cpu = sum(use.pod.cpu for use in pods.values())
        return Use(cpu, sum(use.pod.memory for use in pods.values())) if pods else None
    both = pods.keys() & last.pods.keys()
    grown = sum(max(0.0, pods[uid].pod.cpu - last.pods[uid].pod.cpu) for uid in both)
    rates = [use.pod.rate for use in pods.values() if use.pod.rate is not None]
    return Use(last.total.cpu + grown, sum(use.pod.memory for use in pods.values()), sum(rates))
