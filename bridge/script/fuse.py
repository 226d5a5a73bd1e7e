"""Volumes by annotation: FUSE file systems that a script of the user mounts, and CernVM-FS.

A volume of that name says where containers see it. It is a claim that nobody binds, as users of the interLink NATS
plugin write it, or an emptyDir.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.errors import ScriptError
from bridge.names import CVMFS_PREFIX, FUSE_PREFIX
from bridge.script.quoting import clean
from bridge.script.settings import BuildSettings

STAND_INS = ("persistentVolumeClaim", "emptyDir")
"""Kinds of volumes that an annotation may replace."""


def annotated(pod: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Return the value of each annotation with a prefix, by volume."""
    annotations = pod["metadata"].get("annotations") or {}
    return {key.removeprefix(prefix): str(value) for key, value in annotations.items() if key.startswith(prefix)}


def script(volume: str, text: str, config: BuildSettings) -> str:
    """Return the script of a volume; raises ``ScriptError`` if the site allows none."""
    if not config.limits.allow_fuse:
        raise ScriptError(f"annotation {FUSE_PREFIX}{volume} is not allowed at this site (limits.allow_fuse is false)")
    return clean(text, f"annotation {FUSE_PREFIX}{volume}")


def cvmfs(volume: str, config: BuildSettings) -> str:
    """Return the directory of CernVM-FS; raises ``ScriptError`` if the site has none."""
    if not config.volumes.cvmfs_path:
        raise ScriptError(
            f"annotation {CVMFS_PREFIX}{volume} is not allowed at this site (volumes.cvmfs_path is empty)"
        )
    return config.volumes.cvmfs_path
