"""The pools behind a hub's NATS server, with its connection and the store of pools."""

from __future__ import annotations

from collections.abc import Sequence

from bridge import names
from bridge.config.hub import Config
from bridge.config.pools import NatsSection
from bridge.core.threads import Supervisor
from bridge.pools.registry import PoolContext
from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.synchronizer import KeyValueStore
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.persistence import PoolPersistence
from bridge.protocol.nats.nats_link import Link
from bridge.telemetry.metrics import NATS_MESSAGES_DROPPED


class SubmitterSource(NatsPools):
    """Starts the connection and the persistence too. ``persistence`` is ``None`` without a store."""

    persistence: PoolPersistence | None = None

    def start(self, supervisor: Supervisor) -> None:
        """Start the connection, the persistence and the requests for snapshots."""
        NATS_MESSAGES_DROPPED.set_function(lambda: self.link.dropped)
        self.link.start(supervisor)
        if self.persistence is not None:
            self.persistence.start(supervisor)
        super().start(supervisor)

    def remembered(self, pool: str) -> int:
        """Return the number of known jobs at a pool, including restored ones."""
        return self.persistence.remembered(pool) if self.persistence is not None else 0


def make(sections: Sequence[NatsSection], context: PoolContext) -> SubmitterSource:
    """Return the pools of ``pools.nats``."""
    config, [nats] = context.config, sections
    link = nats_link(config, f"{names.COMPONENT} {context.process}", context.owner)
    timeout = config.pools.submit_timeout
    source = SubmitterSource(link, nats.prefix, context.owner, context.clock, submit_timeout=timeout)
    store, kind = open_store(config, link, context.owner), config.pools.store.kind
    if store is not None:
        reachable = (lambda: link.connected) if kind == "nats" else (lambda: True)
        source.persistence = PoolPersistence(store, source, context.clock, context.leads, kind, reachable)
        if kind == "nats":
            link.watch(source.persistence.compare_soon)
    return source


def nats_link(config: Config, name: str, cluster: str) -> Link:
    """Return the NATS connection ``name``, not started; ``cluster`` is the UID that owns this hub's jobs."""
    nats = config.pools.nats
    return Link(nats, name, f"{nats.inbox_prefix}.{cluster}")


def open_store(config: Config, link: Link, cluster: str) -> KeyValueStore | None:
    """Return the store of this cluster's pools, ``None`` if none is configured. Sends no request."""
    store, nats = config.pools.store, config.pools.nats
    match store.kind:
        case "redis":
            from bridge.pools.store.redis_store import RedisStore  # the import takes 0.1 s

            return RedisStore(store.redis, cluster)
        case "nats":
            return NatsStore(link, store.nats.bucket, f"{nats.inbox_prefix}.{cluster}", cluster, store.nats.replicas)
    return None
