"""The pods of arrays: ``arrays/<array>`` in the site's directory has their UIDs, one a line, by index.

The file is on disk before the array is submitted and never changes, so each job of an array leads to its pod.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from bridge.protocol.model.identifiers import UID_PATTERN
from bridge.site.files import atomic_files

FOLDER = "arrays"
CACHED = 100
"""Arrays whose pods are kept in memory."""
LARGEST = 2**26
"""Bytes of a file that are read: a million UIDs."""
_UID = re.compile(UID_PATTERN)
Arrays = Callable[[str, int], str]
"""Array and index -> UID of the pod; empty: there is none here (:meth:`ArrayFiles.uid`)."""


def no_arrays(array: str, index: int) -> str:
    """Return the UID of a pod where there are no arrays."""
    return ""


class ArrayFiles:
    """The arrays of a site; ``folder``: the site's directory. Several threads may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._cache: dict[str, tuple[str, ...]] = {}

    def path(self, array: str) -> Path:
        """Return the path of the file of an array."""
        return self._folder / array

    def write(self, array: str, uids: tuple[str, ...], *, sync: bool) -> None:
        """Create the file of an array; raises OSError. If this process is killed meanwhile, it has the first pods."""
        atomic_files.write_new(self.path(array), "".join(f"{uid}\n" for uid in uids).encode(), sync=sync)
        self._remember(array, uids)

    def uids(self, array: str) -> tuple[str, ...]:
        """Return the pods of an array by index; empty: there is no such array here."""
        known_uids = self._cache.get(array)
        if known_uids is None and _UID.fullmatch(array):
            content = atomic_files.read_some(self.path(array), LARGEST) or b""
            known_uids = tuple(content.decode("ascii", "replace").split())
            if known_uids:
                self._remember(array, known_uids)
        return known_uids or ()

    def _remember(self, array: str, uids: tuple[str, ...]) -> None:
        if len(self._cache) >= CACHED:
            self._cache = {}  # a new one: another thread may read the old one
        self._cache[array] = uids

    def uid(self, array: str, index: int) -> str:
        """Return the pod of a job of an array; empty: there is none here."""
        uids = self.uids(array)
        return uids[index] if index < len(uids) else ""

    def enter(self, array: str, jobs: Path, index: str) -> str:
        """Return bash that goes to the directory below ``jobs`` of the pod whose index is in the variable ``index``."""
        return (
            # a file that was removed: the pods of the array are gone
            f'mapfile -t -s "${index}" -n 1 pod <{shlex.quote(str(self.path(array)))} || exit 0\n'
            f'cd {shlex.quote(str(jobs))}/"${{pod[0]:?no pod has this index}}" || exit 0\n'
        )

    def written(self) -> list[tuple[float, str]]:
        """Return when each array was written, in seconds since 1970, and its name; the oldest first."""
        times: list[tuple[float, str]] = []
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):
                    if _UID.fullmatch(entry.name):
                        times.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        return sorted(times)

    def remove(self, array: str) -> None:
        """Remove the file of an array of which no job can exist or appear any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(array))
        self._cache.pop(array, None)
