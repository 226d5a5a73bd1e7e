"""The hub's parts for pools: their sources, the store, the virtual nodes and the kubelet API."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from bridge import names
from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.kube.lease import Elector
from bridge.pools.registry import PoolRegistry, PoolSource
from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.persistence import PoolPersistence
from bridge.pools.store.store_interface import KeyValueStore
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.nats.nats_link import Link
from bridge.serving.health import Health
from bridge.telemetry.metrics import NATS_MESSAGES_DROPPED
from controllers.kubelet.handlers import PodOnPool
from controllers.kubelet.kubelet_server import Kubelet, KubeletSettings
from controllers.virtual.node_manifest import NodeSettings
from controllers.virtual.virtual_node_loop import VirtualNodes


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


def node_address(config: Config, server: str) -> str:
    """Return this process's IP address for the API server: ``pools.nodeAddress``, ``$POD_IP``, or the host's own."""
    configured = config.pools.node_address or os.environ.get("POD_IP")
    if configured:
        return configured
    parts = urlsplit(server)
    host = parts.hostname or "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, parts.port or 443))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def kubelet_settings(config: Config, address: str) -> KubeletSettings:
    """Return the settings of the kubelet API. It listens on all addresses of the family of ``address``."""
    host = "::" if ":" in address else KubeletSettings().host
    return KubeletSettings(host, config.pools.kubelet_port, config.pools.kubelet_cert_dir, (address,))


def _configured(config: Config, clock: Clock) -> Iterator[PoolSource]:
    """Return the sources of the pools that the configuration names."""
    if config.pools.interlink:
        from bridge.pools.interlink import interlink_source as interlink  # the import takes 0.1 s

        if (source := interlink.make(config, clock)) is not None:
            yield source
    if config.pools.nunet:
        from bridge.pools.nunet import nunet_source as nunet

        if (source := nunet.make(config, clock)) is not None:
            yield source


class HubPools:
    """The hub's parts for pools: the NATS connection, if one is configured, the virtual nodes and the kubelet API.

    ``version`` is the kubelet version of the virtual nodes (:func:`bridge.kube.cluster.node_version`). ``cluster`` is
    the UID of the cluster, which owns the jobs that this process submits.
    """

    def __init__(
        self, shared: KubeDependencies, elector: Elector | None, identity: str, version: str, cluster: str
    ) -> None:
        config, clock, pools = shared.config, shared.clock, shared.config.pools
        address = node_address(config, shared.kube.server)
        self._link: Link | None = None
        self._persistence: PoolPersistence | None = None
        # first those that the configuration names: a site must not take the name of one of them over NATS
        sources: list[PoolSource] = list(_configured(config, clock))
        if pools.nats.servers:
            link = self._link = nats_link(config, f"{names.COMPONENT} {identity}", cluster)
            NATS_MESSAGES_DROPPED.set_function(lambda: link.dropped)
            nats = NatsPools(link, pools.nats.prefix, cluster, clock, submit_timeout=pools.submit_timeout)
            self._persistence = self._make_persistence(config, link, nats, clock, cluster)
            sources.append(nats)
        self._pools = PoolRegistry(sources)
        self._kubelet = Kubelet(
            kubelet_settings(config, address),
            shared.kube,
            clock,
            find=self._find,
            pods=lambda: self.loop.pods(),
            pools=self._pools.pools,
        )
        self.loop = VirtualNodes(
            shared,
            elector,
            self._pools,
            NodeSettings(pools.silent_after, pools.remove_after, address, pools.kubelet_port, version),
            self._link.problem if self._link is not None else lambda: None,
            self._persistence.remembered if self._persistence is not None else lambda _: 0,
            self._pools.remove,
        )

    def _make_persistence(
        self, config: Config, link: Link, pools: NatsPools, clock: Clock, cluster: str
    ) -> PoolPersistence | None:
        """Create the persistence of pools in the configured store; ``None`` without a store."""
        store, kind = open_store(config, link, cluster), config.pools.store.kind
        if store is None:
            return None
        reachable = (lambda: link.connected) if kind == "nats" else (lambda: True)
        leads = lambda: self.loop.leading_since is not None  # noqa: E731
        persistence = PoolPersistence(store, pools, clock, leads, kind, reachable)
        if kind == "nats":
            link.watch(persistence.compare_soon)
        return persistence

    def start(self, supervisor: Supervisor, health: Health) -> None:
        """Start the NATS connection, the pools and the kubelet API. The caller starts :attr:`loop` afterwards."""
        if self._link is not None:
            self._link.start(supervisor)
        if self._persistence is not None:
            self._persistence.start(supervisor)
        self._pools.start(supervisor)
        self._kubelet.start(supervisor)
        # before the loop starts: the port that was bound, if the configured one is 0, goes into each virtual node
        self.loop.settings = replace(self.loop.settings, port=self._kubelet.port)
        health.ready("kubelet", self._kubelet.ready)

    def _find(self, namespace: str, name: str) -> PodOnPool | None:
        located = self.loop.find(namespace, name)
        if located is None:
            return None
        pod, pool = located
        return PodOnPool(pod, pool, pod["metadata"]["uid"])
