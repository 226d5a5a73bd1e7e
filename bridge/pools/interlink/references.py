"""The objects that a pod refers to, in the form of interLink and in podbridge's own.

A virtual kubelet sends a pod whose variables are resolved: each has a literal value, references to other variables are
expanded, and ``envFrom`` is empty. It sends the content of each projected volume, tokens included, as a ConfigMap with
the name of the volume; a volume of the downward API counts as projected. The other objects are sent whole, and the
plugin applies ``items``, ``defaultMode`` and ``optional``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.interlink.messages import PodCreateRequests, RetrievedContainer
from bridge.interlink.objects import ConfigMap, JsonObject, Secret
from bridge.script import environment, volume_files
from bridge.script.quoting import ADDRESS, Allowance
from bridge.script.references import Objects, containers

Pod = Mapping[str, Any]

NO_ADDRESS = "127.0.0.1"
"""The address of a pod without a tunnel, as interLink's virtual kubelet sets it."""
_PROJECTED = "projected/"
"""Prefix of the name of a Secret with the content of a projected volume. No Secret of a cluster has a slash."""


# --- what a client sends ----------------------------------------------------------------------------------------------
def sent_pod(pod: Pod, objects: Objects, node: str) -> JsonObject:
    """Return the pod with literal variables, and with downward API volumes as projected volumes.

    Raises ``ScriptError`` and ``MissingReferenceError``. ``node``: the name of the virtual node.
    """
    spec, allowance = dict(pod["spec"]), Allowance()
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [
                _literal(pod, container, f"spec.{kind}[{index}]", objects, node, allowance)
                for index, container in enumerate(spec[kind])
            ]
    if spec.get("volumes"):
        spec["volumes"] = [_as_projected(volume) for volume in spec["volumes"]]
    return {**pod, "spec": spec}


def sent_containers(pod: Pod, objects: Objects, node: str) -> list[RetrievedContainer]:
    """Return the objects of each container for hop B: one entry for each volume mount, init containers first.

    Raises ``ScriptError`` and ``MissingReferenceError``.
    """
    parts, allowance = _sent(pod, objects, node), Allowance()
    retrieved = []
    for field_path, container in containers(pod["spec"]):
        mounted = [parts[name] for mount in container.get("volumeMounts") or () if (name := mount.get("name")) in parts]
        for part, _ in mounted:
            allowance.take(_size(part), f"{field_path}.volumeMounts")
        retrieved.append(
            RetrievedContainer(
                name=str(container["name"]),
                config_maps=[part for part, kind in mounted if kind == "configMap"],
                projected_volume_maps=[part for part, kind in mounted if kind == "projected"],
                secrets=[part for part, kind in mounted if kind == "secret"],
            )
        )
    return retrieved


def sent_request(pod: Pod, objects: Objects, node: str) -> PodCreateRequests:
    """Return the body of ``/create`` for hop A. Raises as :func:`sent_pod`."""
    parts = _sent(pod, objects, node).values()
    return PodCreateRequests(
        pod=sent_pod(pod, objects, node),
        config_maps=[ConfigMap.model_validate(source) for source in objects.configmaps.values()],
        secrets=[Secret.model_validate(source) for source in objects.secrets.values()],
        projected_volume_maps=[part for part, kind in parts if kind == "projected"],
    )


def _literal(
    pod: Pod, container: Mapping[str, Any], field_path: str, objects: Objects, node: str, allowance: Allowance
) -> JsonObject:
    variables = environment.make(pod, container, field_path, objects, node, {}, allowance).values
    return {
        **{key: value for key, value in container.items() if key != "envFrom"},
        "env": [{"name": name, "value": value.replace(ADDRESS, NO_ADDRESS)} for name, value in variables.items()],
    }


def _as_projected(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    source = volume.get("downwardAPI")
    if source is None:
        return volume
    projected = {"sources": [{"downwardAPI": {"items": source.get("items") or []}}]}
    if source.get("defaultMode") is not None:
        projected["defaultMode"] = source["defaultMode"]
    return {"name": volume["name"], "projected": projected}


def _sent(pod: Pod, objects: Objects, node: str) -> dict[str, tuple[Any, str]]:
    """Return the object of each volume and the kind of its list; volumes for which none is sent are left out."""
    allowance = Allowance()
    found = {
        str(volume["name"]): _sent_of(pod, volume, f"spec.volumes[{index}]", objects, node, allowance)
        for index, volume in enumerate(pod["spec"].get("volumes") or ())
    }
    return {name: sent for name, sent in found.items() if sent[1]}


def _size(part: ConfigMap | Secret) -> int:
    """Return the characters of the values of an object."""
    more = part.binary_data if isinstance(part, ConfigMap) else part.string_data
    return sum(map(len, (*part.data.values(), *more.values())))


def _sent_of(
    pod: Pod, volume: Mapping[str, Any], field_path: str, objects: Objects, node: str, allowance: Allowance
) -> tuple[Any, str]:
    """Return the object of a volume and the kind of its list; an empty kind if none is sent."""
    if (source := volume.get("configMap")) is not None:
        source_object = objects.configmaps.get(str(source.get("name")))
        return (None, "") if source_object is None else (ConfigMap.model_validate(source_object), "configMap")
    if (source := volume.get("secret")) is not None:
        source_object = objects.secrets.get(str(source.get("secretName")))
        return (None, "") if source_object is None else (Secret.model_validate(source_object), "secret")
    if volume.get("projected") is None and volume.get("downwardAPI") is None:
        return None, ""
    text_files: dict[str, str] = {}
    binary_files: dict[str, str] = {}
    for file in volume_files.content(pod, volume, field_path, objects, node, {}, allowance):
        try:
            text_files[file.path] = file.data.decode()
        except UnicodeDecodeError:
            binary_files[file.path] = base64.b64encode(file.data).decode()
    content = {"metadata": {"name": str(volume["name"])}, "data": text_files, "binaryData": binary_files}
    return ConfigMap.model_validate(content), "projected"


# --- what a server receives -------------------------------------------------------------------------------------------
def received_containers(pod: Pod, retrieved: Iterable[RetrievedContainer]) -> tuple[JsonObject, Objects]:
    """Return the pod that a pool can run and its objects, from the containers of hop B."""
    retrieved = list(retrieved)
    return _received(
        pod,
        [part for container in retrieved for part in container.config_maps],
        [part for container in retrieved for part in container.secrets],
        [part for container in retrieved for part in container.projected_volume_maps],
    )


def received_request(request: PodCreateRequests) -> tuple[JsonObject, Objects]:
    """Return the pod that a pool can run and its objects, from the body of hop A."""
    return _received(request.pod, request.config_maps, request.secrets, request.projected_volume_maps)


def _received(
    pod: Pod, config_maps: Iterable[ConfigMap], secrets: Iterable[Secret], projected: Iterable[ConfigMap]
) -> tuple[JsonObject, Objects]:
    content = {part.metadata.name: part for part in projected}
    spec = dict(pod["spec"])
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [_as_received(container) for container in spec[kind]]
    if spec.get("volumes"):
        spec["volumes"] = [_with_content(volume, content) for volume in spec["volumes"]]
    objects = Objects(
        configmaps={part.metadata.name: part.raw() for part in config_maps},
        secrets={
            **{part.metadata.name: part.raw() for part in secrets},
            **{_PROJECTED + name: _as_secret(part) for name, part in content.items()},
        },
    )
    return {**pod, "spec": spec}, objects


def _as_received(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container whose literal variables are not expanded again: the client has expanded them."""
    if not any("$" in (entry.get("value") or "") for entry in container.get("env") or ()):
        return container
    env = [
        {**entry, "value": entry["value"].replace("$", "$$")} if "$" in (entry.get("value") or "") else entry
        for entry in container["env"]
    ]
    return {**container, "env": env}


def _with_content(volume: Mapping[str, Any], content: Mapping[str, ConfigMap]) -> Mapping[str, Any]:
    """Return a projected volume as the Secret that has its content; the file modes stay those of its sources."""
    name = str(volume.get("name"))
    projected = volume.get("projected")
    if projected is None or name not in content:
        return volume
    modes = {
        item.get("path"): item["mode"]
        for projected_source in projected.get("sources") or ()
        for source_body in projected_source.values()
        if isinstance(source_body, dict)
        for item in source_body.get("items") or ()
        if item.get("mode") is not None
    }
    paths = [*content[name].data, *content[name].binary_data]
    source: JsonObject = {"secretName": _PROJECTED + name}
    if paths:
        source["items"] = [
            {"key": path, "path": path, **({"mode": modes[path]} if path in modes else {})} for path in paths
        ]
    if projected.get("defaultMode") is not None:
        source["defaultMode"] = projected["defaultMode"]
    return {"name": name, "secret": source}


def _as_secret(part: ConfigMap) -> JsonObject:
    return {"metadata": {"name": part.metadata.name}, "data": part.binary_data, "stringData": part.data}
