"""Paths below a directory in which others may link and rename.

The code of a job, and with ``sbatch --uid`` another user, can replace each name in the directory of a job at any time:
a path that was checked may lead elsewhere a moment later. So each directory on the way is opened relative to the one
before it, and no link is followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
D = TypeVar("D")
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Below(NamedTuple):
    """``name``, with ``/`` between directories and without ``..``, below ``root``: a path, or an open directory."""

    root: str | int
    name: str

    def __truediv__(self, name: str) -> Below:
        """Return a path in this directory."""
        return Below(self.root, f"{self.name}/{name}")


Where = str | Path | Below
"""A path. A link on the way to a plain one is followed: only the user of this process can change its directories."""


@contextlib.contextmanager
def parent(path: Where) -> Iterator[tuple[int | None, str]]:
    """Return the open directory of a path, and the name in it; for a plain path ``None`` and the path itself."""
    if not isinstance(path, Below):
        yield None, os.fspath(path)
        return
    *folders, name = path.name.split("/")
    own = not isinstance(path.root, int)
    at = path.root if isinstance(path.root, int) else os.open(path.root, _PASS)
    try:
        for folder in folders:
            inner = os.open(folder, _PASS, dir_fd=at)
            if own:
                os.close(at)
            at, own = inner, True
        yield at, name
    finally:
        if own:
            os.close(at)


def open_file(path: Where, flags: int) -> int:
    """Open a file and return its descriptor; it must exist."""
    if isinstance(path, Below) and isinstance(path.root, int) and "/" not in path.name:
        return os.open(path.name, flags, dir_fd=path.root)  # most files of a job: two microseconds less
    with parent(path) as (folder, name):
        return os.open(name, flags, dir_fd=folder)


def exists(path: Where) -> bool:
    """Return whether a path leads to anything; a link counts as such."""
    try:
        with parent(path) as (folder, name):
            os.lstat(name, dir_fd=folder)
    except OSError:
        return False
    return True


def names(path: Where) -> list[str]:
    """List a directory; empty: it is not there, or is something else."""
    try:
        folder = open_folder(path)
    except OSError:
        return []
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
    finally:
        os.close(folder)


def open_folder(path: Where) -> int:
    """Open a directory for reading its names, and return its descriptor."""
    return open_file(path, _LIST)


def open_root(path: Where) -> int:
    """Open a directory as the root of several paths, and return its descriptor."""
    return open_file(path, _PASS)


def read_within(
    path: Where, read: Callable[[int], T], otherwise: D, opener: Callable[[Where], int] = open_root
) -> T | D:
    """Return what ``read`` returns for an open directory, or ``otherwise`` if it is not there, or is something else."""
    try:
        folder = opener(path)
    except OSError:
        return otherwise
    try:
        return read(folder)
    finally:
        os.close(folder)


def read_present(path: str, read: Callable[[int], T], otherwise: D) -> T | D:
    """Do the same, and again if the directory was replaced meanwhile: its files may be gone before they were read."""
    while True:
        found, is_present = read_within(path, lambda folder: (read(folder), _is_at(path, folder)), (otherwise, True))
        if is_present:
            return found


def _is_at(path: str, folder: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(folder))
    except FileNotFoundError:
        return False


def unlink(path: Where) -> None:
    """Remove a name that is no directory."""
    with parent(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def make_folder(path: Where, owner: int | None, mode: int = 0o700) -> None:
    """Create a directory that belongs to a numeric user, if there is none; ``None``: that of this process."""
    with parent(path) as (folder, name):
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            return
        if owner is not None or mode != 0o700:
            made = os.open(name, _LIST, dir_fd=folder)
            try:  # not by its name, which may be a file of somebody else by now
                if mode != 0o700:  # os.mkdir applies the umask
                    os.fchmod(made, mode)
                if owner is not None:
                    os.fchown(made, owner, -1)
            finally:
                os.close(made)
