"""One replica acts at a time: a Lease, taken and renewed as client-go does, so both can compete for the same one.

Two rules make it safe in spite of clocks that differ and processes that are stopped and continued:

- Another's lease counts as abandoned only after *this* process has seen it unchanged for its whole duration; the times
  written in it are for people.
- The own lease counts from *before* the request that renewed it was sent, on the monotonic clock, and every write asks
  :meth:`Elector.check` first. Whoever takes over has waited from a later moment, so two never hold it at once.

What is left is the time between the check and the arrival of the write; there only preconditions in the writes help.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable
from typing import Any

from bridge.clock import Clock, SystemClock, rfc3339
from bridge.errors import BridgeError, KubeConflictError, KubeError, KubeNotFoundError, LostLeadershipError
from bridge.kube.client import KubeClient
from bridge.kube.resources import LEASES
from bridge.logs import kv
from bridge.metrics import LEADER
from bridge.threads import Supervisor

log = logging.getLogger(__name__)

JITTER = 1.2
_CLOCK = SystemClock()


class Elector:
    """Competes for the Lease ``namespace/name`` under the name ``identity``, which no other process may use."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration: float = 15,
        renew_deadline: float = 10,
        retry_period: float = 2,
        clock: Clock = _CLOCK,
        rand: Callable[[], float] = random.random,
    ) -> None:
        # a request that hangs must leave time for another within the deadline
        self._client = client.hurried(renew_deadline / 2)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._clock = clock
        self._rand = rand
        self._held_until = -math.inf
        self._seen: dict[str, Any] | None = None  # the newest state of the lease, as far as known
        self._seen_at = -math.inf
        self._acquired = threading.Event()
        self._handed_over = True
        self._gauge = LEADER.labels(name)
        self._gauge.set(0)

    @property
    def held(self) -> bool:
        """Whether this process surely holds the lease now."""
        return self._clock.monotonic() < self._held_until

    @property
    def inherited(self) -> bool:
        """Whether another process may have written until this one took the lease: it did not give the lease up."""
        return not self._handed_over

    def check(self) -> None:
        """Raise :class:`LostLeadershipError` unless the lease is held: to be called right before each write."""
        if not self.held:
            raise LostLeadershipError(f"the lease {self._namespace}/{self._name} is not held by {self._identity}")

    def wait_held(self, stop: threading.Event) -> bool:
        """Wait until the lease is held; gives ``False`` when ``stop`` was set first (noticed within half a second)."""
        while not stop.is_set():
            if self._acquired.wait(0.5) and self.held:
                return True
        return False

    def run(self, supervisor: Supervisor) -> None:
        """Acquire, then renew, until the process stops; ends it when the lease is lost after having been held."""
        while not self._attempt():
            if supervisor.wait(self._retry_period * (1 + JITTER * self._rand())):
                return
        log.info("leader lease acquired", extra=kv(lease=self._name, identity=self._identity))
        self._gauge.set(1)
        self._acquired.set()
        while not supervisor.wait(self._retry_period):
            if not self._renew():
                self._held_until = -math.inf
                self._gauge.set(0)
                supervisor.fail(f"leader lease lost: {self._namespace}/{self._name}")
                return

    def release(self) -> None:
        """Release the lease, so that another process takes it at once.

        For a clean stop, once no write can be under way any more: the successor relies on that (:attr:`inherited`).
        """
        if not self.held or self._seen is None:
            return
        self._held_until = -math.inf
        self._gauge.set(0)
        spec = {**self._seen["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec["renewTime"] = rfc3339(self._clock.time(), micro=True)
        try:
            self._client.replace(self._path(), {**self._seen, "spec": spec})
            log.info("leader lease released", extra=kv(lease=self._name))
        except BridgeError as error:
            log.warning("leader lease not released", extra=kv(lease=self._name, error=str(error)))

    def _renew(self) -> bool:
        """Renew until it works, or time is up; says whether the lease is still ours."""
        give_up = self._held_until - self._lease_duration + self._renew_deadline
        if self._clock.monotonic() >= self._held_until:
            return False  # the process was stopped for long: even if nobody took over, others may be about to
        return self._attempt() or (self._clock.monotonic() < give_up and not self._taken())

    def _taken(self) -> bool:
        return self._holder() != self._identity

    def _attempt(self) -> bool:
        """Try once to take or renew the lease. Trouble with the API is logged, and means no."""
        try:
            return self._take()
        except KubeConflictError:
            self._read()  # somebody wrote, maybe ourselves in a request whose answer was lost
        except KubeNotFoundError:
            self._seen = None  # deleted: if it was ours, anybody may have a new one by now
        except KubeError as error:
            log.warning("leader lease not written", extra=kv(lease=self._name, error=str(error)))
        return False

    def _read(self) -> None:
        try:
            self._observe(self._client.get(self._path()))
        except KubeNotFoundError:
            self._seen = None
        except KubeError as error:
            log.debug("leader lease not read", extra=kv(lease=self._name, error=str(error)))

    def _take(self) -> bool:
        if not self.held:
            self._read()
        sent_at = self._clock.monotonic()
        now = rfc3339(self._clock.time(), micro=True)
        mine: dict[str, Any] = {"holderIdentity": self._identity, "renewTime": now}
        mine["leaseDurationSeconds"] = math.ceil(self._lease_duration)
        if self._seen is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"namespace": self._namespace, "name": self._name},
                "spec": {**mine, "acquireTime": now, "leaseTransitions": 0},
            }
            answer = self._client.create(LEASES.path(self._namespace), body)
        else:
            spec = self._seen["spec"]
            if self._holder() != self._identity:
                if self._holder() and self._clock.monotonic() < self._abandoned_at():
                    return False
                mine |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
            # the resourceVersion of what was seen makes this fail if anybody wrote since
            answer = self._client.replace(self._path(), {**self._seen, "spec": {**spec, **mine}})
        self._observe(answer)
        self._held_until = sent_at + self._lease_duration
        return True

    def _observe(self, lease: dict[str, Any]) -> None:
        lease.setdefault("spec", {})
        if self._seen is None or self._seen["spec"] != lease["spec"]:
            self._seen_at = self._clock.monotonic()
        self._seen = lease
        if not self.held and self._holder() != self._identity:
            self._handed_over = not self._holder()

    def _holder(self) -> str:
        return (self._seen or {"spec": {}})["spec"].get("holderIdentity") or ""

    def _abandoned_at(self) -> float:
        assert self._seen is not None  # noqa: S101
        return self._seen_at + (self._seen["spec"].get("leaseDurationSeconds") or self._lease_duration)

    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)
