"""Logs of containers, with all options of ``kubectl logs``.

:mod:`.log_files` reads the output. Times are those at which the script checked the size of the log, about once a
second.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

from bridge import names
from bridge.clock import Clock
from bridge.errors import SiteRefusedError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import STDOUT
from bridge.protocol.nats.two_way import TwoWay
from bridge.site.files.atomic_files import read_json
from bridge.site.files.beneath import Below, Where
from bridge.site.jobs.job_folder import LARGEST_STATE
from bridge.site.jobs.job_record import JobRecord
from bridge.site.logs.log_files import Index, LogFiles, open_log

_NAME = re.compile(names.DNS_LABEL)
PIECE = 64 * 1024
POLL = 0.2
LOOK_PERIOD = 1.0
"""Seconds between two checks of a followed log; each opens the file again, as shared file systems need it."""
OVER_PERIOD = 3.0
MOST_SEARCHED = 2**28
"""Bytes in which the start of a line is searched: a container can make its log a file of any length, without lines."""
LONGEST_LINE = 256 * 1024
"""Bytes after which an incomplete line gets its time."""


def read_log(
    job: Path,
    options: LogOptions,
    record: JobRecord,
    job_has_ended: Callable[[], bool],
    wait: Callable[[float], bool],
    clock: Clock,
) -> Generator[bytes, None, None]:
    """Return the pieces of a container's log; raises SiteRefusedError before the first one if there is no log.

    ``wait`` waits for some seconds and returns whether to stop. While a followed log does not grow, empty pieces let
    the writer detect a closed connection.
    """
    if not _NAME.fullmatch(options.container):
        raise SiteRefusedError(f"{options.container!r} is no name of a container", reason="ContainerNotFound")
    state, logs = Below(str(job), f"state/{options.container}.json"), Below(str(job), "logs")
    previous = _is_previous(state, options)
    log = open_log(logs, options.container, previous=previous, wait=wait)
    if log is None:
        _explain_absence(options, record, job_has_ended)
        return _limited(iter(()), None)
    index = Index(logs / f"{options.container}{'.previous' if previous else ''}.index")
    pieces = _pieces(log, index, options, lambda: previous or _has_ended(state), job_has_ended, wait, clock)
    if options.timestamps:
        pieces = _stamped(pieces, log, index, clock)
    limited_pieces = _limited((piece for _, piece in pieces), options.limit_bytes)
    next(limited_pieces)  # the files of a generator that has not started would stay open when it is closed
    return limited_pieces


def send_log(pieces: Generator[bytes, None, None], stream: TwoWay) -> None:
    """Send the pieces of a log, until its reader has ended it."""
    with contextlib.closing(pieces):
        for piece in pieces:
            if piece:
                stream.send(STDOUT, piece)
            elif stream.is_over:
                return
    stream.send(STDOUT, end=True)


def _explain_absence(options: LogOptions, record: JobRecord, job_has_ended: Callable[[], bool]) -> None:
    if options.previous:
        raise SiteRefusedError(f"previous terminated container {options.container!r} not found", reason="NotFound")
    containers = dict(record.containers)
    if record.started and containers and options.container not in containers:
        names = ", ".join(containers)
        raise SiteRefusedError(f"no container {options.container!r} (there are: {names})", reason="ContainerNotFound")
    if not job_has_ended():
        raise SiteRefusedError(f"container {options.container!r} is waiting to start", reason="ContainerWaiting")


def _start(log: LogFiles, index: Index, options: LogOptions) -> int:
    """Return the offset of the first byte to send."""
    first, size = log.bounds.first, log.end
    if options.since is not None:
        index.grow()
        older = index.written_before(options.since)
        if older is None:
            # without an index, the time of the last write decides for the whole log
            older = size if log.written_at < options.since else 0
        first = _line_start(log, min(older, size))
    if options.tail is not None:
        first = max(first, _tail(log, size, options.tail))
    return first


def _line_start(log: LogFiles, position: int) -> int:
    """Return the start of the line of a position, as far as it is kept."""
    least = position - MOST_SEARCHED
    while position > max(least, log.bounds.first):
        begin = max(log.bounds.first, position - PIECE)
        at, block = log.block(begin, position)
        newline = block.rfind(b"\n")
        if newline >= 0:
            return at + newline + 1
        if at > begin:
            return at
        position = begin
    return max(position, log.bounds.first)


def _tail(log: LogFiles, size: int, lines: int) -> int:
    """Return the start of the last lines; an incomplete last line counts."""
    if lines == 0:
        return size
    newlines_left = lines + (1 if log.block(size - 1, size)[1] == b"\n" else 0)
    position = size
    while position > max(size - MOST_SEARCHED, log.bounds.first):
        begin = max(log.bounds.first, position - PIECE)
        at, block = log.block(begin, position)
        count = block.count(b"\n")
        if count >= newlines_left:
            end = len(block)
            for _ in range(newlines_left):
                end = block.rfind(b"\n", 0, end)
            return at + end + 1
        if at > begin:
            return at
        newlines_left -= count
        position = begin
    return max(position, log.bounds.first)


def _pieces(
    log: LogFiles,
    index: Index,
    options: LogOptions,
    container_has_ended: Callable[[], bool],
    job_has_ended: Callable[[], bool],
    wait: Callable[[float], bool],
    clock: Clock,
) -> Iterator[tuple[int, bytes]]:
    """Return pieces with their offsets; an empty piece means that nothing is new.

    If a reader is so slow that the next byte is no longer kept, it continues with the first line that is kept.
    """
    try:
        yield 0, b""  # taken by read_log
        position, in_line = _start(log, index, options), False
        looked_at = over_at = clock.monotonic()
        last_round = not options.follow or container_has_ended()
        while True:
            offset, piece = log.read(position, PIECE)
            # the bytes between were cut off: what is kept must not continue the line before them
            if offset > position and in_line:
                yield position, b"\n"
                in_line = False
            position = offset + len(piece)
            if piece:
                in_line = not piece.endswith(b"\n")
                yield offset, piece
                continue
            if last_round:
                return
            yield offset, b""
            if wait(POLL):
                return
            now = clock.monotonic()
            if now - looked_at >= LOOK_PERIOD:
                looked_at = now
                # before the last read: what was written before the end is in it
                last_round = container_has_ended() or not log.goes_on(position)
                if not last_round and now - over_at >= OVER_PERIOD:
                    over_at = now
                    last_round = job_has_ended()
    finally:
        log.close()


def _stamped(
    pieces: Iterator[tuple[int, bytes]], log: LogFiles, index: Index, clock: Clock
) -> Iterator[tuple[int, bytes]]:
    """Insert the time before each line, as kubelets do; incomplete lines wait for their end."""
    unfinished, position, latest = b"", 0, 0.0

    def stamp(line: bytes, end: int) -> bytes:
        moment = index.time_of(end)
        return _nanoseconds(latest if moment is None else moment).encode() + b" " + line

    for offset, piece in pieces:
        index.grow()
        latest = min(clock.time(), log.written_at)  # for lines that the index does not cover yet
        if not unfinished:
            position = offset
        stamped_lines = []
        *lines, unfinished = (unfinished + piece).split(b"\n")
        for line in lines:
            position += len(line) + 1
            stamped_lines.append(stamp(line + b"\n", position))
        if len(unfinished) > LONGEST_LINE:
            position += len(unfinished)
            stamped_lines.append(stamp(unfinished, position))
            unfinished = b""
        yield offset, b"".join(stamped_lines)
    if unfinished:
        yield position, stamp(unfinished, position + len(unfinished))


def _limited(pieces: Iterator[bytes], limit: int | None) -> Generator[bytes, None, None]:
    bytes_left = limit
    for piece in pieces:
        if bytes_left is None:
            yield piece
            continue
        yield piece[:bytes_left]
        bytes_left -= len(piece)
        if bytes_left <= 0:
            return


def _is_previous(state: Where, options: LogOptions) -> bool:
    """Return whether a kubelet would send the log of the run before the one that the script started last.

    With ``previous``, it sends that of the last run that has ended; without, also until the next one runs.
    """
    state_record = read_json(state, LARGEST_STATE) or {}
    ended, last_end = state_record.get("ended"), state_record.get("last")
    if options.previous:
        return not ended or ended != last_end
    return state_record.get("state") == "waiting" and bool(last_end) and not ended


def _has_ended(state: Where) -> bool:
    """Return whether the container's current run, which writes the log, has ended."""
    state_record = read_json(state, LARGEST_STATE) or {}
    return state_record.get("state") == "terminated" or (
        state_record.get("state") == "waiting" and bool(state_record.get("ended"))
    )


def _nanoseconds(moment: float) -> str:
    whole_seconds = int(moment)
    text = datetime.fromtimestamp(whole_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{int((moment - whole_seconds) * 1e9):09d}Z"
