"""Specs of pods, their volumes, and the mounts of containers."""

from collections.abc import Sequence
from typing import Any

EMPTY: dict[str, Any] = {"emptyDir": {}}


def spec_of(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    return {"containers": list(containers), **({"initContainers": list(init)} if init else {}), **fields}


def volumes(**sources: dict[str, Any]) -> dict[str, Any]:
    """Return the field ``volumes`` of a spec: the source of each volume by its name."""
    return {"volumes": [{"name": name, **source} for name, source in sources.items()]}


def mount(volume: str, path: str, sub_path: str = "", **more: Any) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, **({"subPath": sub_path} if sub_path else {}), **more}


def mounts(*places: tuple[str, ...] | dict[str, Any]) -> dict[str, Any]:
    """Return the field ``volumeMounts`` of a container: volume, path and perhaps subPath, or a :func:`mount`."""
    return {"volumeMounts": [mount(*place) if isinstance(place, tuple) else place for place in places]}


DISK = volumes(disk=EMPTY)
MOUNT = mounts(("disk", "/disk"))
