"""The files of volumes: of ConfigMaps, Secrets, the downward API and service account tokens."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from bridge.errors import MissingReferenceError, ScriptError
from bridge.protocol.model.requests import VolumeFile
from bridge.script import environment, references
from bridge.script.quoting import ADDRESS, Allowance, clean
from bridge.script.references import Objects

Pod = Mapping[str, Any]
LONGEST_PATH = 4096
"""Characters of a path, of Linux (``PATH_MAX``)."""
_SOURCES = ("configMap", "secret", "downwardAPI", "serviceAccountToken")
_SHOWN = re.compile(r"metadata\.(labels|annotations)(?:\['([^']*)'\])?")


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """A source of files of a volume. ``mode`` is that of files without one of their own."""

    volume: str
    kind: str
    spec: Mapping[str, Any]
    field_path: str
    mode: int

    @property
    def name(self) -> str:
        """Name of the ConfigMap or Secret."""
        return str(self.spec.get("secretName" if "secretName" in self.spec else "name"))


def sources(volume: Mapping[str, Any], field_path: str) -> Iterator[VolumeSource]:
    """Yield the sources of a volume with files, in their order; nothing for another volume.

    A source that podbridge does not support has the kind ``""``.
    """
    name = str(volume["name"])
    for kind in _SOURCES[:3]:
        if (spec := volume.get(kind)) is not None:
            yield VolumeSource(name, kind, spec, f"{field_path}.{kind}", _mode(spec.get("defaultMode"), 0o644))
            return
    projected = volume.get("projected") or {}
    default = _mode(projected.get("defaultMode"), 0o644)
    for index, part in enumerate(projected.get("sources") or ()):
        place = f"{field_path}.projected.sources[{index}]"
        kind = next((each for each in _SOURCES if part.get(each) is not None), "")
        yield VolumeSource(name, kind, part[kind] if kind else part, f"{place}.{kind}".rstrip("."), default)


def content(
    pod: Pod,
    volume: Mapping[str, Any],
    field_path: str,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
    allowance: Allowance,
) -> list[VolumeFile]:
    """Return the files of a volume with files; of two sources with the same path, the last one counts.

    ``machine``: limits for a container without limits of its own. ``allowance``: what is left for the pod.
    """
    files: dict[str, VolumeFile] = {}
    for source in sources(volume, field_path):
        for path, data, mode in _files(pod, source, objects, node, machine):
            allowance.take(len(data), source.field_path)
            files[path] = VolumeFile(path=path, data=data, mode=mode)
    _refuse_overlaps(set(files), field_path)
    return list(files.values())


def _refuse_overlaps(paths: set[str], field_path: str) -> None:
    """Refuse files that would have to be directories; the two may come from different sources of the volume."""
    # a file that another one has as a directory is right before such a file in this order
    ordered = sorted(path.split("/") for path in paths)
    for above, parts in itertools.pairwise([[], *ordered]):
        is_above = bool(above) and parts[: len(above)] == above
        if parts == ["."] or is_above:
            beside = f" beside the file {'/'.join(above)!r}" if is_above else ""
            raise ScriptError(
                f"{field_path}: the file {'/'.join(parts)!r} is not allowed{beside}; allowed: files none of which is a "
                f"directory, too"
            )


def _files(
    pod: Pod, source: VolumeSource, objects: Objects, node: str, machine: Mapping[str, Decimal]
) -> Iterator[tuple[str, bytes, int]]:
    spec, field_path = source.spec, source.field_path
    if source.kind in ("configMap", "secret"):
        optional = bool(spec.get("optional"))
        data = references.data_of(objects, source.kind, source.name, field_path, optional=optional)
        yield from _keys(data, spec, field_path, source.mode)
    elif source.kind == "downwardAPI":
        yield from _downward(pod, spec, field_path, source.mode, node, machine)
    elif source.kind == "serviceAccountToken":
        path = inside(str(spec.get("path") or ""), f"{field_path}.path")
        token = objects.tokens.get((source.volume, path))
        if token is None:
            raise MissingReferenceError(f"{field_path}: there is no token for {path!r} yet")
        yield path, token.encode(), source.mode
    else:
        raise ScriptError(
            f"{field_path}: {', '.join(sorted(spec)) or 'nothing'} is not allowed; allowed: {', '.join(_SOURCES)}"
        )


@dataclass(slots=True)
class CurrentFiles:
    """The files of a pod's volumes as far as they are known, by paths ``<volume>/<path in it>``.

    ``files``: those whose content is known. ``kept``: paths of files that remain as they are (tokens that are not due,
    resources of containers). ``volumes``: names of all volumes with files. ``incomplete``: volumes with a source that
    is not known, which may have further files. ``problems``: why a source is not known although its object is.
    """

    files: dict[str, VolumeFile] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def lists(self) -> dict[str, list[str]]:
        """Return the paths in each volume of which all files are known."""
        paths_by_volume: dict[str, list[str]] = {name: [] for name in sorted(self.volumes - self.incomplete)}
        for path in sorted({*self.files, *self.kept}):
            volume, _, rest = path.partition("/")
            if volume in paths_by_volume:
                paths_by_volume[volume].append(rest)
        return paths_by_volume


def current(pod: Pod, objects: Objects, node: str) -> CurrentFiles:
    """Return the present files of all volumes that have files, as :func:`content` does for the script.

    A source whose object or key is missing is not known, also if it is optional: its files stay as they are. So do
    those that are too large together.
    """
    files_now, allowance = CurrentFiles(), Allowance()
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        field_path, name = f"spec.volumes[{index}]", str(volume["name"])
        files: dict[str, VolumeFile] = {}
        kept: set[str] = set()
        for source in sources(volume, field_path):
            files_now.volumes.add(name)
            readable, fixed = _changing(source, objects)
            kept.update(fixed)
            if allowance.is_spent:
                files_now.incomplete.add(name)
                continue
            try:
                if readable is not None:
                    for path, data, mode in _files(pod, readable, objects, node, {}):
                        allowance.take(len(data), source.field_path)
                        files[path] = VolumeFile(path=f"{name}/{path}", data=data, mode=mode)
                elif source.kind in ("configMap", "secret"):
                    files_now.incomplete.add(name)
            except (MissingReferenceError, ScriptError) as error:
                files_now.incomplete.add(name)
                files_now.problems.append(str(error))
        try:
            _refuse_overlaps({*files, *kept}, field_path)
        except ScriptError as error:
            files_now.incomplete.add(name)
            files_now.problems.append(str(error))
            continue
        files_now.kept.update(f"{name}/{path}" for path in kept)
        files_now.files.update((file.path, file) for file in files.values())
    return files_now


def _changing(source: VolumeSource, objects: Objects) -> tuple[VolumeSource | None, list[str]]:
    """Return the part of a source that is known, and the paths of its files that do not change now."""
    spec = source.spec
    if source.kind == "serviceAccountToken":
        path = posixpath.normpath(str(spec.get("path") or ""))
        return (source if (source.volume, path) in objects.tokens else None), [path]
    if source.kind == "downwardAPI":
        # what a container requests is that of its start, and depends on annotations that only the script needs
        items = spec.get("items") or ()
        fixed = [posixpath.normpath(str(each.get("path") or "")) for each in items if "resourceFieldRef" in each]
        changing = [each for each in items if "resourceFieldRef" not in each]
        return replace(source, spec={**spec, "items": changing}), fixed
    if source.kind in ("configMap", "secret"):
        objects_of_kind = objects.configmaps if source.kind == "configMap" else objects.secrets
        return (source if source.name in objects_of_kind else None), []
    return source, []


def shown_fields(pod: Pod) -> list[tuple[str, str | None]]:
    """Return the labels and annotations that the pod's volumes show: ``labels`` or ``annotations``, and the key.

    Key ``None``: all of them.
    """
    paths = (
        str((item.get("fieldRef") or {}).get("fieldPath") or "")
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("downwardAPI") is not None or volume.get("projected") is not None
        for source in sources(volume, "")
        if source.kind == "downwardAPI"
        for item in source.spec.get("items") or ()
    )
    return [(match.group(1), match.group(2)) for path in paths if (match := _SHOWN.fullmatch(path))]


def shown(pod: Pod) -> tuple[Any, ...]:
    """Return the values of these fields; empty if there are none."""
    metadata = pod["metadata"]
    return tuple(
        dict(metadata.get(kind) or {}) if key is None else (metadata.get(kind) or {}).get(key)
        for kind, key in shown_fields(pod)
    )


def _keys(
    data: dict[str, bytes] | None, source: Mapping[str, Any], field_path: str, default: int
) -> Iterator[tuple[str, bytes, int]]:
    if data is None:
        return
    items = source.get("items")
    if not items:
        for key, value in data.items():
            yield inside(key, field_path), value, default
        return
    for index, item in enumerate(items):
        key = str(item.get("key"))
        if key not in data:
            if source.get("optional"):
                continue
            raise MissingReferenceError(f"{field_path}.items[{index}]: there is no key {key!r}")
        yield (
            inside(str(item.get("path") or ""), f"{field_path}.items[{index}].path"),
            data[key],
            _mode(item.get("mode"), default),
        )


def _downward(
    pod: Mapping[str, Any],
    source: Mapping[str, Any],
    field_path: str,
    default: int,
    node: str,
    machine: Mapping[str, Decimal],
) -> Iterator[tuple[str, bytes, int]]:
    for index, item in enumerate(source.get("items") or ()):
        place = f"{field_path}.items[{index}]"
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
            container_name = inner.get("containerName")
            container = next(
                (c for _, c in references.containers(pod["spec"]) if c.get("name") == container_name), None
            )
            if container is None:
                raise ScriptError(
                    f"{place}.resourceFieldRef.containerName: {container_name!r} is no container of the pod"
                )
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


def inside(path: str, field_path: str) -> str:
    """Return a path inside a volume; raises ``ScriptError`` if it is absolute or has ``..``."""
    clean(path, field_path)
    parts = path.split("/")
    if len(path) > LONGEST_PATH:
        raise ScriptError(f"{field_path}: a path of more than {LONGEST_PATH} characters is not allowed")
    if not path or path.startswith("/") or ".." in parts or any(ord(letter) < 32 for letter in path):
        raise ScriptError(f"{field_path}: {path!r} is not allowed; allowed: a relative path without '..'")
    return posixpath.normpath(path)


def _mode(value: Any, default: int) -> int:
    return default if value is None else int(value) & 0o777
