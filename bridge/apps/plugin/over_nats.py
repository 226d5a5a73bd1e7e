"""The pools that announce themselves over NATS, with the credentials of a hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridge.apps.plugin.directory import Directory, PoolSource
from bridge.clock import SYSTEM_CLOCK
from bridge.core.threads import Supervisor
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.nats.nats_link import Link
from bridge.telemetry.metrics import NATS_MESSAGES_DROPPED

SUBMIT_TIMEOUT = 40.0
"""Seconds to wait for a site's answer to a submission. With the time for which submissions are repeated, this is less
than the 120 s that an API server waits."""


class OverNats(PoolSource):
    """All pools of a NATS server that the credentials show. ``owner``: the UID that owns the jobs."""

    def __init__(self, link: Link, prefix: str, owner: str) -> None:
        self.clock = SYSTEM_CLOCK
        self._link = link
        self._pools = NatsPools(self._link, prefix, owner, self.clock, submit_timeout=SUBMIT_TIMEOUT)
        self.directory = Directory(self._pools.pools)
        NATS_MESSAGES_DROPPED.set_function(lambda: self._link.dropped)

    def start(self, supervisor: Supervisor) -> None:
        """Connect and follow the pools."""
        self._link.start(supervisor)
        self._pools.start(supervisor)

    def checks(self) -> Mapping[str, Callable[[], str | None]]:
        """Return the readiness checks: the connection, not the sites behind it."""
        return {"nats": self._link.problem}
