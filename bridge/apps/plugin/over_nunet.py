"""The pools of NuNet DMS instances, from the configuration of a hub."""

from __future__ import annotations

from bridge.apps.plugin.directory import Directory, PoolSource
from bridge.clock import SYSTEM_CLOCK
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.errors import ConfigError
from bridge.pools.nunet import nunet_source


class OverNunet(PoolSource):
    """All pools of ``pools.nunet``. Raises :class:`ConfigError` if there are none."""

    def __init__(self, config: Config) -> None:
        self.clock = SYSTEM_CLOCK
        pools = nunet_source.make(config, self.clock, interlink=True)
        if pools is None:
            raise ConfigError("pools.nunet has no entry: --nunet requires one")
        self._pools = pools
        self.directory = Directory(pools.pools)

    def start(self, supervisor: Supervisor) -> None:
        """Start to ping the DMS."""
        self._pools.start(supervisor)
