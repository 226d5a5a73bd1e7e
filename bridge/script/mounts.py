"""The mounts of a container: volumes, or parts of them, and their paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import ScriptError
from bridge.script import environment, probes
from bridge.script.quoting import ADDRESS, clean
from bridge.script.volume_files import inside
from bridge.script.volumes import Volumes
from bridge.workload import resources


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount. ``kind`` is that of the volume, or ``own`` for a file in the job's directory, whose path is ``volume``.

    ``shared``: another process may write to the volume, or to the directory that it is in, so what is at the path may
    change between a check and the mount.
    """

    kind: str
    volume: str
    sub_path: str
    read_only: bool
    path: str
    shared: bool = False


def written_beside(spec: Mapping[str, Any], container: Mapping[str, Any], *, exec_mounts: bool) -> set[str]:
    """Return the volumes that containers other than plain init containers may write to while this one is mounted.

    These are the others and, with ``exec_mounts``, the container itself if it has commands of probes or hooks: see
    :attr:`bridge.script.runtimes.runtime_interface.Runtime.exec_mounts`.
    """
    with_itself = exec_mounts and probes.has_commands(container)
    return {
        str(entry.get("name"))
        for other in resources.lasting_containers(spec)
        if with_itself or other["name"] != container["name"]
        for entry in other.get("volumeMounts") or ()
        if not entry.get("readOnly")
    }


def make(
    container: Mapping[str, Any],
    field_path: str,
    volumes: Volumes,
    variables: Mapping[str, str],
    message_path: str,
    written: set[str],
) -> list[Mount]:
    """Return the mounts, outer paths before inner ones; ``written``: see :func:`written_beside`."""
    mounts = [
        _mount(entry, f"{field_path}.volumeMounts[{index}]", volumes, variables, written)
        for index, entry in enumerate(container.get("volumeMounts") or ())
    ]
    place = place_of(message_path, f"{field_path}.terminationMessagePath")
    if all(mount.path != place for mount in mounts):
        mounts.append(Mount("own", f"run/{container['name']}.message", "", False, place))
    mounts.sort(key=lambda mount: mount.path.count("/"))
    return mounts


_SEPARATORS = ':,^\\"'
"""Characters that end a path, or escape one, in the options of some runtime.

apptainer splits at ``^`` too: ``[^,^:]+`` in its ``ParseBindPath``, which also drops blanks at the ends of a path.
"""


def place_of(path: str, field_path: str) -> str:
    """Return a path in a container; raises ``ScriptError`` unless it is absolute, not /, and safe for all runtimes."""
    clean(path, field_path)
    place = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    bad = place == "/" or ".." in place.split("/") or place != place.rstrip()
    if bad or not path.startswith("/") or any(letter in _SEPARATORS or ord(letter) < 32 for letter in place):
        raise ScriptError(
            f"{field_path}: {path!r} is not allowed; allowed: an absolute path, not / itself, without '..', ':', ',', "
            f"'^', backslash, quotation marks, control characters, and blanks at its end"
        )
    return place


def _mount(
    entry: Mapping[str, Any], field_path: str, volumes: Volumes, variables: Mapping[str, str], written: set[str]
) -> Mount:
    name = str(entry.get("name"))
    kind = volumes.kinds.get(name)
    if kind is None:
        raise ScriptError(f"{field_path}.name: {name!r} is no volume of the pod")
    sub_path = str(entry.get("subPath") or "")
    if expression := str(entry.get("subPathExpr") or ""):
        sub_path = environment.expand(clean(expression, f"{field_path}.subPathExpr"), variables)
        if ADDRESS in sub_path:
            raise ScriptError(
                f"{field_path}.subPathExpr: {expression!r}: the address of the machine is not allowed in it"
            )
        if environment.not_set(expression, variables):
            raise ScriptError(f"{field_path}.subPathExpr: {expression!r} names a variable that is not set")
    if sub_path:
        sub_path = inside(sub_path, f"{field_path}.subPath")
        sub_path = "" if sub_path == "." else sub_path
    return Mount(
        kind=kind,
        volume=name,
        sub_path=sub_path,
        read_only=kind == "files" or name in volumes.shared or bool(entry.get("readOnly")),
        path=place_of(str(entry.get("mountPath") or ""), f"{field_path}.mountPath"),
        shared=(kind == "host" and not volumes.host[name].free)
        or (bool(sub_path) and (kind == "fuse" or (kind == "scratch" and name in written))),
    )
