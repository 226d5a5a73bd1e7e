"""Fields that no site supports: admission refuses a pod with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script import environment, mounts, probes, references, volume_files, volumes
from bridge.script.quoting import Allowance
from bridge.script.references import containers

_NAME = re.compile(names.DNS_LABEL)
# the script's record of the pod is state/pod.json, beside state/<container>.json
_RESERVED = "pod"
_GPU_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""RuntimeClasses of NVIDIA's GPU operator: they add GPUs to containers, which a pool does without them."""
_MOUNTED_BY = (names.FUSE_PREFIX, names.CVMFS_PREFIX)
_PROJECTED = ("configMap", "secret", "downwardAPI", "serviceAccountToken")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A field, with the values that are refused, what is allowed instead, and what the refusal shows of a value."""

    field: str
    allowed: str
    refuses: Callable[[Any], object] = bool
    shown: Callable[[Any], object] = lambda value: value


def _just(refused: object) -> Callable[[Any], bool]:
    return lambda value: value == refused


def _other_than(*allowed: str) -> Callable[[Any], bool]:
    return lambda value: value not in (None, *allowed)


def _first(key: str) -> Callable[[Any], object]:
    return lambda values: values[0].get(key)


_OF_PODS = (
    *(_Rule(key, "false", shown=bool) for key in ("hostPID", "hostIPC", "shareProcessNamespace")),
    _Rule("hostUsers", "true: containers have no user namespace of the pod's own", _just(False)),
    _Rule(
        "runtimeClassName", f"{', '.join(_GPU_CLASSES)}: the site selects the runtime", _other_than("", *_GPU_CLASSES)
    ),
    _Rule("dnsConfig", "none: name servers are the machine's"),
    _Rule("dnsPolicy", "another policy, which is ignored: name servers are the machine's", _just("None")),
    _Rule("resourceClaims", "extended resources", shown=_first("name")),
    _Rule("ephemeralContainers", "none", shown=_first("name")),
    _Rule("os.name", "linux", _other_than("linux")),
    *(_Rule(f"securityContext.{key}", "none") for key in ("sysctls", "windowsOptions", "supplementalGroups")),
)
_OF_CONTAINERS = (
    _Rule("securityContext.privileged", "false", shown=bool),
    _Rule("volumeDevices", "volumeMounts", shown=_first("name")),
    _Rule("restartPolicyRules", "none", shown=lambda _: "rules"),
    _Rule("securityContext.capabilities.add", "none"),
    _Rule("securityContext.procMount", "Default", _other_than("Default")),
    _Rule("securityContext.windowsOptions", "none", shown=lambda _: "options"),
    _Rule("lifecycle.stopSignal", "SIGTERM", _other_than("SIGTERM")),
)
_OF_MOUNTS = (
    _Rule("mountPropagation", "None", _other_than("None")),
    _Rule("recursiveReadOnly", "Disabled, IfPossible", _other_than("Disabled", "IfPossible")),
)


def problems(pod: Mapping[str, Any]) -> list[str]:
    """Return the reasons to refuse a pod; each names the field, its value and what is allowed."""
    refusals = [*_of_fields("spec", pod["spec"], _OF_PODS), *_of_volumes(pod)]
    refusals += filter(None, [references.excess(pod)])
    for field_path, container in containers(pod["spec"]):
        refusals += _of_container(field_path, container)
        refusals += _of_user(field_path, container, pod["spec"])
    return refusals


def _refused(field_path: str, value: Any, allowed: str) -> str:
    return f"{field_path}: {value!r} is not allowed on a pool; allowed: {allowed}"


def _of_fields(field_path: str, data: Mapping[str, Any], rules: Iterable[_Rule]) -> Iterator[str]:
    for rule in rules:
        value: Any = data
        for key in rule.field.split("."):
            value = (value or {}).get(key)
        if rule.refuses(value):
            yield _refused(f"{field_path}.{rule.field}", rule.shown(value), rule.allowed)


def _of_user(field_path: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    context = {**(spec.get("securityContext") or {}), **own}
    user = context.get("runAsUser")
    if user is not None and context.get("runAsNonRoot") and int(user) == 0:
        place = field_path if "runAsUser" in own else "spec"
        allowed = f"another user, as runAsNonRoot is true for {field_path}"
        yield _refused(f"{place}.securityContext.runAsUser", user, allowed)


def _of_volumes(pod: Mapping[str, Any]) -> Iterator[str]:
    seen: set[str] = set()
    mounted = {name: prefix for prefix in _MOUNTED_BY for name in volumes.annotated(pod, prefix)}
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        field_path, name = f"spec.volumes[{index}]", str(volume.get("name") or "")
        if not _NAME.fullmatch(name) or name in seen:
            yield _refused(f"{field_path}.name", name, "a DNS label, once")
        seen.add(name)
        kinds = [key for key, value in volume.items() if key != "name" and value is not None]
        allowed = volumes.STAND_INS if name in mounted else volumes.ALLOWED
        if len(kinds) != 1 or kinds[0] not in allowed:
            yield _refused(f"{field_path} ({name})", ", ".join(sorted(kinds)) or None, ", ".join(allowed))
        for part in (volume.get("projected") or {}).get("sources") or ():
            if others := sorted(set(part) - {*_PROJECTED}):
                yield _refused(f"{field_path}.projected.sources", others[0], ", ".join(_PROJECTED))
    for name in sorted(set(mounted) - seen):
        yield f"annotation {mounted[name]}{name}: {name!r} is no volume of the pod"


def _of_container(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    name = str(container.get("name") or "")
    if not _NAME.fullmatch(name) or name == _RESERVED:
        yield _refused(f"{field_path}.name", name, f"a DNS label other than {_RESERVED!r}")
    policy = container.get("restartPolicy")
    if policy is not None and not (policy == "Always" and field_path.startswith("spec.init")):
        yield _refused(f"{field_path}.restartPolicy", policy, "Always, and on init containers alone")
    yield from _of_fields(field_path, container, _OF_CONTAINERS)
    yield from _of_mounts(field_path, container)
    for index, entry in enumerate(container.get("env") or ()):
        if not environment.NAME.fullmatch(str(entry.get("name") or "")):
            yield _refused(f"{field_path}.env[{index}].name", entry.get("name"), environment.NAMES_ALLOWED)
    yield from _of_handlers(field_path, container)


def _of_mounts(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    for index, entry in enumerate(container.get("volumeMounts") or ()):
        place = f"{field_path}.volumeMounts[{index}]"
        try:
            mounts.place_of(str(entry.get("mountPath") or ""), f"{place}.mountPath")
            if entry.get("subPath"):
                volume_files.inside(str(entry["subPath"]), f"{place}.subPath")
        except ScriptError as error:
            yield str(error)
        yield from _of_fields(place, entry, _OF_MOUNTS)


def _of_handlers(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    ports = probes.named_ports(container)
    lifecycle = container.get("lifecycle") or {}
    try:
        probes.make(container, field_path, ports, 0, {}, Allowance())
        for hook in ("postStart", "preStop"):
            probes.action(lifecycle.get(hook), f"{field_path}.lifecycle.{hook}", ports)
    except ScriptError as error:
        yield str(error)
