"""The resources to request from the batch system: CPUs, memory, GPUs, time, and the flavor that covers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script import flavor_limits
from bridge.script.settings import BuildSettings, Flavor
from bridge.workload import quantity
from bridge.workload.resources import Resources, pod_requests

SLACK = 60.0
"""Seconds that a job gets beyond deadline and grace period, for the script to record the end."""
DEFAULT_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    """``memory`` in bytes, ``time_limit`` in seconds (``None``: the site's own)."""

    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    time_limit: float | None
    flavor: str

    @property
    def machine(self) -> dict[str, Decimal]:
        """Limits of a container that has none of its own."""
        return {"cpu": Decimal(self.cpus), "memory": Decimal(self.memory)}


@dataclass(frozen=True, slots=True)
class Request:
    """What decides the size of a pod at any site.

    ``resources``: the memory is the limit, if there is one: a container may use it, and batch systems end a job that
    uses more than it requested. ``deadline`` and ``grace`` are in seconds. ``flavor``: of the annotation, or empty.
    """

    resources: Resources
    gpu_resource: str
    deadline: float | None
    grace: float
    flavor: str


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource is a GPU: ``nvidia.com/gpu``, ``amd.com/gpu``, ``<vendor>.com/gpu``."""
    return resource.endswith(".com/gpu")


def grace(spec: Mapping[str, Any]) -> float:
    """Return ``terminationGracePeriodSeconds``; the default is 30, and a negative value counts as 1."""
    stated = spec.get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE if stated is None else 1.0 if int(stated) < 0 else float(stated)


def measure(pod: Mapping[str, Any], config: BuildSettings, alike: int = 1) -> Size:
    """Return the size of a pod with its flavor; raises ``ScriptError`` if no flavor is possible.

    ``alike``: the number of pods of its group that request the same, with the pod.
    """
    return size_of(request_of(pod), config, alike)


def request_of(pod: Mapping[str, Any]) -> Request:
    """Add up the pod's requests; raises ``ScriptError``."""
    spec = pod["spec"]
    try:
        requested = pod_requests(spec)
        memory = pod_requests(_by_limits(spec)).get("memory", Decimal(0))
    except ValueError as error:
        raise ScriptError(f"spec.containers: resources: {error}") from error
    if memory:
        requested["memory"] = memory
    gpus = [name for name in requested if is_gpu(name)]
    if len(gpus) > 1:
        raise ScriptError(f"spec.containers: resources {', '.join(sorted(gpus))}: one kind of GPU is allowed in a pod")
    deadline = spec.get("activeDeadlineSeconds")
    return Request(
        requested,
        gpu_resource=gpus[0] if gpus else "",
        deadline=None if deadline is None else float(deadline),
        grace=grace(spec),
        flavor=str((pod["metadata"].get("annotations") or {}).get(names.FLAVOR) or ""),
    )


def size_of(request: Request, config: BuildSettings, alike: int = 1) -> Size:
    """Return the size of a pod for its request; see :func:`measure`."""
    flavor = _choose(request, config, alike)
    known = flavor.max_resources if flavor else {}
    unknown = [name for name in request.resources if "/" in name and not is_gpu(name) and name not in known]
    if unknown:
        raise ScriptError(f"spec.containers: resource {unknown[0]!r} is not allowed: no flavor of this site has it")
    return _with_defaults(request, config, flavor)


def _with_defaults(request: Request, config: BuildSettings, flavor: Flavor | None) -> Size:
    requested, limits = request.resources, config.limits
    cpus = quantity.whole(requested.get("cpu", Decimal(0))) or (flavor and flavor.cpu) or limits.default_cpu
    usual_memory = (flavor and flavor.memory) or limits.default_memory
    bytes_ = quantity.whole(requested.get("memory", Decimal(0))) or int(quantity.parse(usual_memory))
    ends = [] if request.deadline is None else [request.deadline + request.grace + SLACK]
    ends += [float(top) for top in (limits.max_time_seconds, flavor.max_time_seconds if flavor else None) if top]
    return Size(
        cpus=cpus,
        memory=bytes_,
        gpus=quantity.whole(requested[request.gpu_resource]) if request.gpu_resource else 0,
        gpu_resource=request.gpu_resource,
        time_limit=min(ends) if ends else None,
        flavor=flavor.name if flavor else "",
    )


def _by_limits(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with only its memory, with limits instead of requests where there are limits."""
    return {
        "containers": [_memory_of(container) for container in spec.get("containers") or ()],
        "initContainers": [_memory_of(container) for container in spec.get("initContainers") or ()],
        **_memory_of(spec, restart=False),
        "overhead": {name: value for name, value in (spec.get("overhead") or {}).items() if name == "memory"},
    }


def _memory_of(source: Mapping[str, Any], *, restart: bool = True) -> dict[str, Any]:
    resources = source.get("resources") or {}
    stated = (resources.get("limits") or {}).get("memory") or (resources.get("requests") or {}).get("memory")
    memory_only: dict[str, Any] = {"resources": {"requests": {"memory": stated}}} if stated else {}
    if restart and "restartPolicy" in source:
        memory_only["restartPolicy"] = source["restartPolicy"]
    return memory_only


def _choose(request: Request, config: BuildSettings, alike: int) -> Flavor | None:
    flavor_by_name = {flavor.name: flavor for flavor in config.flavors}
    if name := request.flavor:
        if name not in flavor_by_name:
            raise ScriptError(
                f"annotation {names.FLAVOR}: {name!r} is not allowed; "
                f"allowed at this site: {', '.join(flavor_by_name) or 'none'}"
            )
        # the other pods of the group may name another flavor
        lacking = _lacking(flavor_by_name[name], request, config, 1)
        if lacking:
            raise ScriptError(f"annotation {names.FLAVOR}: {name!r} is too small for this pod: {lacking}")
        return flavor_by_name[name]
    lacking_by_name = {flavor.name: _lacking(flavor, request, config, alike) for flavor in config.flavors}
    for flavor in config.flavors:
        if not lacking_by_name[flavor.name]:
            return flavor
    if not config.flavors:
        return None
    default = flavor_by_name.get(config.default_flavor)
    if default is None or _lacking(default, request, config, alike, is_default=True):
        raise ScriptError(
            f"spec.containers: no flavor of this site covers what the pod asks for: "
            f"{'; '.join(f'{name}: {lacking}' for name, lacking in lacking_by_name.items())}"
        )
    return default


def _lacking(flavor: Flavor, request: Request, config: BuildSettings, alike: int, *, is_default: bool = False) -> str:
    """Return what a flavor lacks, or an empty text. Only extended resources must be named in a flavor.

    ``is_default``: only extended resources count; of the others, the default flavor accepts what no flavor covers.
    """
    requested, limits = request.resources, flavor_limits.of_pod(flavor)
    if is_default:
        requested = {name: value for name, value in requested.items() if "/" in name}
    for name in requested:
        if "/" in name and name not in limits:
            return f"it has no {name}"
    try:
        if name := flavor_limits.exceeded(requested, limits):
            return f"at most {name} {limits[name]}"
        if not is_default:
            requested = {**requested, **flavor_limits.total([_with_defaults(request, config, flavor)])}
        limits = flavor_limits.of_group(flavor)
        if alike > 1 and (name := flavor_limits.exceeded({name: n * alike for name, n in requested.items()}, limits)):
            return f"at most {name} {limits[name]} {flavor_limits.TOGETHER}"
    except ValueError as error:
        raise ScriptError(f"BuildConfig: flavors: {flavor.name}: max_resources: {error}") from error
    if request.deadline is not None and flavor.max_time_seconds is not None and not is_default:
        return f"at most {flavor.max_time_seconds} s" if request.deadline > flavor.max_time_seconds else ""
    return ""


def memory_limit(container: Mapping[str, Any], field_path: str) -> int | None:
    """Return a container's memory limit in KiB; ``None``: it has none, or 0, which limits nothing."""
    text = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    try:
        size = quantity.parse(text or "0")
        return max(1, int(size) // 1024) if size > 0 else None
    except ValueError as error:
        raise ScriptError(f"{field_path}.resources.limits.memory: {error}") from error
