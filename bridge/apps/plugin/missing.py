"""Ends jobs that the batch system no longer lists, as the hub does for its own pods.

Such a job began, and nothing shows that it has ended. Its script is cancelled, unless many jobs disappear at once: see
:mod:`bridge.control.brake`. Only jobs whose pods a client of the plugin has named count: over NATS, a hub may have
others with the same owner, and decides about those itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from bridge.apps.plugin.directory import Directory
from bridge.clock import Clock
from bridge.control import brake
from bridge.core.threads import at_once
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError
from bridge.logs import kv
from bridge.pools.pool_interface import Pod, Pool
from bridge.protocol.model.jobs import pod_of

log = logging.getLogger(__name__)

PERIOD = 10.0
CANCELLERS = 8
"""Sites at which missing jobs are cancelled at once."""
LIMITS = brake.GuardLimits(settle=PERIOD)


class RequestedPods:
    """UIDs of the pods that clients have named. Thread-safe."""

    def __init__(self, uids: Iterable[str] = ()) -> None:
        self._uids = set(uids)
        self._lock = threading.Lock()

    def add(self, uids: Iterable[str]) -> None:
        """Add the UIDs that a request names."""
        with self._lock:
            self._uids.update(uids)

    def keep(self, uids: set[str]) -> frozenset[str]:
        """Remove all others than these; return those that are left."""
        with self._lock:
            self._uids &= uids
            return frozenset(self._uids)


class MissingJobs:
    """Checks the pools of a directory.

    ``requested``: the pods that clients have named; those without a job are removed.
    """

    def __init__(
        self, directory: Directory, clock: Clock, requested: RequestedPods, limits: brake.GuardLimits = LIMITS
    ) -> None:
        self._directory, self._clock, self._requested, self._limits = directory, clock, requested, limits
        self._brakes: dict[str, brake.Brake] = {}

    def step(self) -> None:
        """Check once; call this every :data:`PERIOD` seconds."""
        pools: Mapping[str, Pool] = self._directory.pools()
        views = {name: pool.jobs() for name, pool in pools.items()}
        requested = self._requested.keep({uid for view in views.values() for uid in list(view)})
        allowed: dict[str, list[Pod]] = {}
        for name, pool in pools.items():
            jobs = {uid: status for uid, status in views[name].items() if uid in requested}
            missing = pool.lists.missing() & jobs.keys() if pool.lists is not None else frozenset()
            before = self._brakes.get(name, brake.Brake())
            # an ended job cannot be missing, and would make the share of the missing ones too small
            expected = sum(status.phase != "ended" for status in jobs.values())
            after = brake.step(before, expected, missing, self._clock.monotonic(), self._limits, reported=missing)
            if after.engaged and not before.engaged:
                extra = kv(pool=name, jobs=len(missing))
                log.error("many jobs are missing at once; none is cancelled yet", extra=extra)
            self._brakes[name] = after
            allowed[name] = [pod_of(jobs[uid]) for uid in sorted(after.allowed & jobs.keys())]
        # a site that does not answer must not delay the cancellations at others
        at_once(CANCELLERS, lambda name: _cancel(pools[name], allowed[name]), filter(allowed.get, pools))
        self._brakes = {name: state for name, state in self._brakes.items() if name in pools}


def _cancel(pool: Pool, pods: Sequence[Pod]) -> None:
    """Cancel the jobs of pods at one site; the next check repeats those that the site did not answer."""
    for pod in pods:
        job = pod["metadata"]["uid"]
        log.warning("the batch system no longer lists a job; it is cancelled", extra=kv(pool=pool.name, job=job))
        try:
            pool.cancel(pod, 0)
        except SiteError as error:
            log.warning("a missing job was not cancelled", extra=kv(pool=pool.name, job=job, error=error))
            if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
                return
