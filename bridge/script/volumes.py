"""Volumes: files that the script writes, directories that it creates, and paths of the host that it uses.

A volume that an annotation names is a FUSE file system that a script of the user mounts, or CernVM-FS. It is a claim
that nobody binds, as users of the interLink NATS plugin write it, or an emptyDir.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge.errors import ScriptError
from bridge.names import CVMFS_PREFIX, FUSE_PREFIX
from bridge.protocol.model.requests import VolumeFile
from bridge.script import volume_files
from bridge.script.quoting import Allowance, clean
from bridge.script.references import Objects
from bridge.script.settings import BuildSettings
from bridge.workload import quantity

ALLOWED = ("configMap", "secret", "projected", "downwardAPI", "emptyDir", "hostPath")
STAND_INS = ("persistentVolumeClaim", "emptyDir")
"""Kinds of volumes that an annotation may replace."""
_HOST_TYPES = ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")


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
    pod: Mapping[str, Any],
    config: BuildSettings,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
    allowance: Allowance,
) -> Volumes:
    """Return every volume of the pod, with its content; ``allowance``: what is left for the pod."""
    pod_volumes = Volumes({}, [], {}, {}, {}, set())
    scripts, shared = annotated(pod, FUSE_PREFIX), annotated(pod, CVMFS_PREFIX)
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        field_path, name = f"spec.volumes[{index}]", str(volume["name"])
        if name in scripts:
            pod_volumes.kinds[name] = "fuse"
            pod_volumes.fuse[name] = _fuse_script(name, scripts[name], config)
        elif name in shared:
            pod_volumes.kinds[name] = "host"
            pod_volumes.host[name] = HostPath(_cvmfs(name, config), "Directory", free=True)
            pod_volumes.shared.add(name)
        elif (source := volume.get("emptyDir")) is not None:
            pod_volumes.kinds[name] = "scratch"
            pod_volumes.scratch[name] = Scratch(
                source.get("medium") == "Memory", _kibibytes(source.get("sizeLimit"), field_path)
            )
        elif (source := volume.get("hostPath")) is not None:
            pod_volumes.kinds[name] = "host"
            pod_volumes.host[name] = _host(source, f"{field_path}.hostPath", config)
        else:
            pod_volumes.kinds[name] = "files"
            pod_volumes.files.extend(
                file.model_copy(update={"path": f"{name}/{file.path}"})
                for file in volume_files.content(pod, volume, field_path, objects, node, machine, allowance)
            )
    return pod_volumes


def annotated(pod: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return the value of each annotation with a prefix, by volume."""
    annotations = pod["metadata"].get("annotations") or {}
    return {key.removeprefix(prefix): str(value) for key, value in annotations.items() if key.startswith(prefix)}


def _fuse_script(volume: str, text: str, config: BuildSettings) -> str:
    if not config.limits.allow_fuse:
        raise ScriptError(f"annotation {FUSE_PREFIX}{volume} is not allowed at this site (limits.allow_fuse is false)")
    return clean(text, f"annotation {FUSE_PREFIX}{volume}")


def _cvmfs(volume: str, config: BuildSettings) -> str:
    if not config.volumes.cvmfs_path:
        raise ScriptError(
            f"annotation {CVMFS_PREFIX}{volume} is not allowed at this site (volumes.cvmfs_path is empty)"
        )
    return config.volumes.cvmfs_path


def _kibibytes(limit: Any, field_path: str) -> int | None:
    if limit is None:
        return None
    try:
        size = quantity.parse(limit)
    except ValueError as error:
        raise ScriptError(f"{field_path}.emptyDir.sizeLimit: {error}") from error
    return max(1, quantity.whole(size / 1024)) if size > 0 else None


def _host(source: Mapping[str, Any], field_path: str, config: BuildSettings) -> HostPath:
    path = clean(str(source.get("path") or ""), f"{field_path}.path")
    kind = str(source.get("type") or "")
    if kind not in _HOST_TYPES:
        raise ScriptError(f"{field_path}.type: {kind!r} is not allowed; allowed: {', '.join(_HOST_TYPES[1:])}")
    if not may_use(path, config):
        raise ScriptError(
            f"{field_path}.path: {path!r} is not allowed; allowed at this site: below "
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
