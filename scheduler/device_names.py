"""The extended resources whose devices a node may offer by DRA (``DeviceClass.spec.extendedResourceName``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import KubeForbiddenError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.discovery import list_if_served
from bridge.kube.resources import DEVICE_CLASSES
from bridge.logs import kv
from bridge.workers import Workers
from bridge.workload import extended_claims

log = logging.getLogger(__name__)

PERIOD = 15.0
"""Seconds between two lists of the DeviceClasses."""


class DeviceNames:
    """The DeviceClass of each extended resource, listed again every ``PERIOD`` seconds by a worker.

    Attributes
    ----------
    found
        Name of the resource -> name of the class. Both are in the configuration (``gres``, ``deviceClasses``).
    """

    def __init__(self, kube: KubeClient, config: Config, clock: Clock) -> None:
        self._kube = kube
        self._config = config
        self._clock = clock
        self._read_at = -math.inf
        self._wanted = bool(config.gres and config.device_classes)
        self.found: Mapping[str, str] = {}

    def request(self, workers: Workers) -> None:
        """Let a worker list the classes if the period is over."""
        if self._wanted and self._clock.monotonic() - self._read_at >= PERIOD:
            workers.submit("device-classes", self._read, 7, kind="device-classes")

    def _read(self) -> None:
        self._read_at = self._clock.monotonic()
        try:
            classes = list_if_served(self._kube, DEVICE_CLASSES)
        except (KubeNotFoundError, KubeForbiddenError) as error:
            log.warning("extended resources by DRA are not known", extra=kv(error=error))
            classes = None
        if classes is None:
            self._wanted, self.found = False, {}
            return
        self.found = extended_claims.names(classes, self._config.gres, self._config.device_classes)
