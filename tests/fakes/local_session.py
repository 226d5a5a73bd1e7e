"""A session that runs a real command on this machine, for tests of what is between it and ``kubectl exec``."""

from __future__ import annotations

import fcntl
import os
import pty
import queue
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bridge.errors import BridgeError, SiteUnknownOutcomeError
from bridge.protocol.model.sessions import STDERR, STDOUT, CommandOptions, Exit, Output

PIECE = 2**15
_QUEUED = 4
"""Pieces of output that a slow receiver leaves waiting; then the command waits."""


class LocalSessions:
    """Starts sessions, as a pool does. ``problem`` is raised instead, if set."""

    def __init__(self) -> None:
        self.opened: list[LocalSession] = []
        self.problem: BridgeError | None = None

    def __call__(self, pod: Mapping[str, Any], options: CommandOptions) -> LocalSession:
        if self.problem is not None:
            raise self.problem
        session = LocalSession(options)
        self.opened.append(session)
        return session


class LocalSession:
    """One command, in a session of its own."""

    def __init__(self, options: CommandOptions) -> None:
        self.options = options
        self.closed = threading.Event()
        self._news: queue.Queue[Output | Exit | BridgeError] = queue.Queue(_QUEUED)
        own: dict[int, int] = {}
        if options.tty:
            master, slave = pty.openpty()
            streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
            own = {STDOUT: master}
        else:
            stdin = subprocess.PIPE if options.stdin else subprocess.DEVNULL
            streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # setsid also makes the terminal the controlling one, from which Ctrl-C becomes a signal
        command = ["setsid", "--ctty", *options.command] if options.tty else options.command
        self.process = subprocess.Popen(command, start_new_session=not options.tty, **streams)
        self._stdin: int | None = None
        if options.tty:
            os.close(slave)
            self._stdin = os.dup(master)
        else:
            assert self.process.stdout is not None and self.process.stderr is not None
            own = {STDOUT: os.dup(self.process.stdout.fileno()), STDERR: os.dup(self.process.stderr.fileno())}
            if self.process.stdin is not None:
                self._stdin = os.dup(self.process.stdin.fileno())
                self.process.stdin.close()
            self.process.stdout.close()
            self.process.stderr.close()
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in own.items()]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def receive(self) -> Output | Exit:
        while True:
            with suppress(queue.Empty):
                news = self._news.get(timeout=0.02)
                if isinstance(news, BridgeError):
                    raise news
                return news
            if self.closed.is_set():
                raise SiteUnknownOutcomeError("the session is closed")

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            while data and self._stdin is not None:
                data = data[os.write(self._stdin, data[:PIECE]) :]

    def end_input(self) -> None:
        if self._stdin is not None and not self.options.tty:
            os.close(self._stdin)
            self._stdin = None

    def resize(self, columns: int, rows: int) -> None:
        if self._stdin is not None:
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        self.closed.set()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def fail(self, problem: BridgeError) -> None:
        """End the session as a site that was lost would."""
        self._news.put(problem)

    def _read(self, channel: int, number: int) -> None:
        with suppress(OSError):  # a terminal without a process raises at its end
            while piece := os.read(number, PIECE):
                self._put(Output(channel, piece))
        os.close(number)

    def _wait(self) -> None:
        code = self.process.wait()
        for reader in self._readers:
            reader.join()
        self._put(Exit(128 - code if code < 0 else code))

    def _put(self, news: Output | Exit) -> None:
        while not self.closed.is_set():
            with suppress(queue.Full):
                self._news.put(news, timeout=0.02)
                return
