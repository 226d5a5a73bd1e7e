"""The interLink pools of the configuration."""

from __future__ import annotations

from bridge.clock import Clock
from bridge.config import Config
from bridge.config_interlink import InterlinkSection
from bridge.pools.interlink.client import PluginClient
from bridge.pools.interlink.pool import InterlinkPool
from bridge.pools.interlink.transport import PluginTransport
from bridge.pools.polled import PolledPools


def make(config: Config, clock: Clock) -> PolledPools | None:
    """Return the pools of ``pools.interlink``; ``None`` if there are none. Raises :class:`ConfigError`."""
    sections = config.pools.interlink
    if not sections:
        return None
    return PolledPools([make_pool(section, config.pools.submit_timeout, clock) for section in sections])


def make_pool(section: InterlinkSection, submit_timeout: float, clock: Clock) -> InterlinkPool:
    """Return one pool. Sends no request. Raises :class:`ConfigError` if a certificate file is missing."""
    client = PluginClient(section, PluginTransport(section, clock), clock)
    return InterlinkPool(section, client, clock, submit_timeout)
