"""Limits of the site for a request. The hub checks them too; it may be compromised, so the site checks again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import SubmitMessage
from bridge.script import flavor_limits
from bridge.script.settings import Flavor
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs.job_record import Meta
from bridge.workload import quantity

OVER_LIMIT = "OverLimit"


def admitted(owner: str, body: SubmitMessage, config: SiteConfig, now: float) -> Meta:
    """Check a request and add the site's defaults; raises :class:`SiteRefusedError`. ``now``: seconds since 1970."""
    flavor = config.flavor(body.flavor or config.default_flavor)
    if flavor is None and body.flavor:
        names = ", ".join(known_flavor.name for known_flavor in config.flavors) or "none"
        raise SiteRefusedError(f"no flavor {body.flavor!r} (there are: {names})", reason="UnknownFlavor")
    by_plugin = config.limits.by_interlink  # which sends the user of a job as a flag
    users = [flag for flag in body.flags if not (by_plugin and flag.startswith("--uid="))]
    if users and not config.limits.allow_user_flags:
        raise SiteRefusedError(
            "this site takes no flags of users (limits.allow_user_flags is false)", reason="FlagsNotAllowed"
        )
    if body.grant_wait is not None and not config.limits.allow_race:
        raise SiteRefusedError(
            "this site takes no jobs of pods that race (limits.allow_race is false)", reason="RaceNotAllowed"
        )
    check(body, flavor, config.default_flavor)
    most = config.most_seconds(flavor)
    return Meta(
        namespace=body.namespace,
        name=body.name,
        cpus=body.cpus,
        memory=body.memory or int(quantity.parse((flavor and flavor.memory) or config.limits.default_memory)),
        gpus=body.gpus,
        gpu_resource=body.gpu_resource,
        time_limit=body.time_limit if most is None else min(body.time_limit or most, most),
        flags=tuple(body.flags),
        flavor=flavor.name if flavor else "",
        grace=body.grace,
        submitted_at=now,
        attempted_at=now,
        owner=owner,
        grant_wait=body.grant_wait,
        place=body.place,
        array=_array(body, config),
    )


def _array(body: SubmitMessage, config: SiteConfig) -> str:
    """Return the owner of the pods with which a pod is to be in an array; empty: none.

    A pod that waits for a grant is in none: it may be withdrawn and submitted again at any time.
    """
    if body.array is None or body.place is not None or body.grant_wait is not None:
        return ""
    wanted = config.batch.arrays if body.array.wanted is None else body.array.wanted
    return body.array.owner if wanted else ""


def check(body: SubmitMessage, flavor: Flavor | None, default_flavor: str) -> None:
    """Raise :class:`SiteRefusedError` if a pod requests more than the flavor's ``max_resources``.

    A flavor without them sets no limit.
    """
    if flavor is None or not flavor.max_resources:
        return
    requested = flavor_limits.total([body])
    limits = flavor_limits.of_pod(flavor, is_default=flavor.name == default_flavor)
    if body.gpus and body.gpu_resource not in limits:
        raise _over(flavor, body.gpu_resource, requested, "none")
    if resource := flavor_limits.exceeded(requested, limits):
        raise _over(flavor, resource, requested, f"at most {limits[resource]}")


def _over(flavor: Flavor, resource: str, requested: Mapping[str, Decimal], allowed: str) -> SiteRefusedError:
    text = flavor_limits.refusal(flavor, resource, requested[resource], allowed)
    return SiteRefusedError(text, reason=OVER_LIMIT)
