"""The submitter's side of :mod:`bridge.site.sessions.connector`: one process for each pod whose ports are in use.

The first connection to a pod starts the process, and a minute without a connection ends it. So a further connection
costs one frame in each direction. The process belongs to the user of the job: what it sends is not trusted.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import threading
import time
from collections.abc import Callable

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.relay import multiplexer
from bridge.relay.relayed import RelayedConnection, refused
from bridge.site.cpus import all_given
from bridge.site.sessions.command_process import Started, end_process, is_writable

log = logging.getLogger(__name__)

IDLE = 60.0
"""Seconds without a connection after which the process ends."""
PING = 10.0
SILENCE = 30.0
"""Seconds without a frame after which the process is killed."""
POLL = 1.0
_TRIES = 3
_LONGEST_ERROR = 1000


class StaleError(Exception):
    """The process accepts no connection: why it has ended, or nothing if its containers are not the present ones."""


class ConnectorProcess:
    """One process. ``start`` starts it; ``is_over``: whether the pod has ended."""

    def __init__(self, job: str, start: Callable[[], Started], is_over: Callable[[], bool]) -> None:
        self._job, self._start, self._is_over = job, start, is_over
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._numbers = itertools.count(1)
        self._connections: dict[int, RelayedConnection] = {}
        self._used_at = self._heard_at = time.monotonic()
        self._reason = ""
        self._errors = b""
        self._started: Started | None = None
        self.is_usable = True
        """Whether it accepts connections."""
        self._is_ready = threading.Event()
        # not the caller's thread: the process ends with the thread that started it
        threading.Thread(target=self._run, name="site-connector", daemon=True).start()

    def open(self, port: int) -> RelayedConnection:
        """Connect to a port. Raises SiteRefusedError, or :class:`StaleError` if another process must do it."""
        self._is_ready.wait()
        with self._lock:
            if not self.is_usable:
                raise StaleError(self._reason)
            number = next(self._numbers)
            self._connections[number] = connection = RelayedConnection(self, number)
        self.send(multiplexer.OPEN, number, multiplexer.NUMBER.pack(port))
        try:
            connection.wait_until_open()
        except SiteRefusedError:
            connection.close()
            if not self.is_usable and not self._reason:
                raise StaleError from None
            raise
        return connection

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame, unless the process has ended."""
        frame = multiplexer.HEAD.pack(kind, number, len(payload)) + payload
        with self._writing:
            while frame and self._started is not None and self._started.stdin is not None:
                if is_writable(self._started.stdin, POLL):
                    try:
                        frame = frame[self._started.stdin.write(frame) or 0 :]
                    except OSError:
                        return
                elif self._reason or self._started.process.poll() is not None:
                    return

    def forget(self, number: int) -> None:
        """Remove a connection that is closed."""
        with self._lock:
            self._connections.pop(number, None)
            self._used_at = time.monotonic()

    # --- the thread of the process ------------------------------------------------------------------------------------
    def _run(self) -> None:
        started: Started | None = None
        try:
            with all_given():
                self._started = started = self._start()
            self._is_ready.set()
            self._reason = self._receive(started)
        except OSError as error:
            self._reason = f"the connector can't be run: {error.strerror}"
        except Exception:
            self._reason = "the connector failed"
            log.exception("a connector failed", extra=kv(job=self._job))
        with self._lock:
            self.is_usable = False
            connections = list(self._connections.values())
        self._is_ready.set()
        for connection in connections:
            connection.closed(self._reason)
        if started is not None:
            end_process(started.process)
            with self._writing:
                self._started = None
                started.close()

    def _receive(self, started: Started) -> str:
        """Handle what the process sends, until its end or that of the pod; return the reason."""
        outputs = {file.fileno(): file for file in started.outputs}
        main = next(iter(outputs))
        poll = select.poll()
        for descriptor in outputs:
            poll.register(descriptor, select.POLLIN)
        received, checked_at = b"", 0.0
        while True:
            for descriptor, _ in poll.poll(POLL * 1000):
                data = outputs[descriptor].read(2**16) or b""
                if descriptor != main:
                    self._errors = (self._errors + data)[-_LONGEST_ERROR:]
                    if not data:
                        poll.unregister(descriptor)
                    continue
                if not data:
                    return self._end_of(started)
                self._heard_at = time.monotonic()
                received, problem = self._take(received + data)
                if problem:
                    return problem
            if time.monotonic() - checked_at >= POLL:
                checked_at = time.monotonic()
                if reason := self._check(started, checked_at):
                    return reason

    def _end_of(self, started: Started) -> str:
        with contextlib.suppress(Exception):
            started.process.wait(POLL)
        text = self._errors.decode("utf-8", "replace").strip().replace("\n", "; ")
        return text or f"the connector has ended with code {started.process.poll()}"

    def _check(self, started: Started, now: float) -> str:
        """Return why the process must end now; empty: it must not."""
        if self._is_over():
            return "the pod has ended"
        if now - self._heard_at > SILENCE:
            return f"the connector has sent nothing for {SILENCE:g} s"
        with self._lock:
            if not self._connections and (now - self._used_at > IDLE or not self.is_usable):
                self.is_usable = False
                return "idle"
        if now - self._heard_at > PING and self._writing.acquire(blocking=False):
            try:  # only if it does not wait: nobody else would detect the silence
                if started.stdin is not None and is_writable(started.stdin, 0):
                    with contextlib.suppress(OSError):
                        started.stdin.write(multiplexer.HEAD.pack(multiplexer.PING, 0, 0))
            finally:
                self._writing.release()
        return ""

    def _take(self, received: bytes) -> tuple[bytes, str]:
        """Handle complete frames; return the rest, and what is wrong."""
        complete, rest = multiplexer.frames(received)
        for kind, number, payload in complete:
            connection = self._connections.get(number)
            if connection is None:
                continue
            if kind == multiplexer.STALE:
                self.is_usable = False
                connection.closed("")
            elif not connection.handle(kind, payload):
                return b"", "the connector violates its protocol"
        return rest, ""


class Connectors:
    """The processes of all pods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, ConnectorProcess] = {}

    def open(self, job: str, start: Callable[[], Started], is_over: Callable[[], bool], port: int) -> RelayedConnection:
        """Connect to a port of a pod; see :class:`ConnectorProcess`. Raises SiteRefusedError."""
        for _ in range(_TRIES):
            with self._lock:
                self._processes = {key: each for key, each in self._processes.items() if each.is_usable}
                process = self._processes.get(job)
                if is_new := process is None:
                    process = self._processes[job] = ConnectorProcess(job, start, is_over)
            try:
                return process.open(port)
            except StaleError as error:
                if is_new and (reason := str(error)):
                    raise refused(reason) from None
        raise refused("the containers of the pod are starting again")
