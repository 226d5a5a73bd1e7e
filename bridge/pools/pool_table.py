"""Makes the pools of each kind from the configuration: the table of kinds is ``KINDS`` in bridge/config/pools.py."""

from __future__ import annotations

import importlib
from collections.abc import Collection

from bridge.pools.registry import PoolContext, PoolRegistry


def make(context: PoolContext, only: Collection[str] = ()) -> PoolRegistry:
    """Return the pools of all kinds that the configuration has, or ``only`` of some. Sends no request.

    Raises :class:`bridge.errors.ConfigError`.
    """
    pools = context.config.pools
    return PoolRegistry(
        importlib.import_module(kind.module).make(sections, context)
        for kind in pools.kinds
        if (sections := pools.sections(kind)) and (not only or kind.key in only)
    )
