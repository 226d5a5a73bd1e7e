"""The job of a pod: what the DMS gets, and the refusal of what it cannot get. Pure.

Every field of the pod is sent, has no effect on a batch job, or is refused by its name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.pools.nunet import gpus, pod_annotations
from bridge.pools.nunet.choice import PeerRequirements
from bridge.pools.nunet.dialect import DmsJobRequest
from bridge.pools.nunet.peer import MHZ, Resources
from bridge.script import environment, site_annotations
from bridge.script.quoting import ADDRESS
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


_IDS = {"runAsUser", "runAsGroup", "fsGroup"}


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Values of the configuration.

    Parameters
    ----------
    services
        Whether pods without an end are allowed.
    secrets
        Whether values of Secrets are sent.
    gpu_count
        Whether the body can have a number of GPUs.
    max_time
        Seconds; the time limit of pods without one.
    defaults
        Values of annotations by short name, for pods without them.
    """

    services: bool = False
    secrets: bool = False
    gpu_count: bool = False
    max_time: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


def check(pod: Pod, settings: RequestSettings) -> None:
    """Raise ``ScriptError`` if the DMS cannot run the pod. It names the field."""
    spec = pod["spec"]
    _refuse_unknown(spec, "spec", _SENT | _NO_EFFECT)
    containers = spec.get("containers") or []
    if len(containers) != 1:
        raise ScriptError(f"spec.containers: {len(containers)} containers are not allowed; allowed: 1, a NuNet job")
    container = containers[0]
    _refuse_unknown(container, "spec.containers[0]", _CONTAINER_SENT | _CONTAINER_NO_EFFECT)
    for index, port in enumerate(container.get("ports") or ()):
        _refuse_unknown(port, f"spec.containers[0].ports[{index}]", {"containerPort", "name", "protocol"})
    values = {**settings.defaults, **pod_annotations.read(pod)}
    if not settings.services and spec.get("restartPolicy", "Always") == "Always" and _time_limit(spec, values) is None:
        raise ScriptError(
            f"spec.restartPolicy: 'Always' without a time limit is not allowed in this pool; allowed: Never, "
            f"OnFailure, or a limit in spec.activeDeadlineSeconds or the annotation {pod_annotations.PREFIX}max-time"
        )
    resources(pod, settings)


def without_automatic(pod: Pod) -> Pod:
    """Return a pod of an interLink client without the token of its service account, which has become a Secret there."""
    spec = pod["spec"]
    dropped = {
        str(volume.get("name"))
        for volume in spec.get("volumes") or ()
        if str(volume.get("name")).startswith(names.AUTOMATIC_VOLUME_PREFIX)
    }
    changed = {**spec, "volumes": [each for each in spec.get("volumes") or () if each.get("name") not in dropped]}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            changed[kind] = [
                {
                    **each,
                    "volumeMounts": [
                        mount for mount in each.get("volumeMounts") or () if mount.get("name") not in dropped
                    ],
                }
                for each in spec[kind]
            ]
    return {**pod, "spec": changed}


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


def resources(pod: Pod, settings: RequestSettings) -> tuple[Resources, gpus.Kind | None]:
    """Return the resources of the pod's job, and its kind of GPU; raises ``ScriptError``."""
    field_path = "spec.containers[0].resources"
    try:
        requests = pod_requests(pod["spec"])
    except ValueError as error:
        raise ScriptError(f"{field_path}: {error}") from error
    kinds: dict[gpus.Kind, int] = {}
    for name, amount in requests.items():
        try:
            kind = gpus.kind_in(name)
        except ValueError as error:
            raise ScriptError(f"{field_path}: {error}") from error
        if kind is not None:
            kinds[kind] = kinds.get(kind, 0) + quantity.whole(amount)
        elif name not in ("cpu", "memory", "ephemeral-storage", MHZ, "nunet.cpu.mhz"):
            raise ScriptError(
                f"{field_path}: {name!r} is not allowed; allowed: cpu, memory, {MHZ}, nunet.io/gpu.<kind>"
            )
    if len(kinds) > 1:
        raise ScriptError(f"{field_path}: {', '.join(map(str, kinds))}: one kind of GPU is allowed in a NuNet job")
    kind, count = next(iter(kinds.items()), (None, 0))
    if count > 1 and not settings.gpu_count:
        raise ScriptError(
            f"{field_path}: {count} GPUs are not allowed; allowed: 1: the published request has no number of GPUs "
            f"(gpuCountField of the pool)"
        )
    disk = pod_annotations.read(pod).get("disk")
    return (
        Resources(
            cpus=Decimal(max(1, quantity.whole(requests.get("cpu", Decimal(0))))),
            memory=quantity.whole(requests.get("memory", Decimal(0))),
            mhz=requests.get(MHZ, requests.get("nunet.cpu.mhz", Decimal(0))),
            disk=disk if disk is not None else quantity.whole(requests.get("ephemeral-storage", Decimal(0))),
            gpus={str(kind): count} if kind is not None else {},
        ),
        kind,
    )


def requirements(pod: Pod, settings: RequestSettings) -> PeerRequirements:
    """Return what the pod requires of its peer beyond resources."""
    values = {**settings.defaults, **pod_annotations.read(pod)}
    return PeerRequirements(
        frequency=values.get("cpu-frequency", 0),
        max_price=values.get("max-price-per-hour"),
        localities=frozenset(text.lower() for text in values.get("locality", ())),
        channels=frozenset(text.lower() for text in values.get("channels", ())),
        max_latency=values.get("max-latency"),
        peers=frozenset(values.get("peers", ())),
    )


def make(pod: Pod, objects: Objects, node: str, settings: RequestSettings) -> DmsJobRequest:
    """Return the job of a checked pod. Raises ``ScriptError`` and ``MissingReferenceError``."""
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    requested, kind = resources(pod, settings)
    plain_variables, secret_variables = _variables(pod, container, objects, node, requested, settings)
    values = {"currency": "ntx", **settings.defaults, **pod_annotations.read(pod)}
    all_variables = {**plain_variables, **secret_variables}

    def words(key: str) -> tuple[str, ...]:
        expanded = [environment.expand(str(text), all_variables) for text in container.get(key) or ()]
        expanded_without_secrets = [environment.expand(str(text), plain_variables) for text in container.get(key) or ()]
        for index, (argument, argument_without_secrets) in enumerate(
            zip(expanded, expanded_without_secrets, strict=True)
        ):
            if argument != argument_without_secrets:
                raise ScriptError(
                    f"spec.containers[0].{key}[{index}]: the value of a Secret is not allowed here; allowed: in env"
                )
        return tuple(expanded)

    return DmsJobRequest(
        uid=str(pod["metadata"]["uid"]),
        image=str(container.get("image") or ""),
        resources=requested,
        command=words("command"),
        args=words("args"),
        env=plain_variables,
        secrets=secret_variables,
        registry=_registry(pod, str(container.get("image") or ""), objects, settings),
        kind=kind,
        ports=tuple(int(port["containerPort"]) for port in container.get("ports") or ()),
        max_time=_time_limit(spec, values) or settings.max_time,
        fields=pod_annotations.fields(values),
    )


def _variables(
    pod: Pod,
    container: Mapping[str, Any],
    objects: Objects,
    node: str,
    requested: Resources,
    settings: RequestSettings,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables without values of Secrets, and those with."""
    machine = {"cpu": requested.cpus, "memory": Decimal(requested.memory)}

    def values_with(with_objects: Objects) -> dict[str, str]:
        return environment.make(pod, container, "spec.containers[0]", with_objects, node, machine).values

    values = values_with(objects)
    for name, value in values.items():
        if ADDRESS in value:
            raise ScriptError(f"spec.containers[0].env: {name}: the IP address is not known before the job runs")
    # a variable contains the value of a Secret if it changes with it; it may do so through $(NAME)
    other_values = values_with(Objects(objects.configmaps, _changed(objects.secrets), objects.tokens))
    secret_variables = {name: value for name, value in values.items() if other_values.get(name) != value}
    if secret_variables and not settings.secrets:
        raise ScriptError(
            f"spec.containers[0].env: {', '.join(sorted(secret_variables))}: values of Secrets are not allowed in this "
            f"pool (sendSecrets)"
        )
    return {name: value for name, value in values.items() if name not in secret_variables}, secret_variables


def _changed(secrets: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the Secrets with other values."""

    def changed(data: Mapping[str, Any], decode: Callable[[str], bytes]) -> dict[str, str]:
        return {key: base64.b64encode(decode(text) + b"'").decode() for key, text in data.items()}

    return {
        name: {
            **secret,
            "data": {
                **changed(secret.get("data") or {}, base64.b64decode),
                **changed(secret.get("stringData") or {}, lambda text: text.encode("utf-8", "surrogatepass")),
            },
            "stringData": {},
        }
        for name, secret in secrets.items()
    }


def _registry(pod: Pod, image: str, objects: Objects, settings: RequestSettings) -> dict[str, str] | None:
    """Return the credentials for the registry of the image; ``None``: the pod has none for it."""
    auth_config = site_annotations.pull_secret(pod, objects)
    if not auth_config:
        return None
    server = registry_of(image)
    for name, entry in json.loads(auth_config)["auths"].items():
        if _host(name) != server:
            continue
        if not settings.secrets:
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
