"""The files of volumes that a hub sends while a job runs: their paths and contents are checked."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from bridge.errors import SiteRefusedError
from bridge.site.beneath import Below, make_folder, open_root
from bridge.site.files import other_owner, write
from bridge.wire import messages


def parts_of(job: Path, name: str) -> tuple[str, ...]:
    """Return the parts of the path of a file, of which the first is a volume; raises :class:`SiteRefusedError`.

    A link of the job's own code on the way is refused.
    """
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name or len(parts) < 2:
        raise SiteRefusedError(f"files: {name!r} is no path of a file below a volume", reason="BadPath")
    try:
        os.close(open_root(Below(str(job), "/".join(("volumes", *parts[:-1])))))
    except FileNotFoundError:
        pass  # it is created
    except OSError as error:
        raise SiteRefusedError(f"files: a part of {name!r} is no directory", reason="BadPath") from error
    return parts


def put(job: Path, parts: Sequence[str], content: bytes, mode: int) -> None:
    """Write a file of a volume, as the owner of the job's directory; refuses links of the job's own code on the way."""
    owner = other_owner(job)
    folder = Below(str(job), "volumes")
    try:
        for part in parts:
            make_folder(folder, owner)
            folder = folder / part
        write(folder, content, mode=mode, owner=owner)
    except NotADirectoryError as error:
        raise SiteRefusedError(f"files: a part of {'/'.join(parts)!r} is no directory", reason="BadPath") from error


def decoded(file: messages.File) -> bytes:
    """Return the content of a file; refuses what is not base64."""
    try:
        return base64.b64decode(file.data, validate=True)
    except binascii.Error as error:
        raise SiteRefusedError(f"files: {file.path!r} is not base64", reason="BadData") from error
