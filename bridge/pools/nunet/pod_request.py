"""The body of ``postJob`` for a pod, and the refusal of what the DMS cannot get. Pure.

Every field of the pod is sent, has no effect on a batch job, or is refused by its name.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bridge.config.nunet import NunetSection
from bridge.errors import ScriptError
from bridge.pools.nunet import pod_annotations
from bridge.pools.nunet.peers import MHZ, Resources, kind_in
from bridge.script import environment, site_annotations
from bridge.script.quoting import ADDRESS, Allowance
from bridge.script.references import Objects
from bridge.workload import quantity
from bridge.workload.resources import pod_requests

Pod = Mapping[str, Any]

_SENT = {"containers", "activeDeadlineSeconds", "restartPolicy", "imagePullSecrets"}
_NO_EFFECT = {
    *("affinity", "nodeName", "nodeSelector", "schedulerName", "schedulingGates", "tolerations"),
    *("topologySpreadConstraints", "preemptionPolicy", "priority", "priorityClassName", "readinessGates"),
    *("serviceAccount", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "overhead"),
    *("terminationGracePeriodSeconds", "dnsPolicy", "resources", "os"),
}
"""``resources`` counts in the sum of the requests. A grace period cannot be sent: a cancelled job has the DMS's own."""
_CONTAINER_SENT = {"name", "image", "command", "args", "env", "envFrom", "resources", "ports"}
_CONTAINER_NO_EFFECT = {"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"}
_RESOURCES = "spec.containers[0].resources"
_IDS = {"runAsUser", "runAsGroup", "fsGroup"}
_DEFAULTS: Mapping[str, Any] = {
    "network": {},
    "requiredCapability": {
        "executor": "docker",
        "type": {"description": "batch"},
        "libraries": [],
        "locality": [],
        "storage": [],
        "price": {"currency": "ntx"},
        "time": {"units": "seconds"},
        "kyc": [],
    },
}
"""Fields that the user's replace."""


def check(pod: Pod, section: NunetSection, values: Mapping[str, Any]) -> None:
    """Raise ``ScriptError`` if the DMS cannot run the pod. It names the field. ``values``: those of annotations."""
    spec = pod["spec"]
    _refuse_unknown(spec, "spec", _SENT | _NO_EFFECT)
    containers = spec.get("containers") or []
    if len(containers) != 1:
        raise ScriptError(f"spec.containers: {len(containers)} containers are not allowed; allowed: 1, a NuNet job")
    container = containers[0]
    _refuse_unknown(container, "spec.containers[0]", _CONTAINER_SENT | _CONTAINER_NO_EFFECT)
    for index, port in enumerate(container.get("ports") or ()):
        _refuse_unknown(port, f"spec.containers[0].ports[{index}]", {"containerPort", "name", "protocol"})
    endless = spec.get("restartPolicy", "Always") == "Always" and _time_limit(spec, values) is None
    if section.services == "refuse" and endless:
        raise ScriptError(
            f"spec.restartPolicy: 'Always' without a time limit is not allowed in this pool; allowed: Never, "
            f"OnFailure, or a limit in spec.activeDeadlineSeconds or the annotation {pod_annotations.PREFIX}max-time"
        )
    if (count := sum(resources(pod).gpus.values())) > 1:
        raise ScriptError(
            f"{_RESOURCES}: {count} GPUs are not allowed; allowed: 1: the published request has no number of GPUs"
        )


def _refuse_unknown(fields: Mapping[str, Any], field_path: str, allowed: set[str]) -> None:
    for name, value in fields.items():
        if name not in allowed and not _is_empty(value):
            raise ScriptError(f"{field_path}.{name}: a NuNet job cannot have it; remove it from the pod")


def _is_empty(value: object, name: str = "") -> bool:
    """Return whether the value requests nothing: empty, false, or an object of such values. User 0 is one."""
    if name in _IDS:
        return value is None
    return not value or (isinstance(value, dict) and all(_is_empty(item, key) for key, item in value.items()))


def _time_limit(spec: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    limits = [int(limit) for limit in (spec.get("activeDeadlineSeconds"), values.get("max-time")) if limit is not None]
    return min(limits) if limits else None


def resources(pod: Pod) -> Resources:
    """Return the resources of the pod's job; raises ``ScriptError``."""
    kinds: dict[str, int] = {}
    try:
        requests = pod_requests(pod["spec"])
        for name, amount in requests.items():
            if (kind := kind_in(name)) is not None:
                kinds[kind] = kinds.get(kind, 0) + quantity.whole(amount)
            elif name not in ("cpu", "memory", "ephemeral-storage", MHZ, "nunet.cpu.mhz"):
                raise ValueError(f"{name!r} is not allowed; allowed: cpu, memory, {MHZ}, nunet.io/gpu.<kind>")
        if len(kinds) > 1:
            raise ValueError(f"{', '.join(kinds)}: one kind of GPU is allowed in a NuNet job")
    except ValueError as error:
        raise ScriptError(f"{_RESOURCES}: {error}") from error
    return Resources(
        cpus=Decimal(max(1, quantity.whole(requests.get("cpu", Decimal(0))))),
        memory=quantity.whole(requests.get("memory", Decimal(0))),
        mhz=requests.get(MHZ, requests.get("nunet.cpu.mhz", Decimal(0))),
        disk=quantity.whole(requests.get("ephemeral-storage", Decimal(0))),
        gpus=kinds,
    )


def body(pod: Pod, objects: Objects, node: str, section: NunetSection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of ``postJob`` for a checked pod, without the peer.

    ``values``: those of annotations. The names ``job.entrypoint`` and ``job.registry`` are not published. Raises
    ``ScriptError`` and ``MissingReferenceError``.
    """
    container, image = pod["spec"]["containers"][0], str(pod["spec"]["containers"][0].get("image") or "")
    requested = resources(pod)
    plain, secret = _variables(pod, container, objects, node, requested)
    if secret and not section.send_secrets:
        raise ScriptError(
            f"spec.containers[0].env: {', '.join(sorted(secret))}: values of Secrets are not allowed in this pool "
            f"(sendSecrets)"
        )

    every, allowance = {**plain, **secret}, Allowance()

    def words(key: str) -> list[str]:
        texts = [str(text) for text in container.get(key) or ()]
        for index, text in enumerate(texts):
            if environment.expand(text, every) != environment.expand(text, plain):
                raise ScriptError(
                    f"spec.containers[0].{key}[{index}]: the value of a Secret is not allowed here; allowed: in env"
                )
        return environment.expanded(texts, plain, f"spec.containers[0].{key}", allowance)

    job: dict[str, Any] = {"image": image}
    if command := words("command"):
        job["entrypoint"] = command
    if registry := _registry(pod, image, objects, section):
        job["registry"] = registry
    capability: dict[str, Any] = {
        "resources": _resource_fields(requested),
        "network": {"open_ports": [int(port["containerPort"]) for port in container.get("ports") or ()]},
    }
    if "max-price-per-hour" in values:
        capability["price"] = {"max_per_hour": values["max-price-per-hour"]}
    if (max_time := _time_limit(pod["spec"], values)) is not None:
        capability["time"] = {"max_time": max_time}
    content = {
        "job_id": str(pod["metadata"]["uid"]),
        "job": job,
        "jobparams": words("args"),
        "jobenv": plain,
        "secrets": secret,
        "requiredCapability": capability,
    }
    return _merged(_merged(_DEFAULTS, values.get("request", {}), replace=True), content, replace=False)


def _resource_fields(requested: Resources) -> dict[str, Any]:
    fields: dict[str, Any] = {"cpu": {"cores": int(requested.cpus)}, "ram": _size(requested.memory)}
    if requested.disk:
        fields["disk"] = _size(requested.disk)
    for name in requested.gpus:
        brand, _, rest = name.partition(".")
        model, _, vram = rest.rpartition(".")
        fields["gpu"] = {"brand": brand, "model": model, "vram": f"{vram.removesuffix('gb')}Gi"}
    return fields


def _size(amount: int) -> str:
    """Return bytes in the form of the published body, ``1024Gi``, or in MiB, rounded up."""
    mebi = -(-amount // 2**20)
    return f"{mebi // 1024}Gi" if mebi and mebi % 1024 == 0 else f"{mebi}Mi"


def _merged(fields: Mapping[str, Any], others: Mapping[str, Any], *, replace: bool, path: str = "") -> dict[str, Any]:
    """Return both; ``replace``: whether the others may replace a value, else raise ScriptError."""
    result = dict(fields)
    for key, value in others.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value, replace=replace, path=f"{path}{key}.")
        elif key in result and not replace:
            raise ScriptError(
                f"annotation nunet.bridge.vk.io/request: {path}{key} is not allowed; podbridge derives it from the pod"
            )
        else:
            result[key] = value
    return result


def _variables(
    pod: Pod, container: Mapping[str, Any], objects: Objects, node: str, requested: Resources
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables without values of Secrets, and those with."""
    machine = {"cpu": requested.cpus, "memory": Decimal(requested.memory)}

    def values_with(with_objects: Objects) -> dict[str, str]:
        return environment.make(pod, container, "spec.containers[0]", with_objects, node, machine, Allowance()).values

    variables = values_with(objects)
    for name, value in variables.items():
        if ADDRESS in value:
            raise ScriptError(f"spec.containers[0].env: {name}: the IP address is not known before the job runs")
    # a variable contains the value of a Secret if it changes with it; it may do so through $(NAME)
    others = values_with(Objects(objects.configmaps, _changed(objects.secrets), objects.tokens))
    secret = {name: value for name, value in variables.items() if others.get(name) != value}
    return {name: value for name, value in variables.items() if name not in secret}, secret


def _changed(secrets: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the Secrets with other values."""
    other = base64.b64encode(uuid.uuid4().hex.encode()).decode()
    return {
        name: {
            **secret,
            "data": dict.fromkeys([*(secret.get("data") or ()), *(secret.get("stringData") or ())], other),
            "stringData": {},
        }
        for name, secret in secrets.items()
    }


def _registry(pod: Pod, image: str, objects: Objects, section: NunetSection) -> dict[str, str] | None:
    """Return the credentials for the registry of the image; ``None``: the pod has none for it."""
    auth_config, server = site_annotations.pull_secret(pod, objects), registry_of(image)
    for name, entry in (json.loads(auth_config)["auths"] if auth_config else {}).items():
        if _host(name) != server:
            continue
        if not section.send_secrets:
            raise ScriptError(
                f"spec.imagePullSecrets: credentials for {server} are not allowed in this pool (sendSecrets)"
            )
        try:
            user, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
        except ValueError as error:
            raise ScriptError(f"spec.imagePullSecrets: the credentials for {server} are malformed") from error
        return {"server": server, "username": user, "password": password}
    return None


def registry_of(image: str) -> str:
    """Return the host of an image's registry: Docker Hub's without one in the name."""
    host, slash, _ = image.removeprefix("docker://").partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else "docker.io"


def _host(entry: str) -> str:
    host = entry.partition("://")[2] or entry
    host = host.partition("/")[0]
    return "docker.io" if host in ("index.docker.io", "registry-1.docker.io") else host
