"""The files of volumes that a hub sends while a job runs: their paths and contents are checked."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path, PurePosixPath

from bridge.errors import SiteRefusedError
from bridge.wire import messages


def inside(volumes: Path, name: str) -> Path:
    """Return the path of a volume's file; refuses links of the job's own code that lead out of the volumes."""
    parts = PurePosixPath(name).parts
    bad = not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name or len(parts) < 2
    path = volumes.joinpath(*parts) if not bad else volumes
    if bad or not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(volumes)):
        raise SiteRefusedError(f"files: {name!r} is no path of a file below a volume", reason="BadPath")
    return path


def decoded(file: messages.File) -> bytes:
    """Return the content of a file; refuses what is not base64."""
    try:
        return base64.b64decode(file.data, validate=True)
    except binascii.Error as error:
        raise SiteRefusedError(f"files: {file.path!r} is not base64", reason="BadData") from error
