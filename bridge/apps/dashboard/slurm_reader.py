"""Reads the sums of Slurm that the controllers publish, for the pages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from bridge import clock as clocks
from bridge.clock import Clock
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.logs import kv
from bridge.slurm import cluster_sums, day_history
from bridge.slurm.cluster_sums import ClusterSums
from bridge.slurm.day_history import Sample

log = logging.getLogger(__name__)

PERIOD = 5.0
"""Seconds between two reads: the controllers write at most every 15 s by default."""
NOT_WRITTEN = "The controllers have not published the state of Slurm."


@dataclass(frozen=True, slots=True)
class SlurmState:
    """The sums, ``None`` if there are none, and the samples of the last day, oldest first.

    ``problem`` is why the sums are missing or old, empty if they are current.
    """

    sums: ClusterSums | None = None
    problem: str = NOT_WRITTEN
    day: tuple[Sample, ...] = ()


class SlurmReader:
    """Reads the ConfigMap at ``path`` every ``PERIOD`` seconds. ``changed`` is called after a new state."""

    def __init__(self, kube: KubeClient, path: str, clock: Clock, changed: Callable[[], object]) -> None:
        self._kube, self._path, self._clock, self._changed = kube, path, clock, changed
        self._version = ""
        self._read = SlurmState()
        self._is_current = True

    @property
    def state(self) -> SlurmState:
        """The state that was read last."""
        read = self._read
        if read.sums is None or read.problem or self._clock.time() <= read.sums.expires:
            return read
        since = clocks.rfc3339(read.sums.at)
        return replace(read, problem=f"The controllers have not confirmed the state of Slurm since {since}.")

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set."""
        while True:
            self.read()
            if stop.wait(PERIOD):
                return

    def read(self) -> None:
        """Read the ConfigMap once."""
        before = self._read
        try:
            config_map = self._kube.get(self._path)
            version = str(config_map["metadata"].get("resourceVersion", ""))
            if before.problem or version != self._version:
                sums = cluster_sums.from_config_map(config_map)
                day = day_history.from_config_map(config_map)
                self._read, self._version = SlurmState(sums, "" if sums is not None else NOT_WRITTEN, day), version
        except KubeForbiddenError:
            self._read = SlurmState(None, "You may not read the state of Slurm.")
        except KubeNotFoundError:
            self._read = SlurmState()
        except (BridgeError, ValueError) as error:
            log.debug("sums of Slurm cannot be read", extra=kv(error=error))
            self._read = replace(before, problem=f"The state of Slurm cannot be read: {error}")
        is_current = not self.state.problem
        if self._read != before or is_current != self._is_current:
            self._changed()
        self._is_current = is_current
