"""The interLink pools of the configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from bridge.clock import Clock
from bridge.config.interlink import InterlinkSection
from bridge.errors import ConfigError
from bridge.pools.interlink.interlink_client import PluginClient
from bridge.pools.interlink.interlink_pool import InterlinkPool
from bridge.pools.interlink.interlink_transport import PluginTransport
from bridge.pools.polled.polled_pool import PolledPools
from bridge.pools.registry import PoolContext
from bridge.script.buildconfig import BuildConfig


def make(sections: Iterable[InterlinkSection], context: PoolContext) -> PolledPools:
    """Return the pools of ``pools.interlink``. Raises :class:`ConfigError`."""
    timeout = context.config.pools.submit_timeout
    return PolledPools(make_pool(section, timeout, context.clock) for section in sections)


def make_pool(section: InterlinkSection, submit_timeout: float, clock: Clock) -> InterlinkPool:
    """Return one pool. Sends no request."""
    client = PluginClient(section, PluginTransport(section, clock), clock)
    config = None if section.build_config_file is None else read_build_config(section.name, section.build_config_file)
    return InterlinkPool(section, client, clock, submit_timeout, config)


def read_build_config(pool: str, path: Path) -> BuildConfig:
    """Read the file with the script settings of a pool. Raises :class:`ConfigError`."""
    location = f"pools.interlink, pool {pool}: buildConfigFile {path}"
    try:
        return BuildConfig.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{location}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise ConfigError(f"{location}: {'; '.join(problems)}") from error
    except ValueError as error:  # not TOML, or not text
        raise ConfigError(f"{location}: {error}") from error
