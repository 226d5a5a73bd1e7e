"""Fields that no site supports: admission refuses a pod with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script import environment, mounts, probes, volume_files, volumes
from bridge.script.references import containers

_NAME = re.compile(names.DNS_LABEL)
# the script's record of the pod is state/pod.json, beside state/<container>.json
_RESERVED = "pod"
_GPU_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""RuntimeClasses of NVIDIA's GPU operator: they add GPUs to containers, which a pool does without them."""
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")


def problems(pod: Mapping[str, Any]) -> list[str]:
    """Return the reasons to refuse a pod; each names the field, its value and what is allowed."""
    refusals = list(_of_pod(pod["spec"]))
    refusals += _of_volumes(pod)
    for field_path, container in containers(pod["spec"]):
        refusals += _of_container(field_path, container)
        refusals += _of_user(field_path, container, pod["spec"])
    return refusals


def _refused(field_path: str, value: Any, allowed: str) -> str:
    return f"{field_path}: {value!r} is not allowed on a pool; allowed: {allowed}"


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(key):
            yield _refused(f"spec.{key}", True, "false")
    if spec.get("hostUsers") is False:
        yield _refused("spec.hostUsers", False, "true: containers have no user namespace of the pod's own")
    runtime_class = spec.get("runtimeClassName")
    if runtime_class and runtime_class not in _GPU_CLASSES:
        yield _refused(
            "spec.runtimeClassName", runtime_class, f"{', '.join(_GPU_CLASSES)}: the site selects the runtime"
        )
    if spec.get("hostAliases"):
        yield _refused("spec.hostAliases", spec["hostAliases"][0].get("ip"), "none: names are the machine's")
    if spec.get("dnsConfig"):
        yield _refused("spec.dnsConfig", spec["dnsConfig"], "none: name servers are the machine's")
    if spec.get("dnsPolicy") == "None":
        yield _refused("spec.dnsPolicy", "None", "another policy, which is ignored: name servers are the machine's")
    if spec.get("resourceClaims"):
        yield _refused("spec.resourceClaims", spec["resourceClaims"][0].get("name"), "extended resources")
    if spec.get("ephemeralContainers"):
        yield _refused("spec.ephemeralContainers", spec["ephemeralContainers"][0].get("name"), "none")
    operating = (spec.get("os") or {}).get("name")
    if operating not in (None, "linux"):
        yield _refused("spec.os.name", operating, "linux")
    context = spec.get("securityContext") or {}
    for key in ("sysctls", "windowsOptions", "supplementalGroups"):
        if context.get(key):
            yield _refused(f"spec.securityContext.{key}", context[key], "none")


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
    mounted = {
        name: prefix for prefix in (names.FUSE_PREFIX, names.CVMFS_PREFIX) for name in volumes.annotated(pod, prefix)
    }
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
            others = sorted(set(part) - {"configMap", "secret", "downwardAPI", "serviceAccountToken"})
            if others:
                yield _refused(
                    f"{field_path}.projected.sources", others[0], "configMap, secret, downwardAPI, serviceAccountToken"
                )
    for name in sorted(set(mounted) - seen):
        yield f"annotation {mounted[name]}{name}: {name!r} is no volume of the pod"


def _of_container(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    name = str(container.get("name") or "")
    if not _NAME.fullmatch(name) or name == _RESERVED:
        yield _refused(f"{field_path}.name", name, f"a DNS label other than {_RESERVED!r}")
    for key in ("stdin", "tty"):
        if container.get(key):
            yield _refused(f"{field_path}.{key}", True, "false")
    if container.get("volumeDevices"):
        yield _refused(f"{field_path}.volumeDevices", container["volumeDevices"][0].get("name"), "volumeMounts")
    policy = container.get("restartPolicy")
    if policy is not None and not (policy == "Always" and field_path.startswith("spec.init")):
        yield _refused(f"{field_path}.restartPolicy", policy, "Always, and on init containers alone")
    if container.get("restartPolicyRules"):
        yield _refused(f"{field_path}.restartPolicyRules", "rules", "none")
    yield from _of_context(field_path, container.get("securityContext") or {})
    yield from _of_mounts(field_path, container)
    for index, entry in enumerate(container.get("env") or ()):
        if not environment.NAME.fullmatch(str(entry.get("name") or "")):
            yield _refused(f"{field_path}.env[{index}].name", entry.get("name"), environment.NAMES_ALLOWED)
    yield from _of_handlers(field_path, container)


def _of_context(field_path: str, context: Mapping[str, Any]) -> Iterator[str]:
    place = f"{field_path}.securityContext"
    if context.get("privileged"):
        yield _refused(f"{place}.privileged", True, "false")
    added = (context.get("capabilities") or {}).get("add")
    if added:
        yield _refused(f"{place}.capabilities.add", added, "none")
    if context.get("procMount") not in (None, "Default"):
        yield _refused(f"{place}.procMount", context["procMount"], "Default")
    if context.get("windowsOptions"):
        yield _refused(f"{place}.windowsOptions", "options", "none")


def _of_mounts(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    for index, entry in enumerate(container.get("volumeMounts") or ()):
        place = f"{field_path}.volumeMounts[{index}]"
        try:
            mounts.place_of(str(entry.get("mountPath") or ""), f"{place}.mountPath")
            if entry.get("subPath"):
                volume_files.inside(str(entry["subPath"]), f"{place}.subPath")
        except ScriptError as error:
            yield str(error)
        if entry.get("mountPropagation") not in (None, "None"):
            yield _refused(f"{place}.mountPropagation", entry["mountPropagation"], "None")
        if entry.get("recursiveReadOnly") not in (None, "Disabled", "IfPossible"):
            yield _refused(f"{place}.recursiveReadOnly", entry["recursiveReadOnly"], "Disabled, IfPossible")


def _of_handlers(field_path: str, container: Mapping[str, Any]) -> Iterator[str]:
    ports = probes.named_ports(container)
    lifecycle = container.get("lifecycle") or {}
    if lifecycle.get("stopSignal") not in (None, "SIGTERM"):
        yield _refused(f"{field_path}.lifecycle.stopSignal", lifecycle["stopSignal"], "SIGTERM")
    try:
        probes.make(container, field_path, ports, 0, {})
        for hook in ("postStart", "preStop"):
            probes.action(lifecycle.get(hook), f"{field_path}.lifecycle.{hook}", ports)
    except ScriptError as error:
        yield str(error)
