"""The files of a container's log. ``bridge/script/lib/logs.bash`` writes them and describes each.

Offsets count from the start of a run. Bytes before :attr:`Bounds.first` are no longer kept: the log has a hole there,
or it was truncated and begins with a later byte (:attr:`Bounds.base`), and ``.kept`` has the bytes between the two.

The script writes the new bounds before it removes bytes. So bytes that were read are valid if the bounds that are read
afterwards still cover them. The files of a log have its name, and the script renames them when another run begins: it
writes ``.previous.first`` before it renames the log to ``.previous.log``, and removes ``.first`` after that. So bounds
belong to an open log if the log had the name beside them both before and after they were read.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.site.files.atomic_files import open_plain, read_some
from bridge.site.files.beneath import Below, Where, parent
from bridge.site.jobs.job_status import LATEST

LARGEST_INDEX = 2**20
"""Bytes of an index that are read: the script keeps half of them. A container can make a file of any length."""
OPEN_TRIES = 20
OPEN_PERIOD = 0.05
"""Seconds between two attempts to open a log that is being renamed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets of the first byte that is kept, and of the log's first byte; ``moving``: only ``.kept`` is valid."""

    first: int = 0
    base: int = 0
    moving: bool = False


class LogFiles:
    """The open log of one run. ``stems``: names of its files, now and after the start of another run."""

    def __init__(
        self, folder: Path | Below, stems: tuple[str, ...], log: int, kept: int | None, bounds: Bounds
    ) -> None:
        self._folder, self._stems = folder, stems
        self._log, self._kept = log, kept
        self._idle = (-1, -1)
        self.bounds = self._possible(bounds)

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        bounds = self.bounds
        if bounds.moving:
            return bounds.first + (os.fstat(self._kept).st_size if self._kept is not None else 0)
        return bounds.base + os.fstat(self._log).st_size

    @property
    def written_at(self) -> float:
        """Time of the last write, in seconds since 1970."""
        return os.fstat(self._log).st_mtime

    def close(self) -> None:
        """Close the files."""
        for file in (self._log, self._kept):
            if file is not None:
                os.close(file)

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Read at most ``most`` bytes at an offset; no bytes: there are no more for now.

        Return the bytes and their offset: a later one if the byte at ``offset`` is no longer kept.
        """
        while True:
            bounds = self.bounds
            offset = max(offset, bounds.first)
            in_kept = bounds.moving or offset < bounds.base
            if in_kept:
                piece = b"" if self._kept is None else os.pread(self._kept, most, offset - bounds.first)
                piece = piece if bounds.moving else piece[: bounds.base - offset]
            else:
                piece = os.pread(self._log, most, offset - bounds.base)
                if not piece and self._is_idle():
                    return offset, b""
            self._refresh_bounds()
            new_bounds = self.bounds
            if new_bounds != bounds:
                # a hole removes only bytes before first; a truncation moves all others, also while they are read
                is_hole_only = not (new_bounds.moving or new_bounds.base)
                if piece and is_hole_only and offset >= new_bounds.first:
                    return offset, piece
            elif piece or bounds.moving or not in_kept:
                return offset, piece
            else:
                offset = bounds.base  # what was written while the log was truncated is lost

    def block(self, begin: int, end: int) -> tuple[int, bytes]:
        """Return the bytes that are kept from ``begin`` to ``end``, and their offset."""
        start = position = begin
        pieces: list[bytes] = []
        while position < end:
            offset, piece = self.read(position, end - position)
            if offset != position:
                start = offset
                pieces.clear()
                piece = piece[: max(0, end - offset)]
            if not piece:
                break
            pieces.append(piece)
            position = offset + len(piece)
        return start, b"".join(pieces)

    def goes_on(self, offset: int) -> bool:
        """Open the log again; return ``False`` if it is another one, shorter, or gone: the followed run has ended."""
        new_log = open_plain(self._folder / f"{self._stems[0]}.log")
        if new_log is None:
            return False
        if not os.path.sameopenfile(new_log, self._log):
            os.close(new_log)
            return False
        os.close(self._log)
        self._log = new_log
        while True:
            length, bounds = self.end, self.bounds
            self._refresh_bounds()
            if bounds == self.bounds:
                return bounds.moving or offset <= length

    def _is_idle(self) -> bool:
        """Return whether the log is unchanged since the last call: its bounds need not be read again."""
        last_state, file_stat = self._idle, os.fstat(self._log)
        self._idle = file_stat.st_size, file_stat.st_mtime_ns
        return self._idle == last_state

    def _refresh_bounds(self) -> None:
        """Read the bounds again. The script removes no bytes of a log that was removed."""
        for stem in self._stems:
            if self._is_named(stem):
                new_bounds = self._possible(_bounds(self._folder / f"{stem}.first"))
                if self._is_named(stem):
                    # a shared file system may show a file that was removed
                    if (
                        new_bounds.first >= self.bounds.first
                        and new_bounds.base >= self.bounds.base
                        and new_bounds != self.bounds
                    ):
                        self._use_bounds(stem, new_bounds)
                    return

    def _possible(self, bounds: Bounds) -> Bounds:
        """Correct the bounds of a log that the container itself has truncated since."""
        if bounds.moving or bounds.first <= bounds.base + os.fstat(self._log).st_size:
            return bounds
        return Bounds(bounds.base, bounds.base)

    def _use_bounds(self, stem: str, bounds: Bounds) -> None:
        self.bounds = bounds
        if (bounds.moving or bounds.first < bounds.base) and (
            kept := open_plain(self._folder / f"{stem}.kept")
        ) is not None:
            if self._kept is not None:
                os.close(self._kept)
            self._kept = kept

    def _is_named(self, stem: str) -> bool:
        return _leads_to(self._folder / f"{stem}.log", self._log)


def open_log(folder: Path | Below, container: str, *, previous: bool, wait: Callable[[float], bool]) -> LogFiles | None:
    """Open a container's log in ``logs/``, or that of the previous run; ``None``: there is none.

    ``wait`` waits for some seconds and returns whether to stop.
    """
    previous_stem = f"{container}.previous"
    stems = (previous_stem,) if previous else (container, previous_stem)
    path = folder / f"{stems[0]}.log"
    for tries_left in reversed(range(OPEN_TRIES)):
        kept = open_plain(folder / f"{stems[0]}.kept")
        log = open_plain(path)
        if log is None:
            if kept is not None:
                os.close(kept)
            return None
        bounds = _bounds(folder / f"{stems[0]}.first")
        files = LogFiles(folder, stems, log, kept, bounds)
        is_complete = kept is not None or not (bounds.moving or bounds.first < bounds.base)
        if not tries_left or (is_complete and _leads_to(path, log)) or wait(OPEN_PERIOD):
            return files
        files.close()
    return None


class Index:
    """Times at which the bytes of a log were written. The script replaces the file when it removes entries."""

    def __init__(self, path: Where) -> None:
        self._path = path
        self._file = (0, 0)
        self._read = 0
        self._offsets: list[int] = []
        self._times: list[float] = []

    def grow(self) -> None:
        """Read new lines."""
        file = open_plain(self._path)
        if file is None:
            return
        try:
            file_stat = os.fstat(file)
            if self._file != (file_stat.st_dev, file_stat.st_ino) or file_stat.st_size < self._read:
                self._file = file_stat.st_dev, file_stat.st_ino
                self._read = 0
                self._offsets.clear()
                self._times.clear()
            content = os.pread(file, max(0, min(file_stat.st_size, LARGEST_INDEX) - self._read), self._read)
        finally:
            os.close(file)
        *lines, unfinished = content.split(b"\n")
        self._read += len(content) - len(unfinished)
        for line in lines:
            try:
                offset, moment = line.split()
                entry = int(offset), float(moment)
            except ValueError:
                continue
            if 0 <= entry[1] < LATEST and (not self._offsets or entry[0] >= self._offsets[-1]):
                self._offsets.append(entry[0])
                self._times.append(entry[1])

    def written_before(self, moment: float) -> int | None:
        """Return how many bytes are older than a time; ``None``: unknown."""
        position = bisect.bisect_left(self._times, moment)
        return (self._offsets[position - 1] if position else 0) if self._times else None

    def time_of(self, end: int) -> float | None:
        """Return when the byte before ``end`` was written; ``None``: the index does not cover it yet."""
        position = bisect.bisect_left(self._offsets, end)
        return self._times[position] if position < len(self._offsets) else None


def _leads_to(path: Where, file: int) -> bool:
    with contextlib.suppress(OSError), parent(path) as (folder, name):
        return os.path.samestat(os.lstat(name, dir_fd=folder), os.fstat(file))
    return False


def _bounds(path: Where) -> Bounds:
    words = (read_some(path, 256) or b"").split()
    try:
        return Bounds(int(words[0]), int(words[1]), moving=len(words) > 2)
    except (IndexError, ValueError):
        return Bounds()
