"""Removal of trees in which others may link and rename while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets

from bridge.logs import kv
from bridge.site.files.beneath import Below, Where, exists, open_folder, parent

log = logging.getLogger(__name__)

_PASSES = 4096
"""Levels of a tree that one call removes."""
_SELF = "/proc/self/fd/"
_INNER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Where) -> None:
    """Remove a tree, with its read-only directories; what can't be removed remains for the next sweep.

    The directory of a job in which a volume is still mounted remains: the files of the volume are a user's data.
    """
    whole = os.path.join(str(path.root), path.name) if isinstance(path, Below) else os.fspath(path)
    if exists(path / "fuse" if isinstance(path, Below) else f"{path}/fuse") and _mounts_below(whole):
        log.warning("a volume is still mounted: the directory is not removed", extra=kv(folder=whole))
        return
    with contextlib.suppress(OSError), parent(path) as (folder, name):
        _remove(folder, name)


def _remove(folder: int | None, name: str) -> None:
    """Remove a name in an open directory, whatever it is."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except (IsADirectoryError, PermissionError):
        pass
    inner = os.open(name, _INNER, dir_fd=folder)
    try:
        # by /proc: fchmod(2) refuses a descriptor of O_PATH, and the name may lead elsewhere by now
        os.chmod(f"{_SELF}{inner}", 0o700)
        _empty(inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _empty(top: int) -> None:
    """Remove all that is in an open directory, level by level.

    The directories of the next level are moved up into ``top`` first. So neither the depth of a tree nor the length of
    a path, both of which its maker chooses, has a limit.
    """
    for _ in range(_PASSES):
        left = _entries(top)
        if not left:
            return
        removed = [_remove_flat(top, name, is_folder=is_folder) for name, is_folder in left]
        if not any(removed):
            return


def _remove_flat(top: int, name: str, *, is_folder: bool) -> bool:
    """Remove a name in ``top``; of a directory, move its directories into ``top``. Return whether it is removed."""
    try:
        if not is_folder:
            os.unlink(name, dir_fd=top)
            return True
        inner = os.open(name, _INNER, dir_fd=top)
        try:
            os.chmod(f"{_SELF}{inner}", 0o700)
            for each, is_inner_folder in _entries(inner):
                with contextlib.suppress(OSError):
                    if is_inner_folder:
                        _move_up(inner, each, top)
                    else:
                        os.unlink(each, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _move_up(folder: int, name: str, top: int) -> None:
    """Move a directory; it must be writable for that, because its entry ``..`` changes."""
    inner = os.open(name, _INNER, dir_fd=folder)
    try:
        os.chmod(f"{_SELF}{inner}", 0o700)
    finally:
        os.close(inner)
    os.rename(name, f".{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=top)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Return the names in an open directory, and whether each is a directory."""
    listed = open_folder(Below(folder, "."))
    try:
        with os.scandir(listed) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    finally:
        os.close(listed)


def _mounts_below(path: str) -> bool:
    """Return whether anything is mounted below a directory; see proc_pid_mountinfo(5)."""
    start = os.fsencode(os.path.realpath(path)) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split(b" ", 5)[4].startswith(start) for line in file)
