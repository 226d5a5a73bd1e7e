"""The pools of all configured DMS instances."""

from __future__ import annotations

from dataclasses import replace

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.config.nunet import NunetSection
from bridge.errors import ConfigError
from bridge.pools.nunet.capacity import Group
from bridge.pools.nunet.dms_client import DmsAccess, DmsClient
from bridge.pools.nunet.dms_logs import LogAccess, own_host
from bridge.pools.nunet.dms_settings import NunetSettings
from bridge.pools.nunet.nunet_pool import NunetPool
from bridge.pools.nunet.pod_annotations import KEYS
from bridge.pools.nunet.pod_request import RequestSettings
from bridge.pools.nunet.statuses import normal
from bridge.pools.polled.polled_pool import PolledPools, PollSettings


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
    access = DmsAccess(
        url=section.url,
        token_file=section.token_file,
        ca_file=section.ca_file,
        cert_file=section.cert_file,
        key_file=section.key_file,
        connect_timeout=section.connect_timeout,
        timeout=section.timeout,
    )
    dms = DmsClient(access, clock)
    groups = tuple(
        Group(
            gpu_types=tuple(text.lower() for text in group.gpu_types),
            peers=frozenset(group.peers),
            localities=frozenset(text.lower() for text in group.localities),
            channels=frozenset(text.lower() for text in group.channels),
        )
        for group in section.groups
    ) or (Group(),)
    labels = [group.labels for group in section.groups] or [{}]
    settings = [
        _settings(section, groups, index, labels[index], submit_timeout, location) for index in range(len(groups))
    ]
    return [
        NunetPool(name, dms, replace(pool_settings, interlink=interlink), clock)
        for name, pool_settings in zip(section.pool_names, settings, strict=True)
    ]


def _settings(
    section: NunetSection,
    groups: tuple[Group, ...],
    index: int,
    labels: dict[str, str],
    submit_timeout: float,
    location: str,
) -> NunetSettings:
    return NunetSettings(
        polls=PollSettings(
            poll_period=section.poll_period,
            ping_period=section.ping_period,
            batch=1,  # the DMS answers about one job
            threads=section.threads,
            failures=section.ping_failures,
        ),
        request=RequestSettings(
            services=section.services == "allow",
            secrets=section.send_secrets,
            gpu_count=bool(section.gpu_count_field),
            max_time=section.max_time,
            defaults=_defaults(section, location),
        ),
        logs=LogAccess(
            hosts=tuple(section.log_hosts) or (own_host(section.url),),
            insecure=section.insecure_logs or section.url.startswith("http://"),
            most=section.log_limit,
            connect_timeout=section.connect_timeout,
            timeout=section.timeout,
        ),
        groups=groups,
        index=index,
        least_free=section.min_free_vram,
        words={normal(word): state for word, state in section.statuses.items()},
        lookup=section.lookup,
        peer_field=section.peer_field,
        gpu_count_field=section.gpu_count_field,
        cancel_method=section.cancel_method,
        cancel_path=section.cancel_path,
        submit_timeout=submit_timeout,
        labels={**section.labels, **labels},
        taints=tuple(section.taints),
    )


def _defaults(section: NunetSection, location: str) -> dict[str, object]:
    """Return the default values of annotations; raises :class:`ConfigError`."""
    values: dict[str, object] = {}
    for name, text in section.defaults.items():
        key = KEYS.get(name)
        if key is None or name == "no-job":
            raise ConfigError(
                f"{location}.defaults: unknown key {name}; allowed: {', '.join(sorted(KEYS.keys() - {'no-job'}))}"
            )
        try:
            values[name] = key.read(text)
        except (ValueError, OverflowError) as error:
            raise ConfigError(
                f"{location}.defaults.{name}: {text!r} is not allowed; allowed: {key.allowed.replace('`', '')}"
            ) from error
    return values
