"""Files that are complete at any moment at which the machine may stop, written with few system calls."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from bridge.site.files.beneath import Where, open_file, parent
from bridge.site.files.removal import remove_tree

T = TypeVar("T")
_LONGEST_WORD = 256
# O_NONBLOCK: a job can put a FIFO in the place of a file, and open(2) would wait for its writer
_FOR_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: Where) -> int | None:
    """Open a plain file for reading and return its descriptor; ``None``: it is not there, or is something else."""
    opened = _plain(path)
    return None if opened is None else opened[0]


def _plain(path: Where) -> tuple[int, int] | None:
    """Open a plain file and return its descriptor and its size."""
    try:
        descriptor = open_file(path, _FOR_READING)
    except OSError:
        return None
    try:
        file_stat = os.fstat(descriptor)
        if stat.S_ISREG(file_stat.st_mode):
            return descriptor, file_stat.st_size
    except OSError:  # a stale handle of a shared file system
        pass
    os.close(descriptor)
    return None


def read_some(path: Where, most: int) -> bytes | None:
    """Read the first bytes of a plain file; ``None``: it is not there, or is something else."""
    opened = _plain(path)
    if opened is None:
        return None
    descriptor, size = opened
    try:
        content = os.read(descriptor, min(most, size + 1))
        while 0 < len(content) < min(most, size) and (more := os.read(descriptor, most - len(content))):
            content += more
        return content
    except OSError:  # a stale handle of a shared file system
        return None
    finally:
        os.close(descriptor)


def read_all(path: Where, most: int) -> bytes:
    """Read a plain file of at most ``most`` bytes; raises OSError."""
    descriptor = open_file(path, _FOR_READING)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content


def read_json(path: Where, most: int) -> dict[str, Any] | None:
    """Read a JSON object of at most ``most`` bytes; ``None``: there is none."""
    content = read_some(path, most)
    if not content:
        return None
    try:
        value = json.loads(content)
        if b"\\u" in content:  # JSON may name half of a character, which no message can carry
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_valid(kind: TypeAdapter[T], path: Where, most: int) -> T | None:
    """Read a file of the submitter; ``None``: it is missing, longer than ``most`` bytes, or a job has changed it."""
    content = read_some(path, most)
    return validated(kind, content) if content else None


def validated(kind: TypeAdapter[T], content: bytes) -> T | None:
    """Return the value of a JSON text; ``None``: it is not of this kind."""
    try:
        return kind.validate_json(content)
    except ValidationError:
        return None


def read_word(path: Where) -> str:
    """Read a short file; empty: it is not there."""
    content = read_some(path, _LONGEST_WORD)
    return content.decode(errors="replace").strip() if content else ""


def read_line(path: Where) -> str:
    """Read a short file; empty: it is not there, or its line has no end yet."""
    content = read_some(path, _LONGEST_WORD)
    return content.decode(errors="replace").strip() if content and content.endswith(b"\n") else ""


def put(path: Where, content: bytes) -> None:
    """Write or replace a file whose readers ignore it while it is incomplete."""
    try:
        write_new(path, content)
    except FileExistsError:
        write(path, content)


def write(path: Where, content: bytes, *, mode: int = 0o600, sync: bool = False, owner: int | None = None) -> None:
    """Replace a file in one step: readers see the old content or the new one. A directory in its place is removed.

    ``sync``: write it to disk now. ``owner``: numeric user of the file, if not the user of this process.
    """
    with parent(path) as (folder, name):
        above, base = os.path.split(name)
        aside = os.path.join(above, f".{base[:48]}.{secrets.token_hex(4)}")  # a name has 255 bytes at most
        try:
            _create(folder, aside, content, mode=mode, sync=sync, owner=owner)
            try:
                os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                remove_tree(path)
                os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder)
            raise
        if sync:
            _force(folder, above or ".")


def write_new(path: Where, content: bytes, *, sync: bool = False) -> None:
    """Create a private file; raises FileExistsError if it exists."""
    with parent(path) as (folder, name):
        _create(folder, name, content, mode=0o600, sync=sync, owner=None)


def _create(folder: int | None, name: str, content: bytes, *, mode: int, sync: bool, owner: int | None) -> None:
    # O_EXCL: a link with this name is not followed
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        if mode & 0o077:  # os.open has applied the umask
            os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, owner, -1)
        unwritten = memoryview(content)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def other_owner(path: str | Path) -> int | None:
    """Return the numeric owner of a path; ``None``: the user of this process."""
    owner = os.stat(path).st_uid
    return None if owner == os.geteuid() else owner


def force(path: Where) -> None:
    """Write a file to disk now, or the names in a directory."""
    with parent(path) as (folder, name):
        _force(folder, name)


def _force(folder: int | None, name: str) -> None:
    descriptor = os.open(name, _FOR_READING, dir_fd=folder)
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
