"""The objects that a pod refers to: ConfigMaps, Secrets and tokens."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.errors import MissingReferenceError, ScriptError

Pod = Mapping[str, Any]
Raw = Mapping[str, Any]
_Reference = tuple[str, Any, Any]
"""Kind, name, and whether it is optional, as in the pod."""
DEFAULT_TOKEN_SECONDS = 3600
MOST_OBJECTS = 500
"""ConfigMaps, Secrets and tokens of a pod at a pool."""
ROOT_CA = "kube-root-ca.crt"
"""ConfigMap in every namespace: the CA certificates of the API server, for clients inside the cluster."""
_API_AUDIENCES = ("", "https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A service account token of a projected volume: file ``path`` of ``volume``; empty audience: the API's own."""

    volume: str
    path: str
    audience: str = ""
    expiration_seconds: int = DEFAULT_TOKEN_SECONDS

    @property
    def key(self) -> tuple[str, str]:
        """The key of :attr:`Objects.tokens`."""
        return (self.volume, self.path)

    @property
    def automatic(self) -> bool:
        """Whether the API server adds this volume to pods."""
        return self.volume.startswith(names.AUTOMATIC_VOLUME_PREFIX)


@dataclass(frozen=True, slots=True)
class PodReferences:
    """Names in the pod's own namespace. ``optional_*`` are optional in each reference."""

    configmaps: frozenset[str]
    secrets: frozenset[str]
    optional_configmaps: frozenset[str]
    optional_secrets: frozenset[str]
    tokens: tuple[TokenRequest, ...]


@dataclass(frozen=True, slots=True)
class Objects:
    """Raw Kubernetes objects by name, tokens by (volume, path). An object that is missing here does not exist."""

    configmaps: Mapping[str, Raw] = field(default_factory=dict)
    secrets: Mapping[str, Raw] = field(default_factory=dict)
    tokens: Mapping[tuple[str, str], str] = field(default_factory=dict)
    decoded: dict[tuple[str, str, bool], dict[str, bytes]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """The objects that :func:`data_of` has read: a pod may name one thousands of times."""


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return every container with the path of its field, init containers first."""
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield f"spec.{kind}[{index}]", container


def at_site(pod: Pod, *, api_server: bool, account_files: bool = False) -> Pod:
    """Return the pod as a site gets it: without a token for the API server, unless the site says where that is.

    The volume that every pod has is left out with its mounts or, with ``account_files``, has its other files only: the
    namespace, and the CA certificates if podbridge may read them. A volume that the user wrote is refused with
    ``ScriptError``: the container would miss a file that the user requested.
    """
    spec = pod["spec"]
    if problem := excess(pod):
        raise ScriptError(problem)
    if api_server:
        return pod
    for index, volume in enumerate(spec.get("volumes") or ()):
        if _is_automatic(volume):
            continue
        for number, part in enumerate(_projected(volume)):
            inner = part.get("serviceAccountToken")
            if inner is not None and str(inner.get("audience") or "") in _API_AUDIENCES:
                raise ScriptError(
                    f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken.audience: "
                    f"{inner.get('audience') or ''!r}, the API server, is not allowed at this site, which does not say "
                    f"how to reach it (api_server); allowed: any other audience"
                )
    left_out = {volume["name"] for volume in spec.get("volumes") or () if _is_automatic(volume)}
    if not left_out:
        return pod
    if account_files:
        return {**pod, "spec": {**spec, "volumes": [_without_token(volume) for volume in spec["volumes"]]}}
    return without_volumes(pod, left_out.__contains__)


def without_volumes(pod: Pod, is_left_out: Callable[[str], bool]) -> Pod:
    """Return the pod without volumes of some names, and without their mounts."""

    def kept(entries: Iterable[Raw] | None) -> list[Raw]:
        return [entry for entry in entries or () if not is_left_out(str(entry.get("name")))]

    fewer = {**pod["spec"], "volumes": kept(pod["spec"].get("volumes"))}
    for kind in ("initContainers", "containers"):
        if fewer.get(kind):
            fewer[kind] = [
                {**each, "volumeMounts": kept(each["volumeMounts"])} if each.get("volumeMounts") else each
                for each in fewer[kind]
            ]
    return {**pod, "spec": fewer}


def _is_automatic(volume: Mapping[str, Any]) -> bool:
    return str(volume.get("name", "")).startswith(names.AUTOMATIC_VOLUME_PREFIX) and volume.get("projected") is not None


def _without_token(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _is_automatic(volume):
        return volume
    parts: list[Mapping[str, Any]] = []
    for part in _projected(volume):
        if "configMap" in part:
            parts.append({"configMap": {**part["configMap"], "optional": True}})
        elif "serviceAccountToken" not in part:
            parts.append(part)
    return {**volume, "projected": {**volume["projected"], "sources": parts}}


def excess(pod: Pod) -> str:
    """Return why a pod refers to too many objects: each costs a request to the API server; empty if it does not."""
    found = needed(pod)
    count = len(found.configmaps) + len(found.secrets) + len(found.tokens)
    if count <= MOST_OBJECTS:
        return ""
    return f"spec: {count} ConfigMaps, Secrets and tokens are not allowed on a pool; allowed: at most {MOST_OBJECTS}"


def needed(pod: Pod) -> PodReferences:
    """Return the objects that the script needs. An image pull secret may be missing, as for a kubelet."""
    spec = pod["spec"]
    return _collected(spec, (*_of_volumes(spec), *_of_containers(spec)))


def of_volumes(pod: Pod) -> PodReferences:
    """Return the objects and tokens in the pod's volumes."""
    return _collected(pod["spec"], _of_volumes(pod["spec"]))


def _collected(spec: Mapping[str, Any], references: Iterable[_Reference]) -> PodReferences:
    optional_by_name: dict[str, dict[str, bool]] = {"configmaps": {}, "secrets": {}}
    for kind, name, optional in references:
        if name:
            optional_by_name[kind][str(name)] = bool(optional) and optional_by_name[kind].get(str(name), True)
    return PodReferences(
        configmaps=frozenset(optional_by_name["configmaps"]),
        secrets=frozenset(optional_by_name["secrets"]),
        optional_configmaps=frozenset(name for name, optional in optional_by_name["configmaps"].items() if optional),
        optional_secrets=frozenset(name for name, optional in optional_by_name["secrets"].items() if optional),
        tokens=tuple(_tokens(spec)),
    )


def _of_volumes(spec: Mapping[str, Any]) -> Iterator[_Reference]:
    for volume in spec.get("volumes") or ():
        yield from _references(volume, "", "secretName")
        for part in _projected(volume):
            yield from _references(part, "")


def _of_containers(spec: Mapping[str, Any]) -> Iterator[_Reference]:
    for _, container in containers(spec):
        for entry in container.get("env") or ():
            yield from _references(entry.get("valueFrom") or {}, "KeyRef")
        for entry in container.get("envFrom") or ():
            yield from _references(entry, "Ref")
    for reference in spec.get("imagePullSecrets") or ():
        yield "secrets", reference.get("name"), True


def _references(holder: Mapping[str, Any], suffix: str, name_key: str = "name") -> Iterator[_Reference]:
    if (source := holder.get(f"configMap{suffix}")) is not None:
        yield "configmaps", source.get("name"), source.get("optional")
    if (source := holder.get(f"secret{suffix}")) is not None:
        yield "secrets", source.get(name_key), source.get("optional")


def _tokens(spec: Mapping[str, Any]) -> Iterator[TokenRequest]:
    for volume in spec.get("volumes") or ():
        for part in _projected(volume):
            if (source := part.get("serviceAccountToken")) is not None:
                yield TokenRequest(
                    str(volume.get("name")),
                    posixpath.normpath(str(source.get("path") or "")),
                    str(source.get("audience") or ""),
                    int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS),
                )


def _projected(volume: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (volume.get("projected") or {}).get("sources") or ()


def data_of(
    objects: Objects, kind: str, name: str, field_path: str, *, optional: bool, binary: bool = True
) -> dict[str, bytes] | None:
    """Read the keys of a ``configMap`` or ``secret``; ``None``: it is optional and missing.

    ``binary``: with the keys of ``binaryData``.
    """
    if (known := objects.decoded.get((kind, name, binary))) is not None:
        return known
    is_secret = kind == "secret"
    obj = (objects.secrets if is_secret else objects.configmaps).get(name)
    title = f"{'Secret' if is_secret else 'ConfigMap'} {name!r}"
    if obj is None:
        if optional:
            return None
        raise MissingReferenceError(f"{field_path}: {title} does not exist")
    texts, encoded = ("stringData", "data") if is_secret else ("data", "binaryData")
    plain = {key: text.encode("utf-8", "surrogatepass") for key, text in (obj.get(texts) or {}).items()}
    if is_secret or binary:
        decoded = {key: _decode(text, f"{title}, key {key!r}") for key, text in (obj.get(encoded) or {}).items()}
        plain = {**decoded, **plain} if is_secret else {**plain, **decoded}
    objects.decoded[kind, name, binary] = plain
    return plain


def one_key(data: dict[str, bytes] | None, key: str, kind: str, field_path: str, *, optional: bool) -> bytes | None:
    """Return the value of a key; ``None``: it is optional and missing."""
    if data is not None and key in data:
        return data[key]
    if optional:
        return None
    raise MissingReferenceError(f"{field_path}: {kind} has no key {key!r}")


def _decode(text: str, field_path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError) as error:
        raise ScriptError(f"{field_path}: the value is not base64") from error
