"""Reads the ResourceSlices of external nodes, from which their gres in Slurm are counted."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.core import isolation
from bridge.core.workers import Workers
from bridge.errors import KubeForbiddenError
from bridge.kube.discovery import list_if_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES
from bridge.logs import kv
from bridge.workload.devices import claimed_devices, node_gres
from bridge.workload.devices.cel_values import Selector
from bridge.workload.devices.claimed_devices import CPU, DevicesNotReadyError, UnsupportedClaimError
from bridge.workload.devices.node_gres import NodeGres

log = logging.getLogger(__name__)

RATE = 20.0
"""Nodes that are read in a second, on average, however many there are: each costs a request."""
AGAIN = 1.0
"""Seconds until a node is read again whose driver is publishing its devices."""


class DeviceReader:
    """The gres of external nodes by their devices, read again after ``nodes.externalDevices`` seconds by a worker."""

    def __init__(self, kube: KubeClient, config: Config, clock: Clock) -> None:
        self._kube = kube
        self._table = {name: kind for name, kind in config.device_classes.items() if kind != CPU}
        self._period = config.nodes.external_devices
        self._clock = clock
        self._read_at = self._missing_at = -math.inf
        self._refused = False
        self.gres_by_node: Mapping[str, NodeGres] | None = {} if self._table else None
        """The gres by the name of the node in Kubernetes; a node that was not read yet is missing.

        ``None``: devices are not counted, because no class is mapped, or the API server does not serve them, or has
        refused them twice in a row before it showed any.
        """

    def request(self, nodes: Sequence[str], workers: Workers) -> None:
        """Let a worker read the devices of these nodes if the period is over, and those of new nodes after a second."""
        now, known = self._clock.monotonic(), self.gres_by_node
        if not self._table or not nodes:
            return
        if now - self._read_at >= max(self._period, len(nodes) / RATE):
            workers.submit("devices", lambda: self._read(nodes), 7, kind="devices")
        elif known is not None and not self._refused and now - self._missing_at >= AGAIN:
            # these alone: the driver of one node may never complete its devices
            missing = [name for name in nodes if name not in known]
            if missing:
                workers.submit("devices", lambda: self._read(missing, known), 7, kind="devices")

    def _read(self, nodes: Sequence[str], others: Mapping[str, NodeGres] | None = None) -> None:
        previous = self.gres_by_node or {}
        # before the requests: an API server that refuses them is asked once in a period
        self._missing_at = self._clock.monotonic()
        if others is None:
            self._read_at = self._missing_at
        try:
            classes = list_if_served(self._kube, DEVICE_CLASSES)
            if classes is None:
                if self.gres_by_node is not None:
                    log.info("devices of external nodes are not counted: resource.k8s.io/v1 is not served")
                self.gres_by_node = None
                return
            gres_by_node = dict(others or {})
            selectors = self._selectors(classes)
            for name in nodes:
                slices = self._kube.get(RESOURCE_SLICES.path(), {"fieldSelector": f"spec.nodeName={name}"})["items"]
                try:
                    gres_by_node[name] = node_gres.count(claimed_devices.of_node(slices, name), selectors, self._table)
                except Exception as error:
                    if not isinstance(error, DevicesNotReadyError):  # the driver is publishing them
                        isolation.report("node", name, error)
                    if name in previous:
                        gres_by_node[name] = previous[name]
        except KubeForbiddenError as error:  # may be temporary: keep the counts, else nodes would lose their gres
            if not self._refused:
                log.warning("devices of external nodes cannot be read", extra=kv(error=error))
            elif not self.gres_by_node:
                self.gres_by_node = None
            self._refused = True
            return
        self._refused = False
        self.gres_by_node = gres_by_node

    def _selectors(self, classes: Sequence[Mapping[str, object]]) -> dict[str, Selector]:
        """Return the selectors of the classes that are mapped; a class that claims cannot use is left out."""
        selectors = {}
        for entry in classes:
            name = str(entry["metadata"]["name"])  # type: ignore[index]
            if name in self._table:
                try:
                    selectors[name] = claimed_devices.class_selector(entry)
                except UnsupportedClaimError as error:
                    log.debug("device class not counted", extra=kv(name=name, error=error))
        return selectors
