"""Files that are complete at any moment at which the machine may stop, written with few system calls."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from bridge.logs import kv

log = logging.getLogger(__name__)

T = TypeVar("T")
_LONGEST_WORD = 256
_FOR_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: str | Path) -> int | None:
    """Open a plain file for reading and return its descriptor; ``None``: it is not there, or is something else."""
    try:
        descriptor = os.open(path, _FOR_READING)
    except OSError:
        return None
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
    except OSError:  # a stale handle of a shared file system
        pass
    os.close(descriptor)
    return None


def read_some(path: str | Path, most: int) -> bytes | None:
    """Read the first bytes of a plain file; ``None``: it is not there, or is something else."""
    descriptor = open_plain(path)
    if descriptor is None:
        return None
    try:
        found = os.fstat(descriptor)
        content = os.read(descriptor, min(most, found.st_size + 1))
        while 0 < len(content) < min(most, found.st_size) and (more := os.read(descriptor, most - len(content))):
            content += more
        return content
    except OSError:  # a stale handle of a shared file system
        return None
    finally:
        os.close(descriptor)


def read_json(path: str | Path, most: int) -> dict[str, Any] | None:
    """Read a JSON object of at most ``most`` bytes; ``None``: there is none."""
    content = read_some(path, most)
    if not content:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_valid(kind: TypeAdapter[T], path: str | Path, most: int) -> T | None:
    """Read a file of the submitter; ``None``: it is missing, longer than ``most`` bytes, or a job has changed it."""
    content = read_some(path, most)
    return validated(kind, content) if content else None


def validated(kind: TypeAdapter[T], content: bytes) -> T | None:
    """Return the value of a JSON text; ``None``: it is not of this kind."""
    try:
        return kind.validate_json(content)
    except ValidationError:
        return None


def read_word(path: str | Path) -> str:
    """Read a short file; empty: it is not there."""
    content = read_some(path, _LONGEST_WORD)
    return content.decode(errors="replace").strip() if content else ""


def read_line(path: str | Path) -> str:
    """Read a short file; empty: it is not there, or its line has no end yet."""
    content = read_some(path, _LONGEST_WORD)
    return content.decode(errors="replace").strip() if content and content.endswith(b"\n") else ""


def put(path: str | Path, content: bytes) -> None:
    """Write or replace a file whose readers ignore it while it is incomplete."""
    try:
        write_new(path, content)
    except FileExistsError:
        write(path, content)


def write(path: str | Path, content: bytes, *, mode: int = 0o600, sync: bool = False, owner: int | None = None) -> None:
    """Replace a file in one step: readers see the old content or the new one.

    ``sync``: write it to disk now. ``owner``: numeric user of the file, if not the user of this process.
    """
    folder, name = os.path.split(path)
    aside = f"{folder}/.{name}.{secrets.token_hex(4)}"
    try:
        write_new(aside, content, mode=mode, sync=sync, owner=owner)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    if sync:
        force(folder)


def write_new(
    path: str | Path, content: bytes, *, mode: int = 0o600, sync: bool = False, owner: int | None = None
) -> None:
    """Create a file; raises FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if mode & 0o077:  # os.open has applied the umask
            os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, owner, -1)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def other_owner(path: str | Path) -> int | None:
    """Return the numeric owner of a path; ``None``: the user of this process."""
    owner = os.stat(path).st_uid
    return None if owner == os.geteuid() else owner


def make_folder(path: Path, owner: int | None) -> None:
    """Create a private directory that belongs to ``owner``, as for :func:`write`, if there is none."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if owner is not None:
            os.chown(path, owner, -1, follow_symlinks=False)


def force(path: str | Path) -> None:
    """Write a file to disk now, or the names in a directory."""
    descriptor = os.open(path, _FOR_READING)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: str | Path) -> None:
    """Remove a tree, with its read-only directories; what can't be removed remains for the next sweep.

    The directory of a job in which a volume is still mounted remains: the files of the volume are a user's data.
    """
    if os.path.exists(f"{path}/fuse") and _mounts_below(path):
        log.warning("a volume is still mounted: the directory is not removed", extra=kv(folder=path))
        return

    def open_up(function: Any, name: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            if os.path.isdir(name) and not os.path.islink(name):
                os.chmod(name, 0o700)
            function(name)

    shutil.rmtree(path, onerror=open_up)


def _mounts_below(path: str | Path) -> bool:
    """Return whether anything is mounted below a directory; see proc_pid_mountinfo(5)."""
    start = os.fsencode(os.path.realpath(path)) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split(b" ", 5)[4].startswith(start) for line in file)
