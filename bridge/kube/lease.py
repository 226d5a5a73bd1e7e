"""Leader election with a Lease, compatible with client-go.

Two rules make it safe with clocks that differ and processes that are suspended and resumed:

- A lease of another process has expired only after *this* process has seen it unchanged for its whole duration. The
  times in the lease are for information only.
- The own lease is valid from the moment *before* its renewal was sent, on the monotonic clock, and each write calls
  :meth:`Elector.check` first. A successor measures from a later moment, so two processes never hold the lease.

The time between the check and the arrival of the write remains; preconditions in the writes cover it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import Any

from bridge.clock import SYSTEM_CLOCK, Clock, rfc3339
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError, KubeConflictError, KubeError, KubeNotFoundError, LostLeadershipError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import LEASES
from bridge.logs import kv
from bridge.telemetry.metrics import LEADER

log = logging.getLogger(__name__)

JITTER = 1.2


class Elector:
    """Competes for the Lease ``namespace/name`` with a unique ``identity``. Times are seconds."""

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
        clock: Clock = SYSTEM_CLOCK,
        rand: Callable[[], float] = random.random,
    ) -> None:
        # after a request that times out, a second one must be possible within the deadline
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
        self._lease: dict[str, Any] | None = None  # the newest known state of the lease
        self._changed_at = -math.inf
        self._released = True
        self._gauge = LEADER.labels(name)
        self._gauge.set(0)

    @property
    def held(self) -> bool:
        """Whether this process holds the lease now."""
        return self._clock.monotonic() < self._held_until

    @property
    def inherited(self) -> bool:
        """Whether the former holder did not release the lease, and may have written until this process acquired it."""
        return not self._released

    def check(self) -> None:
        """Raise :class:`LostLeadershipError` unless the lease is held. Call it right before each write."""
        if not self.held:
            raise LostLeadershipError(f"the lease {self._namespace}/{self._name} is not held by {self._identity}")

    def run(self, supervisor: Supervisor) -> None:
        """Acquire and renew the lease until the process stops. A lost lease stops the process."""
        while not self._attempt():
            if supervisor.wait(self._retry_period * (1 + JITTER * self._rand())):
                return
        log.info("leader lease acquired", extra=kv(lease=self._name, identity=self._identity))
        self._gauge.set(1)
        while not supervisor.wait(self._retry_period):
            if not self._renew():
                self._held_until = -math.inf
                self._gauge.set(0)
                supervisor.fail(f"leader lease lost: {self._namespace}/{self._name}")
                return

    def release(self) -> None:
        """Release the lease, so that another process acquires it at once.

        Call this only when no write is in progress: the successor relies on it (:attr:`inherited`).
        """
        if not self.held or self._lease is None:
            return
        self._held_until = -math.inf
        self._gauge.set(0)
        # the values that client-go's release writes
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec["renewTime"] = rfc3339(self._clock.time(), micro=True)
        try:
            self._client.replace(self._path(), {**self._lease, "spec": spec})
            log.info("leader lease released", extra=kv(lease=self._name))
        except BridgeError as error:
            log.warning("leader lease not released", extra=kv(lease=self._name, error=str(error)))

    def _renew(self) -> bool:
        """Try to renew the lease; return whether this process still holds it."""
        give_up = self._held_until - self._lease_duration + self._renew_deadline
        if self._clock.monotonic() >= self._held_until:
            return False  # the process was suspended; another one may be acquiring the lease now
        return self._attempt() or (self._clock.monotonic() < give_up and self._holder() == self._identity)

    def _attempt(self) -> bool:
        """Try once to acquire or renew the lease; return whether it is held. API errors are logged."""
        try:
            return self._take()
        except KubeConflictError:
            self._read()  # another writer, or an earlier request of this process without an answer
        except KubeNotFoundError:
            self._lease = None  # deleted; another process may have created a new one
        except KubeError as error:
            log.warning("leader lease not written", extra=kv(lease=self._name, error=str(error)))
        return False

    def _read(self) -> None:
        try:
            self._observe(self._client.get(self._path()))
        except KubeNotFoundError:
            self._lease = None
        except KubeError as error:
            log.debug("leader lease not read", extra=kv(lease=self._name, error=str(error)))

    def _take(self) -> bool:
        if not self.held:
            self._read()
        sent_at = self._clock.monotonic()
        now = rfc3339(self._clock.time(), micro=True)
        fields: dict[str, Any] = {"holderIdentity": self._identity, "renewTime": now}
        fields["leaseDurationSeconds"] = math.ceil(self._lease_duration)
        if self._lease is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"namespace": self._namespace, "name": self._name},
                "spec": {**fields, "acquireTime": now, "leaseTransitions": 0},
            }
            answer = self._client.create(LEASES.path(self._namespace), body)
        else:
            spec = self._lease["spec"]
            if self._holder() != self._identity:
                if self._holder() and self._clock.monotonic() < self._expires_at():
                    return False
                fields |= {"acquireTime": now, "leaseTransitions": (spec.get("leaseTransitions") or 0) + 1}
            # the resourceVersion makes this fail if the lease has changed since
            answer = self._client.replace(self._path(), {**self._lease, "spec": {**spec, **fields}})
        self._observe(answer)
        self._held_until = sent_at + self._lease_duration
        return True

    def _observe(self, lease: dict[str, Any]) -> None:
        lease.setdefault("spec", {})
        if self._lease is None or self._lease["spec"] != lease["spec"]:
            self._changed_at = self._clock.monotonic()
        self._lease = lease
        if not self.held and self._holder() != self._identity:
            self._released = not self._holder()

    def _holder(self) -> str:
        return (self._lease or {"spec": {}})["spec"].get("holderIdentity") or ""

    def _expires_at(self) -> float:
        assert self._lease is not None  # noqa: S101
        return self._changed_at + (self._lease["spec"].get("leaseDurationSeconds") or self._lease_duration)

    def _path(self) -> str:
        return LEASES.path(self._namespace, self._name)
