"""The pools of all configured DMS instances."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.config.nunet import NunetSection
from bridge.errors import ConfigError
from bridge.pools.nunet import pod_annotations
from bridge.pools.nunet.dms_client import DmsClient
from bridge.pools.nunet.nunet_pool import NunetPool
from bridge.pools.polled.polled_pool import PolledPools
from bridge.pools.registry import PoolContext


def make(sections: Iterable[NunetSection], context: PoolContext) -> PolledPools:
    """Return the pools of ``pools.nunet``. Raises :class:`ConfigError`."""
    return PolledPools(
        pool for number, section in enumerate(sections) for pool in pools_of(section, context, f"pools.nunet[{number}]")
    )


def pools_of(section: NunetSection, context: PoolContext, location: str) -> list[NunetPool]:
    """Return the pools of one DMS: one for each group of peers. ``location``: the place in the configuration."""
    try:
        defaults = pod_annotations.values(section.defaults)
    except ValueError as error:
        raise ConfigError(f"{location}.defaults.{error}") from error
    if "no-job" in defaults:
        raise ConfigError(f"{location}.defaults.no-job: only a pod can have it")
    dms = DmsClient(section, context.clock)
    return [NunetPool(group, section, dms, defaults, context) for group in section.virtual_nodes]
