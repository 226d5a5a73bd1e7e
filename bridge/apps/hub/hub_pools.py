"""The hub's parts for pools: their sources, the virtual nodes and the kubelet API."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import replace
from urllib.parse import urlsplit

from bridge.config.hub import Config
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core.threads import Supervisor
from bridge.kube.lease import Elector
from bridge.pools import registry
from bridge.pools.registry import PoolContext
from bridge.serving.health import Health
from controllers.expose.expose_decide import usable_address
from controllers.expose.expose_loop import Exposure
from controllers.kubelet.kubelet_server import Kubelet, KubeletSettings
from controllers.reach.reach_loop import Reaching
from controllers.virtual.node_manifest import NodeSettings
from controllers.virtual.virtual_node_loop import VirtualNodes


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


def endpoint_address(config: Config) -> str | None:
    """Return this process's IP address for endpoints: ``pools.expose.address`` or ``$POD_IP``; ``None``: none fits."""
    configured = config.pools.expose.address
    return usable_address(str(configured) if configured is not None else os.environ.get("POD_IP"))


def _own_addresses(config: Config, server: str, address: str) -> frozenset[str]:
    """Return the addresses to which no connection of a pod may lead: this process's, and the API server's."""
    found = {address, os.environ.get("POD_IP") or address, str(endpoint_address(config))}
    with contextlib.suppress(OSError):
        found |= {str(info[4][0]) for info in socket.getaddrinfo(urlsplit(server).hostname, None)}
    return frozenset(found)


def kubelet_settings(config: Config, address: str) -> KubeletSettings:
    """Return the settings of the kubelet API. It listens on all addresses of the family of ``address``."""
    host = "::" if ":" in address else KubeletSettings().host
    return KubeletSettings(host, config.pools.kubelet_port, config.pools.kubelet_cert_dir, (address,))


class HubPools:
    """The hub's parts for pools: their sources, the virtual nodes and the kubelet API.

    ``version`` is the kubelet version of the virtual nodes (:func:`bridge.kube.discovery.node_version`). ``cluster`` is
    the UID of the cluster, which owns the jobs that this process submits.
    """

    def __init__(
        self, shared: KubeDependencies, elector: Elector | None, identity: str, version: str, cluster: str
    ) -> None:
        config, clock, pools = shared.config, shared.clock, shared.config.pools
        address = node_address(config, shared.kube.server)
        self._stopping = threading.Event()
        self._pools = registry.make(PoolContext(config, clock, cluster, identity, self._leads))
        self._kubelet = Kubelet(
            kubelet_settings(config, address),
            shared.kube,
            clock,
            find=lambda namespace, name: self.loop.find(namespace, name),
            pods=lambda: self.loop.pods(),
            pools=self._pools.pools,
        )
        self.loop: VirtualNodes = VirtualNodes(
            shared,
            elector,
            self._pools,
            NodeSettings(pools.silent_after, pools.remove_after, address, pools.kubelet_port, version),
        )
        self.loops: list[Loop] = [self.loop]
        self._exposure: Exposure | None = None
        self._lasting: Supervisor | None = None
        if pools.expose.numbers:
            self._exposure = Exposure(shared, elector, self.loop, endpoint_address(config))
            self.loop.exposed_changed = self._exposure.wake
            self.loops.append(self._exposure)
        if pools.reach:
            reaching = Reaching(shared, elector, self.loop, _own_addresses(config, shared.kube.server, address))
            self.loop.reaching_changed = reaching.wake
            self.loops.append(reaching)

    def start(self, supervisor: Supervisor, health: Health) -> None:
        """Start the pools and the kubelet API. The caller starts :attr:`loops` afterwards."""
        if self._exposure is not None:  # connections go on while the process stops
            self._lasting = supervisor.lasting()
            self._exposure.listen(self._lasting)
        self._stopping = supervisor.stopping
        self._pools.start(self._lasting or supervisor)
        self._kubelet.start(supervisor)
        # before the loop starts: the port that was bound, if the configured one is 0, goes into each virtual node
        self.loop.settings = replace(self.loop.settings, port=self._kubelet.port)
        health.ready("kubelet", self._kubelet.ready)

    def stop(self) -> None:
        """End what goes on after the supervisor has stopped: the connections to exposed pods, after a while."""
        if self._exposure is not None and self._lasting is not None:
            self._exposure.drain()
            self._lasting.stop()

    def _leads(self) -> bool:
        return self.loop.leading_since is not None and not self._stopping.is_set()
