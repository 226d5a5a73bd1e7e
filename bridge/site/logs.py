"""Logs of containers, with all that ``kubectl logs`` asks for.

``logs/<container>.log`` holds the raw output. When its bytes were written stands in ``.index``, whose lines
``<bytes> <seconds since 1970>`` say how long the log was at a moment: times are good to about a second.
"""

from __future__ import annotations

import bisect
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from bridge.clock import Clock
from bridge.errors import SiteRefusedError
from bridge.site.facts import Facts
from bridge.site.files import read_some
from bridge.site.folder import LARGEST_STATE
from bridge.wire.messages import Logs

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PIECE = 64 * 1024
POLL = 0.2
LOOK_PERIOD = 1.0
"""Seconds between two looks whether a followed log goes on; the file is opened anew, as shared folders need it."""
OVER_PERIOD = 3.0
LONGEST_LINE = 256 * 1024
"""Bytes after which a line gets its time although it has not ended."""


def read_log(
    job: Path, ask: Logs, facts: Facts, over: Callable[[], bool], wait: Callable[[float], bool], clock: Clock
) -> Generator[bytes, None, None]:
    """Read a container's log as asked; raises before the first piece where there can be none.

    ``over`` says whether the job has ended; ``wait`` waits that many seconds, and says whether to stop. While a
    followed log is silent, empty pieces are given, so that whoever writes them can notice that nobody reads.
    """
    if not _NAME.fullmatch(ask.container):
        raise SiteRefusedError(f"{ask.container!r} is no name of a container", reason="ContainerNotFound")
    stem = f"{ask.container}.previous" if ask.previous else ask.container
    path = job / "logs" / f"{stem}.log"
    file = _open(path)
    if file is None:
        _explain_absence(ask, facts, over)
        return _limited(iter(()), None)
    log = _Log(path, file, _Index(job / "logs" / f"{stem}.index"))
    state = job / "state" / f"{ask.container}.json"
    pieces = _pieces(log, ask, lambda: _has_ended(state), over, wait, clock)
    if ask.timestamps:
        pieces = _stamped(pieces, log, clock)
    return _limited((piece for _, piece in pieces), ask.limit_bytes)


def _explain_absence(ask: Logs, facts: Facts, over: Callable[[], bool]) -> None:
    if ask.previous:
        raise SiteRefusedError(f"previous terminated container {ask.container!r} not found", reason="NotFound")
    known = dict(facts.containers)
    if facts.started and known and ask.container not in known:
        names = ", ".join(known)
        raise SiteRefusedError(f"no container {ask.container!r} (there are: {names})", reason="ContainerNotFound")
    if not over():
        raise SiteRefusedError(f"container {ask.container!r} is waiting to start", reason="ContainerWaiting")


class _Index:
    """When a log's bytes were written. Read further as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._sizes: list[int] = []
        self._times: list[float] = []

    def grow(self) -> None:
        """Read the lines that are new."""
        file = _open(self._path)
        if file is None:
            return
        with file:
            file.seek(self._read)
            content = file.read()
        if content:
            *lines, unfinished = content.split(b"\n")
            self._read += len(content) - len(unfinished)
            for line in lines:
                try:
                    size, moment = line.split()
                    entry = int(size), float(moment)
                except ValueError:
                    continue
                if not self._sizes or entry[0] >= self._sizes[-1]:
                    self._sizes.append(entry[0])
                    self._times.append(entry[1])

    def written_before(self, moment: float) -> int | None:
        """Say how many bytes are older than a moment; ``None``: nothing is known."""
        found = bisect.bisect_left(self._times, moment)
        return (self._sizes[found - 1] if found else 0) if self._times else None

    def time_of(self, end: int) -> float | None:
        """Say when the byte before ``end`` was there; ``None``: it is younger than the index."""
        found = bisect.bisect_left(self._sizes, end)
        return self._times[found] if found < len(self._sizes) else None


class _Log:
    """An open log."""

    def __init__(self, path: Path, file: BinaryIO, index: _Index) -> None:
        self.path, self.file, self.index = path, file, index

    def start(self, ask: Logs) -> int:
        """Find the byte to begin with."""
        size = os.fstat(self.file.fileno()).st_size
        first = 0
        if ask.since is not None:
            self.index.grow()
            older = self.index.written_before(ask.since)
            if older is None:
                older = size if os.fstat(self.file.fileno()).st_mtime < ask.since else 0
            first = self._line_start(min(older, size))
        if ask.tail is not None:
            first = max(first, self._tail(size, ask.tail))
        return first

    def _line_start(self, position: int) -> int:
        """Give the start of the line in which a position lies."""
        while position > 0:
            begin = max(0, position - PIECE)
            self.file.seek(begin)
            found = self.file.read(position - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            position = begin
        return 0

    def _tail(self, size: int, lines: int) -> int:
        """Give the start of the last lines; one without an end counts as well."""
        if lines == 0:
            return size
        self.file.seek(max(0, size - 1))
        wanted = lines + (1 if self.file.read(1) == b"\n" else 0)
        position = size
        while position > 0:
            begin = max(0, position - PIECE)
            self.file.seek(begin)
            block = self.file.read(position - begin)
            count = block.count(b"\n")
            if count >= wanted:
                at = len(block)
                for _ in range(wanted):
                    at = block.rfind(b"\n", 0, at)
                return begin + at + 1
            wanted -= count
            position = begin
        return 0

    def goes_on(self) -> bool:
        """Open the file anew; ``False``: it is another one, or shorter, or gone: what was followed has ended."""
        fresh = _open(self.path)
        if fresh is None:
            return False
        old, new, position = os.fstat(self.file.fileno()), os.fstat(fresh.fileno()), self.file.tell()
        if (old.st_dev, old.st_ino) != (new.st_dev, new.st_ino) or new.st_size < position:
            fresh.close()
            return False
        fresh.seek(position)
        self.file.close()
        self.file = fresh
        return True


def _pieces(
    log: _Log,
    ask: Logs,
    ended: Callable[[], bool],
    over: Callable[[], bool],
    wait: Callable[[float], bool],
    clock: Clock,
) -> Iterator[tuple[int, bytes]]:
    """Give pieces with the offset of each; the empty ones say that nothing is new."""
    try:
        log.file.seek(log.start(ask))
        looked = over_at = clock.monotonic()
        last_round = not ask.follow or ended()
        while True:
            offset = log.file.tell()
            piece = log.file.read(PIECE)
            if piece:
                yield offset, piece
                continue
            if last_round:
                return
            yield offset, b""
            if wait(POLL):
                return
            now = clock.monotonic()
            if now - looked >= LOOK_PERIOD:
                looked = now
                last_round = ended() or not log.goes_on()
                if not last_round and now - over_at >= OVER_PERIOD:
                    over_at = now
                    last_round = over()
    finally:
        log.file.close()


def _stamped(pieces: Iterator[tuple[int, bytes]], log: _Log, clock: Clock) -> Iterator[tuple[int, bytes]]:
    """Put the time before each line, as kubelets do; unfinished lines wait for their end."""
    rest, position, latest = b"", 0, 0.0

    def stamp(line: bytes, end: int) -> bytes:
        moment = log.index.time_of(end)
        return _nanoseconds(latest if moment is None else moment).encode() + b" " + line

    for offset, piece in pieces:
        log.index.grow()
        latest = min(clock.time(), os.fstat(log.file.fileno()).st_mtime)  # of what is younger than the index
        if not rest:
            position = offset
        out = []
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            position += len(line) + 1
            out.append(stamp(line + b"\n", position))
        if len(rest) > LONGEST_LINE:
            position += len(rest)
            out.append(stamp(rest, position))
            rest = b""
        yield offset, b"".join(out)
    if rest:
        yield position, stamp(rest, position + len(rest))


def _limited(pieces: Iterator[bytes], limit: int | None) -> Generator[bytes, None, None]:
    left = limit
    for piece in pieces:
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _open(path: Path) -> BinaryIO | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    return open(descriptor, "rb", buffering=0)


def _has_ended(state: Path) -> bool:
    """Whether the run of a container that writes the log is over."""
    content = read_some(state, LARGEST_STATE)
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return False
    return isinstance(found, dict) and (
        found.get("state") == "terminated" or (found.get("state") == "waiting" and bool(found.get("ended")))
    )


def _nanoseconds(moment: float) -> str:
    whole = int(moment)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{int((moment - whole) * 1e9):09d}Z"
