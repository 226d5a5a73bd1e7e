"""The files of volumes that a hub sends while a job runs: their paths and contents are checked."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from bridge import names
from bridge.errors import SiteRefusedError
from bridge.protocol.nats import messages
from bridge.site.files.atomic_files import other_owner, write
from bridge.site.files.beneath import Below, make_folder, open_folder, open_root

LISTS = ".files"
"""Directory in ``volumes`` with the paths of the files that a volume still has, for a script that unpacks its own."""
_VOLUME = re.compile(names.DNS_LABEL)


def replace(job: Path, body: messages.Files) -> None:
    """Replace and remove files of a job's volumes; checks all of them before it writes the first."""
    contents = [(_parts_of(job, file.path), decoded(file), file.mode & 0o777) for file in body.files]
    for volume, paths in body.volumes.items():
        _check_list(volume, paths)
    for parts, content, mode in contents:
        _put(job, parts, content, mode)
    for volume, paths in body.volumes.items():
        _keep(job, volume, paths)


def _parts_of(job: Path, name: str) -> tuple[str, ...]:
    """Return the parts of the path of a file, of which the first is a volume; raises :class:`SiteRefusedError`.

    A link of the job's own code on the way is refused.
    """
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name or len(parts) < 2 or parts[0] == LISTS:
        raise SiteRefusedError(f"files: {name!r} is no path of a file below a volume", reason="BadPath")
    try:
        os.close(open_root(Below(str(job), "/".join(("volumes", *parts[:-1])))))
    except FileNotFoundError:
        pass  # it is created
    except OSError as error:
        raise SiteRefusedError(f"files: a part of {name!r} is no directory", reason="BadPath") from error
    return parts


def _put(job: Path, parts: Sequence[str], content: bytes, mode: int) -> None:
    """Write a file of a volume, as the owner of the job's directory; refuses links of the job's own code on the way."""
    owner = other_owner(job)
    folder = Below(str(job), "volumes")
    try:
        for part in parts:
            make_folder(folder, owner, 0o755)  # as those of the script; the job's directory is private
            folder = folder / part
        write(folder, content, mode=mode, owner=owner)
    except NotADirectoryError as error:
        raise SiteRefusedError(f"files: a part of {'/'.join(parts)!r} is no directory", reason="BadPath") from error


def _check_list(volume: str, paths: Sequence[str]) -> None:
    """Refuse what is no list of the files of a volume."""
    if not _VOLUME.fullmatch(volume):
        raise SiteRefusedError(f"files: {volume!r} is no name of a volume", reason="BadPath")
    for path in paths:
        if "\n" in path or "\0" in path:
            raise SiteRefusedError(f"files: {path!r} is no path of a file", reason="BadPath")


def _keep(job: Path, volume: str, paths: Sequence[str]) -> None:
    """Remove the files of a volume that are not in the list. Links of the job's own code are not followed."""
    owner, volumes = other_owner(job), Below(str(job), "volumes")
    text = "".join(f"{path}\n" for path in paths).encode()
    kept = {str(PurePosixPath(path)) for path in paths}
    try:
        for folder in (volumes, volumes / LISTS):
            make_folder(folder, owner, 0o755)
        write(volumes / LISTS / volume, text, owner=owner)  # first: see put() in lib/volumes.bash
        root = open_folder(volumes / volume)
    except FileNotFoundError:
        return  # its script has not begun
    except NotADirectoryError as error:
        raise SiteRefusedError(f"files: volume {volume!r} is no directory", reason="BadPath") from error
    try:
        # fwalk opens each directory relative to the one above, and follows no link
        for above, _, names, folder_fd in os.fwalk(".", dir_fd=root):
            for name in names:
                if str(PurePosixPath(above, name)) not in kept:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder_fd)
    finally:
        os.close(root)


def decoded(file: messages.File) -> bytes:
    """Return the content of a file; refuses what is not base64."""
    try:
        return base64.b64decode(file.data, validate=True)
    except binascii.Error as error:
        raise SiteRefusedError(f"files: {file.path!r} is not base64", reason="BadData") from error
