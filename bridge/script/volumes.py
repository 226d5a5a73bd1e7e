"""Volumes: files that the script writes, directories that it creates, and paths of the host that it uses."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.errors import MissingReferenceError, ScriptError
from bridge.script import environment, fuse, references
from bridge.script.quoting import ADDRESS, clean
from bridge.script.references import Objects
from bridge.script.settings import BuildSettings
from bridge.workload import quantity

ALLOWED = ("configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath")
_HOST_TYPES = (
    "",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
    "CharDevice",
    "BlockDevice",
)


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A file; ``path`` is relative to ``volumes`` in the job's directory: ``<volume>/<path in it>``."""

    path: str
    data: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """An emptyDir; ``limit`` in KiB."""

    memory: bool
    limit: int | None


@dataclass(frozen=True, slots=True)
class HostPath:
    """A directory or file of the machine.

    ``free``: the site allows whatever the path leads to, so a link that a container creates in it opens nothing.
    """

    path: str
    type: str
    free: bool


@dataclass(frozen=True, slots=True)
class Volumes:
    """All volumes of a pod by name; ``kinds`` has ``files``, ``scratch``, ``host`` or ``fuse`` for each.

    ``fuse`` has the scripts that mount; ``shared`` are those of ``host`` that every pod of the site may use.
    """

    kinds: dict[str, str]
    files: list[VolumeFile]
    scratch: dict[str, Scratch]
    host: dict[str, HostPath]
    fuse: dict[str, str]
    shared: set[str]


def make(
    pod: Mapping[str, Any], config: BuildSettings, objects: Objects, node: str, machine: Mapping[str, Decimal]
) -> Volumes:
    """Return every volume of the pod, with its content."""
    made = Volumes({}, [], {}, {}, {}, set())
    scripts, shared = fuse.annotated(pod, names.FUSE_PREFIX), fuse.annotated(pod, names.CVMFS_PREFIX)
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        where, name = f"spec.volumes[{index}]", str(volume["name"])
        if name in scripts:
            made.kinds[name] = "fuse"
            made.fuse[name] = fuse.script(name, scripts[name], config)
        elif name in shared:
            made.kinds[name] = "host"
            made.host[name] = HostPath(fuse.cvmfs(name, config), "Directory", free=True)
            made.shared.add(name)
        elif (source := volume.get("emptyDir")) is not None:
            made.kinds[name] = "scratch"
            made.scratch[name] = Scratch(source.get("medium") == "Memory", _kibibytes(source.get("sizeLimit"), where))
        elif (source := volume.get("hostPath")) is not None:
            made.kinds[name] = "host"
            made.host[name] = _host(source, f"{where}.hostPath", config)
        else:
            made.kinds[name] = "files"
            files = list(content(pod, volume, where, objects, node, machine))
            _refuse_overlaps({path for path, _, _ in files}, where)
            made.files.extend(VolumeFile(f"{name}/{path}", data, mode) for path, data, mode in files)
    return made


def _refuse_overlaps(paths: set[str], where: str) -> None:
    """Refuse files that would have to be directories; the two may come from different sources of the volume."""
    for path in sorted(paths):
        parts = path.split("/")
        above = next((above for at in range(1, len(parts)) if (above := "/".join(parts[:at])) in paths), None)
        if path == "." or above is not None:
            raise ScriptError(
                f"{where}: the file {path!r} is not allowed{'' if above is None else f' beside the file {above!r}'}; "
                f"allowed: files none of which is a directory, too"
            )


def content(
    pod: Mapping[str, Any],
    volume: Mapping[str, Any],
    where: str,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
) -> Iterator[tuple[str, bytes, int]]:
    """Yield the path in the volume, the bytes and the mode of each file of a volume with files.

    ``machine``: limits for a container without limits of its own.
    """
    if (source := volume.get("configMap")) is not None:
        data = references.configmap_data(
            objects, str(source.get("name")), f"{where}.configMap", optional=bool(source.get("optional"))
        )
        yield from _keys(data, source, f"{where}.configMap", _mode(source.get("defaultMode"), 0o644))
    elif (source := volume.get("secret")) is not None:
        data = references.secret_data(
            objects, str(source.get("secretName")), f"{where}.secret", optional=bool(source.get("optional"))
        )
        yield from _keys(data, source, f"{where}.secret", _mode(source.get("defaultMode"), 0o644))
    elif (source := volume.get("downwardAPI")) is not None:
        yield from _downward(
            pod, source, f"{where}.downwardAPI", _mode(source.get("defaultMode"), 0o644), node, machine
        )
    elif (source := volume.get("projected")) is not None:
        default = _mode(source.get("defaultMode"), 0o644)
        for index, part in enumerate(source.get("sources") or ()):
            place = f"{where}.projected.sources[{index}]"
            yield from _projected(pod, str(volume["name"]), part, place, default, objects, node, machine)


def _projected(
    pod: Mapping[str, Any],
    volume: str,
    part: Mapping[str, Any],
    place: str,
    default: int,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
) -> Iterator[tuple[str, bytes, int]]:
    if (inner := part.get("configMap")) is not None:
        data = references.configmap_data(objects, str(inner.get("name")), place, optional=bool(inner.get("optional")))
        yield from _keys(data, inner, f"{place}.configMap", default)
    elif (inner := part.get("secret")) is not None:
        data = references.secret_data(objects, str(inner.get("name")), place, optional=bool(inner.get("optional")))
        yield from _keys(data, inner, f"{place}.secret", default)
    elif (inner := part.get("downwardAPI")) is not None:
        yield from _downward(pod, inner, f"{place}.downwardAPI", default, node, machine)
    elif (inner := part.get("serviceAccountToken")) is not None:
        path = inside(str(inner.get("path") or ""), f"{place}.serviceAccountToken.path")
        token = objects.tokens.get((volume, path))
        if token is None:
            raise MissingReferenceError(f"{place}.serviceAccountToken: there is no token for {path!r} yet")
        yield path, token.encode(), default
    else:
        raise ScriptError(
            f"{place}: {', '.join(sorted(part)) or 'nothing'} is not allowed; "
            f"allowed: configMap, secret, downwardAPI, serviceAccountToken"
        )


def _keys(
    data: dict[str, bytes] | None, source: Mapping[str, Any], where: str, default: int
) -> Iterator[tuple[str, bytes, int]]:
    if data is None:
        return
    items = source.get("items")
    if not items:
        for key, value in data.items():
            yield inside(key, where), value, default
        return
    for index, item in enumerate(items):
        key = str(item.get("key"))
        if key not in data:
            if source.get("optional"):
                continue
            raise MissingReferenceError(f"{where}.items[{index}]: there is no key {key!r}")
        yield (
            inside(str(item.get("path") or ""), f"{where}.items[{index}].path"),
            data[key],
            _mode(item.get("mode"), default),
        )


def _downward(
    pod: Mapping[str, Any],
    source: Mapping[str, Any],
    where: str,
    default: int,
    node: str,
    machine: Mapping[str, Decimal],
) -> Iterator[tuple[str, bytes, int]]:
    for index, item in enumerate(source.get("items") or ()):
        place = f"{where}.items[{index}]"
        path = inside(str(item.get("path") or ""), f"{place}.path")
        if inner := item.get("fieldRef"):
            field = str(inner.get("fieldPath") or "")
            if field in ("metadata.labels", "metadata.annotations"):
                text = _pairs(pod["metadata"].get(field[9:]) or {})
            else:
                text = environment.field(pod, field, node, f"{place}.fieldRef.fieldPath")
            if ADDRESS in text:
                raise ScriptError(
                    f"{place}.fieldRef.fieldPath: {field!r} is not allowed in a volume; allowed there: metadata.*, "
                    f"spec.nodeName, spec.serviceAccountName"
                )
        elif inner := item.get("resourceFieldRef"):
            wanted = inner.get("containerName")
            container = next((c for _, c in references.containers(pod["spec"]) if c.get("name") == wanted), None)
            if container is None:
                raise ScriptError(f"{place}.resourceFieldRef.containerName: {wanted!r} is no container of the pod")
            text = environment.resource(container, inner, machine, f"{place}.resourceFieldRef")
        else:
            raise ScriptError(f"{place}: no source is set; allowed: fieldRef, resourceFieldRef")
        yield path, text.encode(), _mode(item.get("mode"), default)


def _pairs(values: Mapping[str, Any]) -> str:
    """Return labels or annotations as the downward API writes them: lines ``key="value"``, sorted."""
    return "\n".join(f"{key}={_go_quoted(str(value))}" for key, value in sorted(values.items()))


_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}
_ESCAPES.update({"\\": r"\\", '"': r"\""})


def _go_quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for letter in text:
        if letter in _ESCAPES:
            out.append(_ESCAPES[letter])
        elif letter.isprintable():
            out.append(letter)
        else:
            number = ord(letter)
            out.append(
                f"\\x{number:02x}" if number < 128 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
            )
    return '"' + "".join(out) + '"'


def inside(path: str, where: str) -> str:
    """Return a path inside a volume; raises ``ScriptError`` if it is absolute or has ``..``."""
    clean(path, where)
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or any(ord(letter) < 32 for letter in path):
        raise ScriptError(f"{where}: {path!r} is not allowed; allowed: a relative path without '..'")
    return posixpath.normpath(path)


def _mode(value: Any, default: int) -> int:
    return default if value is None else int(value) & 0o777


def _kibibytes(limit: Any, where: str) -> int | None:
    if limit is None:
        return None
    try:
        size = quantity.parse(limit)
    except ValueError as error:
        raise ScriptError(f"{where}.emptyDir.sizeLimit: {error}") from error
    return max(1, quantity.whole(size / 1024)) if size > 0 else None


def _host(source: Mapping[str, Any], where: str, config: BuildSettings) -> HostPath:
    path = clean(str(source.get("path") or ""), f"{where}.path")
    kind = str(source.get("type") or "")
    if kind not in _HOST_TYPES:
        raise ScriptError(f"{where}.type: {kind!r} is not allowed; allowed: {', '.join(_HOST_TYPES[1:])}")
    if not may_use(path, config):
        raise ScriptError(
            f"{where}.path: {path!r} is not allowed; allowed at this site: below "
            f"{', '.join(config.volumes.host_paths) or 'no path'}"
        )
    return HostPath(posixpath.normpath(path), kind, free=everything(config))


def may_use(path: str, config: BuildSettings) -> bool:
    """Return whether the site allows pods to use a path of its machines."""
    if not path.startswith("/") or ".." in path.split("/"):
        return False
    return any(_is_in(posixpath.normpath(path), root) for root in areas(config))


def areas(config: BuildSettings) -> list[str]:
    """Return the directories that pods may use, without those inside of others.

    Pods may write to a directory that they use, so they may replace one inside of it by a link to anywhere.
    """
    roots = {"/" + posixpath.normpath(path).lstrip("/") for path in config.volumes.host_paths}
    return sorted(root for root in roots if not any(root != other and _is_in(root, other) for other in roots))


def everything(config: BuildSettings) -> bool:
    """Return whether pods may use every path of the machine."""
    return areas(config) == ["/"]


def _is_in(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
