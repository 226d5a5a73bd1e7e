"""The pools of NuNet DMS instances, from the configuration of a hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridge.apps.plugin.directory import ByToleration, Directory
from bridge.clock import Clock, SystemClock
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.errors import ConfigError
from bridge.pools.nunet import nunet_source


class OverNunet:
    """All pools of ``pools.nunet``. Raises :class:`ConfigError` if there are none."""

    def __init__(self, config: Config) -> None:
        self.clock: Clock = SystemClock()
        pools = nunet_source.make(config, self.clock, interlink=True)
        if pools is None:
            raise ConfigError("pools.nunet has no entry: --nunet requires one")
        self._pools = pools
        self.directory: Directory = ByToleration(pools.pools)

    def start(self, supervisor: Supervisor) -> None:
        """Start to ping the DMS."""
        self._pools.start(supervisor)

    def stop(self) -> None:
        """Do nothing: all threads end with the process."""

    def checks(self) -> Mapping[str, Callable[[], str | None]]:
        """Return no readiness checks of its own."""
        return {}
