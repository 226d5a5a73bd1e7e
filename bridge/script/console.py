"""The input and the terminal of a container: a program that runs beside it, for ``kubectl attach``.

The script of a pod whose container has ``stdin`` or ``tty`` contains this file, and runs it with any Python from 3.6
on; it imports nothing of podbridge. ``keep`` holds the terminal of the container, or the pipes of its input and output,
from its start to its end, and passes the output on to the log and to all clients. ``start`` becomes the container's
program. ``attach`` is a client: it connects its own input and output with those of the container. Clients and keeper
meet at the socket ``<name>.console`` in the private directory of the job.

A client that takes no output delays the container, as in Kubernetes, but not for longer than :data:`PATIENCE`.
"""

import errno
import fcntl
import os
import pty
import selectors
import signal
import socket
import struct
import sys
import termios
import time
import tty

INPUT, SIZE, END = range(3)
"""Frames of a client: data for the input, rows and columns of its terminal, the end of its input."""
HEAD = struct.Struct(">BH")
ROWS = struct.Struct(">HH")
PIECE = 16 * 1024
HELD = 64 * 1024
"""Bytes that are held for one client, or for the container, until the other side must wait."""
PATIENCE = 10.0
"""Seconds in which a client must take some output."""
PERIOD = 0.1
_AGAIN = (errno.EAGAIN, errno.EINTR)


class Client:
    """One client: what it has sent and has not been handled, and the output that it has not taken."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received, self.output = b"", bytearray()
        self.moved_at = time.monotonic()
        self.sends = False


class Keeper:
    """Holds the input and output of one run of a container. One thread; only the log, which takes all, may block."""

    def __init__(self, place: str, has_tty: bool, once: bool) -> None:
        self._place, self._has_tty, self._once = place, has_tty, once
        self._parent = os.getppid()
        self._input, self._is_open, self._is_ending = bytearray(), True, False
        self._clients = {}  # type: dict[int, Client]
        if has_tty:
            self._source, self._slave = pty.openpty()
            self._target = self._source
            with open(place + ".tty", "w") as file:
                file.write(os.ttyname(self._slave) + "\n")
        else:
            # to read and write: to open them does not wait, and the output has no end while a writer may still come
            self._target, self._source = (os.open(place + end, os.O_RDWR) for end in (".in", ".out"))
        for descriptor in (self._source, self._target):
            os.set_blocking(descriptor, False)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place + ".console")
        self._listener.listen(8)
        self._listener.setblocking(False)

    def run(self) -> None:
        """Serve until the process of the container has ended, and all of its output has been passed on."""
        is_over = False
        while True:
            ready = self._wait(PERIOD / 5 if is_over else PERIOD)
            if self._listener in ready:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._clients[sock.fileno()] = Client(sock)
            has_read = self._source in ready and self._pass_output()
            for client in list(self._clients.values()):
                self._serve(client, client.sock in ready)
            self._write_input()
            if is_over and not has_read and not any(client.output for client in self._clients.values()):
                return
            is_over = is_over or not self._lives()

    def _wait(self, seconds: float) -> "list[object]":
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            events = 0 if any(len(client.output) >= HELD for client in self._clients.values()) else selectors.EVENT_READ
            if self._input and self._is_open and self._target == self._source:
                events |= selectors.EVENT_WRITE
            elif self._input and self._is_open:
                selector.register(self._target, selectors.EVENT_WRITE)
            if events:
                selector.register(self._source, events)
            for client in self._clients.values():
                wanted = selectors.EVENT_READ if len(self._input) < HELD else 0
                wanted |= selectors.EVENT_WRITE if client.output else 0
                if wanted:
                    selector.register(client.sock, wanted)
            return [key.fileobj for key, _ in selector.select(seconds)]

    def _lives(self) -> bool:
        """Whether the process of the container has not started yet, or still runs."""
        try:
            with open(self._place + ".pid") as file:
                words = file.read().split()
        except FileNotFoundError:
            words = []
        if not words:
            return os.getppid() == self._parent
        try:
            with open("/proc/" + words[0] + "/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            return fields[0] != "Z" and fields[19] == words[1]
        except OSError:
            return False

    def _pass_output(self) -> bool:
        """Pass on a piece of output; return whether there was one."""
        try:
            data = os.read(self._source, PIECE)
        except OSError:
            return False
        left = data
        while left:
            left = left[os.write(1, left) :]
        for client in self._clients.values():
            if not client.output:
                client.moved_at = time.monotonic()
            client.output += data
        return bool(data)

    def _serve(self, client: Client, is_ready: bool) -> None:
        try:
            if client.output:
                sent = client.sock.send(client.output)
                del client.output[:sent]
                client.moved_at = time.monotonic()
            if is_ready:
                data = client.sock.recv(PIECE)
                if not data:
                    self._leave(client)
                    return
                client.received += data
                self._take(client)
        except OSError as error:
            if error.errno not in _AGAIN:
                self._leave(client)
                return
        if client.output and time.monotonic() - client.moved_at > PATIENCE:
            self._leave(client)

    def _take(self, client: Client) -> None:
        while len(client.received) >= HEAD.size:
            kind, length = HEAD.unpack_from(client.received)
            if len(client.received) < HEAD.size + length:
                return
            payload = client.received[HEAD.size : HEAD.size + length]
            client.received = client.received[HEAD.size + length :]
            if kind == INPUT:
                client.sends = True
                self._input += payload
            elif kind == SIZE and self._has_tty and length == ROWS.size:
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, struct.pack("HHHH", *ROWS.unpack(payload), 0, 0))
            elif kind == END:
                client.sends = True
                self._end_input(client)

    def _leave(self, client: Client) -> None:
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if client.sends:
            self._end_input(client)

    def _end_input(self, client: Client) -> None:
        """End the container's input, if it is open for one client only."""
        client.sends = False
        self._is_ending |= self._once and not self._has_tty

    def _write_input(self) -> None:
        try:
            while self._input and self._is_open:
                del self._input[: os.write(self._target, self._input[:PIECE])]
        except OSError as error:
            if error.errno not in _AGAIN:
                self._input.clear()
        if self._is_ending and self._is_open and not self._input:
            self._is_open = False
            os.close(self._target)


class Attached:
    """One client of a keeper: its own input and output. ``sends``: whether it passes its input on."""

    def __init__(self, place: str, sends: bool) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(place + ".console")
        self._sends = sends
        self._signals, self._wake = os.pipe()

    def watch_size(self) -> None:
        """Pass on the size of the own terminal, now and at each change."""
        # a handler could send in the middle of another frame: it only wakes the loop
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGWINCH, lambda *_: None)
        self.resize()

    def run(self) -> None:
        """Pass on data until the container ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            if self._sends:
                self._send(INPUT, b"")
                selector.register(0, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == self._signals:
                        os.read(self._signals, PIECE)
                        self.resize()
                        continue
                    if key.fileobj is self._sock:
                        data = self._sock.recv(PIECE)
                        if not data:
                            return
                        while data:
                            data = data[os.write(1, data) :]
                        continue
                    data = os.read(0, PIECE)
                    self._send(INPUT if data else END, data)
                    if not data:
                        selector.unregister(0)

    def resize(self) -> None:
        """Send the size of the own terminal."""
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2]
        if rows and columns:
            self._send(SIZE, ROWS.pack(rows, columns))

    def _send(self, kind: int, data: bytes) -> None:
        self._sock.sendall(HEAD.pack(kind, len(data)) + data)


def start(place: str, has_tty: bool, words: "list[str]") -> None:
    """Become a program that leads a session, with the input and output of a keeper."""
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(place + ".console"):
        if time.monotonic() > deadline:
            sys.exit("the keeper of stdin and tty has not started")
        time.sleep(0.02)
    os.setsid()
    if has_tty:
        with open(place + ".tty") as file:
            terminal = os.open(file.read().strip(), os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        ends = (terminal, terminal, terminal)
    else:
        output = os.open(place + ".out", os.O_WRONLY)
        ends = (os.open(place + ".in", os.O_RDONLY), output, output)
    for number, end in enumerate(ends):
        os.dup2(end, number)
    # a shell ignores SIGINT for what it runs in the background, and Python ignores others
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        sys.exit(words[0] + ": " + str(error.strerror))


def main(words: "list[str]") -> None:
    """Run ``keep PLACE TTY ONCE``, ``start PLACE TTY WORD...`` or ``attach PLACE SENDS``; an empty word means no."""
    if words[0] == "keep":
        Keeper(words[1], bool(words[2]), bool(words[3])).run()
        return
    if words[0] == "start":
        start(words[1], bool(words[2]), words[3:])
    try:
        client = Attached(words[1], bool(words[2]))
    except OSError:
        sys.exit("the container does not run, or has neither stdin nor tty")
    if os.isatty(0):
        tty.setraw(0, termios.TCSANOW)  # keeps what has arrived already
        client.watch_size()
    try:
        client.run()
    except OSError as error:
        sys.exit("the connection to the container has ended: " + str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
