"""Runs a command by the script of a job, beside its containers: the submitter's end of ``channel.bash``.

The submitter starts it as a program of its own, with the Python library alone. Arguments: the directory of the job, the
machine of the job, and the command. Its input, output, error output, terminal and exit code are those of the command.

The script of the job finds a file, named with a secret, and connects to this program: once to control the command, and
once for each of its files. A connection that does not begin with the secret is closed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import termios
import threading
import time
import tty

PATIENCE = 25.0
"""Seconds for the script to connect: a shared file system may show it the file late."""
GREETING = 5.0
"""Seconds for a connection to send its first line."""
DRAIN = 1.0
"""Seconds without output after which the output of an ended command is over."""
MOST_STRANGERS = 64
KINDS = frozenset(("control", "input", "output", "error"))
FAILED = 126
_CHUNK = 2**16
_LINE = 256


class NoSessionError(Exception):
    """The command has not started, or its end is not known."""


def main(folder: str, host: str, words: list[str]) -> int:
    """Run the command; return its exit code."""
    token = secrets.token_hex(16)
    terminal = os.isatty(0)
    if terminal:
        tty.setraw(0, termios.TCSANOW)  # keeps what was typed before
    with socket.create_server(("", 0), backlog=16) as server:
        _ask(folder, token, _text(_hosts(host), server.getsockname()[1], _size() if terminal else "", words))
        try:
            connections = _accept(server, token)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/control/sessions/{token}")
    if terminal:
        signal.signal(signal.SIGWINCH, lambda *_: _send_size(connections["control"]))
        _send_size(connections["control"])  # it may have changed meanwhile
    return _exchange(connections)


def _hosts(host: str) -> str:
    """Return the names of this machine, as the machine of the job may know it."""
    name = socket.gethostname()
    if host == name:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((host, 9))  # sends nothing
        return f"{probe.getsockname()[0]} {name}"
    return name


def _size() -> str:
    columns, rows = os.get_terminal_size(0)
    return f"{rows} {columns}"


def _send_size(control: socket.socket) -> None:
    with contextlib.suppress(OSError):
        control.sendall(f"{_size()}\n".encode())


def _text(hosts: str, port: int, size: str, words: list[str]) -> bytes:
    encoded = base64.encodebytes(b"".join(os.fsencode(word) + b"\0" for word in words))
    return f"{hosts}\n{port}\n{size}\n".encode() + encoded


def _ask(folder: str, token: str, text: bytes) -> None:
    """Write the file for the script, which belongs to the user of the job; follow no link of the job."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    at = os.open(folder, flags)
    try:
        owner = os.fstat(at).st_uid
        for name in ("control", "sessions"):
            inner = os.open(name, flags, dir_fd=at)
            os.close(at)
            at = inner
        file = os.open(f".{token}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
        with open(file, "wb") as new:
            if owner != os.geteuid():
                os.fchown(file, owner, -1)
            new.write(text)
        os.rename(f".{token}", token, src_dir_fd=at, dst_dir_fd=at)
    except OSError as error:
        raise NoSessionError(f"the job's script starts no commands: {error.strerror}") from error
    finally:
        os.close(at)


def _accept(server: socket.socket, token: str) -> dict[str, socket.socket]:
    """Return the connections of the script."""
    found: dict[str, socket.socket] = {}
    lock, complete = threading.Lock(), threading.Event()

    def greet(connection: socket.socket) -> None:
        kind = _kind(connection, token)
        with lock:
            if kind in KINDS and kind not in found:
                found[kind] = connection
                if found.keys() == KINDS:
                    complete.set()
                return
        connection.close()

    until = time.monotonic() + PATIENCE
    greeters: list[threading.Thread] = []
    while not complete.is_set():
        left = until - time.monotonic()
        if left <= 0:
            raise NoSessionError(f"the script of the job has not connected to this machine within {PATIENCE:g} s")
        if not select.select([server], [], [], min(left, 0.02 if greeters else left))[0]:
            continue
        connection = server.accept()[0]
        greeters = [greeter for greeter in greeters if greeter.is_alive()]
        if len(greeters) >= MOST_STRANGERS:
            connection.close()
            continue
        greeters.append(threading.Thread(target=greet, args=(connection,), name="channel-greeting", daemon=True))
        greeters[-1].start()
    return found


def _kind(connection: socket.socket, token: str) -> str:
    """Return which connection it is; empty: it is not the script's."""
    connection.settimeout(GREETING)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _LINE:
            byte = connection.recv(1)  # not more: the output of the command follows
            if not byte:
                return ""
            line += byte
    except OSError:
        return ""
    secret, _, kind = line.decode(errors="replace").rstrip("\n").partition(" ")
    if not secrets.compare_digest(secret.encode(), token.encode()):
        return ""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return kind


def _exchange(connections: dict[str, socket.socket]) -> int:
    """Pass on data in both directions until the command ends; return its exit code."""
    threading.Thread(target=_pass_input, args=(connections["input"],), name="channel-input", daemon=True).start()
    ended = threading.Event()
    outputs = [
        threading.Thread(
            target=_pass_output, args=(connections[kind], target, ended), name="channel-output", daemon=True
        )
        for kind, target in (("output", 1), ("error", 2))
    ]
    for output in outputs:
        output.start()
    said = b""
    with contextlib.suppress(OSError):
        while not said.endswith(b"\n") and len(said) < _LINE and (data := connections["control"].recv(_LINE)):
            said += data
    ended.set()
    for output in outputs:
        output.join()
    word, _, code = said.decode(errors="replace").strip().partition(" ")
    if word != "exit" or not (code.isascii() and code.isdigit() and int(code) < 256):
        raise NoSessionError("the connection to the script of the job was lost")
    return int(code)


def _pass_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def _pass_output(connection: socket.socket, target: int, ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while True:
            if not select.select([connection], [], [], DRAIN)[0]:
                if ended.is_set():
                    return
                continue
            data = connection.recv(_CHUNK)
            if not data:
                return
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]


if __name__ == "__main__":
    try:
        status = main(sys.argv[1], sys.argv[2], sys.argv[3:])
    except NoSessionError as error:
        sys.stderr.write(f"{error}\n")
        status = FAILED
    sys.stdout.flush()
    os._exit(status)  # a thread may wait for input
