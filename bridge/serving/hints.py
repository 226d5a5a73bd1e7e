"""Hints from Slurm: a job began or ended.

A hint contains no state of the job, and its body is not read: podbridge asks Slurm. So a forged, repeated or lost hint
cannot change the state of a pod. The id of the job is optional.

Hints arrive over HTTPS (``POST /hint?job=ID``) or through a named pipe, of which each line is the id of a job or is
empty. A shell can write such a line without starting an interpreter or a client. The process that reads the pipe keeps
it open for writing too, so it sees no end of file when a writer has closed it. A writer that opens the pipe with
``O_NONBLOCK`` never waits: it gets ``ENXIO`` if no process reads, and ``EAGAIN`` if the pipe is full (64 KiB, thousands
of hints).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.telemetry.metrics import SLURM_HINTS

log = logging.getLogger(__name__)

HINT_PATH = "/hint"
BODY_LIMIT = 1024
"""Bytes; podbridge's own hints have no body."""
_QUERY = re.compile(r"(?:job=(\d{1,10}))?", re.ASCII)

Wake = Callable[[int | None], bool]
Refusal = Callable[[Mapping[str, Any]], str | None]

MODE = 0o620
"""The group of the directory may send hints."""
ASIDE = ".new"
"""Suffix of the name of a pipe that has no reader yet."""
READ_SIZE = 1 << 16
LONGEST_LINE = 64
"""Bytes of an incomplete line that are kept; an id has at most 10 digits."""
STOP_CHECK = 0.5
STALE_AFTER = 10.0
"""Seconds: a process may not have opened a younger pipe yet."""
_JOB = re.compile(rb"\d{1,10}", re.ASCII)


def read_lines(data: bytes) -> tuple[list[int | None], int, bytes]:
    """Return the jobs of the complete lines of ``data``, the number of invalid lines, and the incomplete last line.

    An empty line is a hint without a job, ``None``.
    """
    *lines, rest = data.split(b"\n")
    jobs: list[int | None] = []
    invalid = 0
    for line in lines:
        word = line.strip(b" \t\r")
        if _JOB.fullmatch(word):
            jobs.append(int(word))
        elif word:
            invalid += 1
        else:
            jobs.append(None)
    return jobs, invalid, rest if len(rest) <= LONGEST_LINE else rest[:LONGEST_LINE]


class HintPipe:
    """Creates a pipe at ``path`` and calls ``wake`` for each hint that it receives.

    ``start`` raises :class:`BridgeError` if the pipe cannot be created. ``run`` reads until ``stop`` is set, and then
    removes the pipe.
    """

    name = "hints-pipe"
    port = 0

    def __init__(self, path: Path, wake: Wake) -> None:
        self._path, self._wake = path, wake
        self._file = -1

    def start(self) -> None:
        """Create the pipe and open it; only then give it its name, under which writers find it."""
        aside = self._path.with_name(f"{self._path.name}{ASIDE}")
        try:
            os.mkfifo(aside, 0o600)
            self._file = os.open(aside, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            aside.chmod(MODE)  # the umask does not apply
            os.link(aside, self._path)  # unlike a renaming, it replaces no file
            aside.unlink()
        except OSError as error:
            raise BridgeError(f"the pipe {self._path} cannot be created: {error.strerror}") from error

    def run(self, stop: threading.Event) -> None:
        """Receive hints until ``stop`` is set."""
        poll, rest = select.poll(), b""
        poll.register(self._file, select.POLLIN)
        try:
            while not stop.is_set():
                if poll.poll(STOP_CHECK * 1000):
                    rest = self._receive(rest + os.read(self._file, READ_SIZE))
        finally:
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def _receive(self, data: bytes) -> bytes:
        jobs, invalid, rest = read_lines(data)
        for job_id in jobs:
            SLURM_HINTS.labels("accepted" if self._wake(job_id) else "standby").inc()
        if invalid:
            SLURM_HINTS.labels("invalid").inc(invalid)
        return rest


def remove_stale_pipes(directory: Path, prefix: str) -> None:
    """Remove the pipes ``<prefix>*.pipe`` of killed processes: no process reads them, and they are not new."""
    for path in sorted([*directory.glob(f"{prefix}*.pipe"), *directory.glob(f"{prefix}*.pipe{ASIDE}")]):
        try:
            status = path.lstat()
            if stat.S_ISFIFO(status.st_mode) and time.time() - status.st_mtime > STALE_AFTER and not _has_reader(path):
                path.unlink()
                log.info("removed the pipe of an ended process", extra=kv(path=path))
        except OSError as error:
            log.warning("pipe not removed", extra=kv(path=path, error=error.strerror))


def _has_reader(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


def hint_app(wake: Wake, refusal: Refusal | None = None) -> Callable[..., Iterable[bytes]]:
    """Create the WSGI application.

    ``wake`` is called for each hint with the id of the job, or ``None``; it returns false if this process is a standby.
    ``refusal`` returns why a request (its WSGI environment) is refused; ``None``: all requests are accepted.
    """

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, text = _answer(environ, wake, refusal)
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text.encode())))]
        if status.startswith("401"):
            headers.append(("WWW-Authenticate", "Bearer"))
        start_response(status, headers)
        return [text.encode()]

    return app


def _answer(environ: Mapping[str, Any], wake: Wake, refusal: Refusal | None) -> tuple[str, str]:
    reason = refusal(environ) if refusal is not None else None
    if reason is not None:
        SLURM_HINTS.labels("refused").inc()
        return "401 Unauthorized", f"{reason}\n"
    if environ.get("PATH_INFO") != HINT_PATH:
        return "404 Not Found", f"hints are sent to {HINT_PATH}\n"
    if environ.get("REQUEST_METHOD") != "POST":
        return "405 Method Not Allowed", "hints are sent with POST\n"
    query = environ.get("QUERY_STRING", "")
    match = _QUERY.fullmatch(query)
    if match is None:
        return "400 Bad Request", f"the query {query[:100]!r} is not allowed; allowed: job=ID\n"
    accepted = wake(int(match[1]) if match[1] else None)
    SLURM_HINTS.labels("accepted" if accepted else "standby").inc()
    return "202 Accepted", "" if accepted else "standby\n"
