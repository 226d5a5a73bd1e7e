"""The pools of all configured DMS instances."""

from __future__ import annotations

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.config.nunet import NunetSection
from bridge.errors import ConfigError
from bridge.pools.nunet import pod_annotations
from bridge.pools.nunet.dms_client import DmsClient
from bridge.pools.nunet.nunet_pool import NunetPool
from bridge.pools.polled.polled_pool import PolledPools


def make(config: Config, clock: Clock, *, interlink: bool = False) -> PolledPools | None:
    """Return the pools; ``None`` if none is configured. Raises :class:`ConfigError`. Sends no request.

    ``interlink``: their pods come from an interLink client.
    """
    sections = config.pools.nunet
    if not sections:
        return None
    return PolledPools(
        pool
        for number, section in enumerate(sections)
        for pool in pools_of(section, config.pools.submit_timeout, clock, f"pools.nunet[{number}]", interlink=interlink)
    )


def pools_of(
    section: NunetSection, submit_timeout: float, clock: Clock, location: str, *, interlink: bool = False
) -> list[NunetPool]:
    """Return the pools of one DMS: one for each group of peers. ``location``: the place in the configuration."""
    try:
        defaults = pod_annotations.values(section.defaults)
    except ValueError as error:
        raise ConfigError(f"{location}.defaults.{error}") from error
    if "no-job" in defaults:
        raise ConfigError(f"{location}.defaults.no-job: only a pod can have it")
    dms = DmsClient(section, clock)
    return [
        NunetPool(group, section, dms, defaults, submit_timeout, clock, interlink=interlink)
        for group in section.virtual_nodes
    ]
