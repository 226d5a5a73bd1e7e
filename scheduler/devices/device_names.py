"""The extended resources whose devices a node may offer by DRA (``DeviceClass.spec.extendedResourceName``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.core.workers import Workers
from bridge.errors import KubeForbiddenError, KubeNotFoundError
from bridge.kube.discovery import list_if_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import DEVICE_CLASSES
from bridge.logs import kv
from bridge.workload.devices import extended_claims

log = logging.getLogger(__name__)

PERIOD = 15.0
"""Seconds between two lists of the DeviceClasses."""
SLOW_PERIOD = 60.0
"""The same after the API server has refused the list, or does not serve it."""


class DeviceNames:
    """The DeviceClass of each extended resource, listed again every ``PERIOD`` seconds by a worker.

    If the API server refuses the list, the last one stays: the refusal may be temporary. ``class_by_resource`` has
    name of the resource -> name of the class, both of the configuration (``gres``, ``deviceClasses``).
    """

    def __init__(self, kube: KubeClient, config: Config, clock: Clock) -> None:
        self._kube = kube
        self._config = config
        self._clock = clock
        self._read_at = -math.inf
        self._period = PERIOD
        self._is_configured = bool(config.gres and config.device_classes)
        self.class_by_resource: Mapping[str, str] = {}

    def request(self, workers: Workers) -> None:
        """Let a worker list the classes if the period is over."""
        if self._is_configured and self._clock.monotonic() - self._read_at >= self._period:
            workers.submit("device-classes", self._read, 7, kind="device-classes")

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            classes = list_if_served(self._kube, DEVICE_CLASSES)
        except (KubeNotFoundError, KubeForbiddenError) as error:
            if self._period == PERIOD:
                log.warning("extended resources by DRA cannot be read", extra=kv(error=error))
            self._period = SLOW_PERIOD
            return
        self._period = PERIOD if classes is not None else SLOW_PERIOD
        self.class_by_resource = extended_claims.names(classes or (), self._config.gres, self._config.device_classes)
