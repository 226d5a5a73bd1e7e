"""The limits of a site's flavors for a pod, and for the pods of a group in sum. Pure.

The hub chooses flavors by them, the scheduler applies them to a group before it binds the pods, and the site before it
submits a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

from bridge.core.grouping import grouped
from bridge.script.settings import BuildSettings, Flavor
from bridge.workload import quantity

TOGETHER = "for the pods of a group together"
_LONGEST = 2**14
"""Characters of :func:`dump`. Of a site with more, the scheduler does not know the limits."""
_KEYS: Mapping[str, Any] = {
    "flavors": {"__all__": {"name", "max_resources", "max_group_resources", "max_time_seconds", "cpu", "memory"}},
    "default_flavor": True,
    "limits": {"default_cpu", "default_memory"},
}


class Sized(Protocol):
    """What a pod requests from the batch system, and its flavor."""

    @property
    def cpus(self) -> int:
        """CPUs."""

    @property
    def memory(self) -> int:
        """Bytes."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""

    @property
    def gpu_resource(self) -> str:
        """Name of the extended resource; empty without GPUs."""

    @property
    def flavor(self) -> str:
        """Name of the flavor; empty without one."""


def of_pod(flavor: Flavor, *, is_default: bool = False) -> Mapping[str, str]:
    """Return the limits for a pod.

    ``is_default``: the default flavor accepts the CPUs and the memory that no flavor covers.
    """
    limits = flavor.max_resources
    return {name: most for name, most in limits.items() if "/" in name} if is_default else limits


def of_group(flavor: Flavor, *, is_default: bool = False) -> Mapping[str, str]:
    """Return the limits for the sum of a group's pods that have the flavor."""
    return {**of_pod(flavor, is_default=is_default), **flavor.max_group_resources}


def exceeded(requested: Mapping[str, Decimal], limits: Mapping[str, str]) -> str:
    """Return the first resource that exceeds its limit; empty if none does. Raises ``ValueError`` for a wrong limit."""
    return next((name for name, n in requested.items() if name in limits and n > quantity.parse(limits[name])), "")


def total(members: Iterable[Sized]) -> dict[str, Decimal]:
    """Return the resources of pods in sum."""
    result = {"cpu": Decimal(0), "memory": Decimal(0)}
    for member in members:
        result["cpu"] += member.cpus
        result["memory"] += member.memory
        if member.gpus:
            result[member.gpu_resource] = result.get(member.gpu_resource, Decimal(0)) + member.gpus
    return result


def refusal(flavor: Flavor, resource: str, value: Decimal, allowed: str) -> str:
    """Return the message about a resource of which the site allows less."""
    shown = f"{quantity.mebibytes(value)}Mi" if resource == "memory" else value
    return f"flavor {flavor.name}: {resource} {shown} is not allowed at this site; allowed: {allowed}"


def group_refusal(members: Iterable[Sized], config: BuildSettings) -> str:
    """Return why a site refuses the pods of a group together; empty if it does not.

    The pods of each flavor count for its limits. Raises ``ValueError`` for a limit that is no quantity.
    """
    by_flavor = grouped((member.flavor, member) for member in members)
    for flavor in config.flavors:
        requested = total(by_flavor.get(flavor.name, ()))
        limits = of_group(flavor, is_default=flavor.name == config.default_flavor)
        if resource := exceeded(requested, limits):
            return refusal(flavor, resource, requested[resource], f"at most {limits[resource]} {TOGETHER}")
    return ""


def dump(config: BuildSettings) -> str:
    """Return what sizes the pods of a site, as JSON for :func:`parse`; empty if no flavor has limits."""
    if not any(map(of_group, config.flavors)):
        return ""
    text = config.model_dump_json(include={**_KEYS}, exclude_defaults=True)
    return text if len(text) <= _LONGEST else ""


@lru_cache(maxsize=256)
def parse(text: str) -> BuildSettings | None:
    """Return the settings that :func:`dump` has written; ``None`` without any, or if another version wrote them."""
    try:
        return BuildSettings.model_validate_json(text) if text else None
    except ValueError:
        return None
