"""A command with the input and output of a two-way stream."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bridge.errors import SiteError, SiteRefusedError
from bridge.protocol.model.sessions import EXIT, RESIZE, STDERR, STDIN, STDOUT
from bridge.protocol.nats.two_way import SESSION, StreamClosedError, TwoWay
from bridge.site.cpus import all_given

POLL = 1.0
"""Seconds between two checks whether the container is over."""
DRAIN = 0.2
"""Seconds without output after which the output of an ended command is over: what it left may keep it open."""
PATIENCE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
# Becomes a command that ends soon after the thread that started it: by this signal, or by the end of its input or
# terminal. Arguments: this process, "tty" if the input is the terminal that controls it, and the command. setpriv
# --pdeathsig would need util-linux 2.33.
_STARTER = """
import ctypes, fcntl, os, signal, sys, termios
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
if sys.argv[2]:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in signal.SIGPIPE, signal.SIGXFSZ:
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"{sys.argv[3]}: {error.strerror}")
"""
_PIECE = SESSION.chunks // 2 * SESSION.size
"""Bytes of output that are read at once: half a window, so that the other half is on its way meanwhile."""
_SIZE = re.compile(rb"(\d{1,5}) (\d{1,5})")


@dataclass(frozen=True, slots=True)
class Started:
    """A process and its files; with a terminal, this is the input and the output."""

    process: subprocess.Popen[bytes]
    stdin: io.FileIO | None
    outputs: Mapping[io.FileIO, int]
    terminal: io.FileIO | None = None

    def close(self) -> None:
        """Close all files."""
        for file in (self.stdin, *self.outputs):
            if file is not None:
                file.close()


def run(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    stream: TwoWay,
    *,
    stdin: bool,
    tty: bool,
    is_over: Callable[[], bool],
    exit_code: Callable[[int], int],
) -> None:
    """Run a command to its end, and send its exit code. It ends with the stream, and soon after ``is_over`` is true.

    ``exit_code`` returns the code to send for that of the process.
    """
    try:
        with all_given():
            started = start(words, folder, environment, stdin=stdin, tty=tty)
    except OSError as error:
        raise SiteRefusedError(f"{words[0]} can't be run: {error.strerror}", reason="SessionFailed") from error
    reader = threading.Thread(target=_pass_input, args=(started, stream), name="session-input", daemon=True)
    reader.start()
    try:
        code = _pass_output(started, stream, is_over)
        stream.send(EXIT, b"%d" % exit_code(code if code >= 0 else 128 - code), end=True)
    finally:
        end_process(started.process)
        stream.stop_receiving()
        reader.join()
        started.close()


def start(words: Sequence[str], folder: str, environment: Mapping[str, str], *, stdin: bool, tty: bool) -> Started:
    """Start a command, which ends soon after the thread that calls this. Its input does not block."""
    words = [sys.executable, "-I", "-S", "-c", _STARTER, str(os.getpid()), "tty" * tty, *words]
    if not tty:
        process = subprocess.Popen(
            words,
            bufsize=0,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # without a buffer, they are raw files
        into, out, err = (cast("io.FileIO", file) for file in (process.stdin, process.stdout, process.stderr))
        if stdin:
            os.set_blocking(into.fileno(), False)
        return Started(process, into if stdin else None, {out: STDOUT, err: STDERR})
    ours, theirs = os.openpty()
    terminal = io.FileIO(ours, "r+b")
    os.set_blocking(ours, False)
    try:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    except BaseException:
        terminal.close()
        raise
    finally:
        os.close(theirs)
    return Started(process, terminal, {terminal: STDOUT}, terminal)


def _pass_input(started: Started, stream: TwoWay) -> None:
    """Pass on what the hub sends, until the stream is over; then end the command."""
    is_open = started.stdin is not None
    try:
        while True:
            head, data = stream.receive()
            if head.channel == RESIZE and started.terminal is not None:
                _resize(started.terminal, data)
            elif head.channel == STDIN and is_open and started.stdin is not None:
                is_open = _write(started, started.stdin, data)
                if head.end and started.terminal is None:
                    is_open = False
                    started.stdin.close()
    except (StreamClosedError, SiteError):
        _signal(started.process, signal.SIGTERM)


def _resize(terminal: io.FileIO, data: bytes) -> None:
    if size := _SIZE.fullmatch(data):
        columns, rows = (min(int(number), 2**16 - 1) for number in size.groups())
        with contextlib.suppress(OSError):  # of a terminal without a process
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _write(started: Started, file: io.FileIO, data: bytes) -> bool:
    """Write all data; return false if the command reads no more."""
    while data:
        # what an ended command has left may keep its input open
        if not is_writable(file, POLL):
            if started.process.poll() is not None:
                return False
            continue
        try:
            data = data[file.write(data) or 0 :]
        except OSError:
            return False
    return True


def is_writable(file: io.FileIO, seconds: float) -> bool:
    """Wait until a pipe or terminal takes data. Not select(2), which takes no descriptor above 1023."""
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


def _pass_output(started: Started, stream: TwoWay, is_over: Callable[[], bool]) -> int:
    """Pass on what the command writes until it ends; return its exit code."""
    outputs = {file.fileno(): (file, channel) for file, channel in started.outputs.items()}
    poll, checked_at = select.poll(), time.monotonic()
    for descriptor in outputs:
        poll.register(descriptor, select.POLLIN)
    while (code := started.process.poll()) is None or outputs:
        ready = []
        if outputs:
            ready = poll.poll((POLL if code is None else DRAIN) * 1000)
            if not ready and code is not None:
                break
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(POLL)
        if time.monotonic() - checked_at >= POLL:
            checked_at = time.monotonic()
            if stream.is_over:
                raise StreamClosedError
            if is_over():
                raise SiteRefusedError("the container has ended", reason="SessionEnded")
        for descriptor, _ in ready:
            file, channel = outputs[descriptor]
            if data := _read(file):
                stream.send(channel, data)
            else:
                poll.unregister(descriptor)
                del outputs[descriptor]
    return started.process.wait()


def _read(file: io.FileIO) -> bytes:
    try:
        return file.read(_PIECE) or b""
    except OSError:  # of a terminal without a process
        return b""


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that :func:`start` has started."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        if process.poll() is not None:
            return
        _signal(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:  # else the number may be another process's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
