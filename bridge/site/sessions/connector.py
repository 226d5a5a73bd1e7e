"""Connects to ports of a pod: a program that runs beside the job, on its machine, and serves many connections.

The submitter passes this file, after :mod:`bridge.site.sessions.pod_processes`, as one program to ``job.sh connector``,
which runs it with any Python from 3.6 on; it imports nothing else of podbridge. Frames go over its standard input and
output: see :mod:`bridge.site.sessions.connector_process`.

A machine has services of other users on 127.0.0.1. So it connects to a port only if each socket that would accept the
connection belongs to a process of the pod: see :class:`PodProcesses`. It looks before and after it connects, and sends
no byte before the second look.

Its arguments are "alone" if the pod has its batch job for itself, and for each container ``<pid>:<process>``: the first
word of its file ``run/<name>.pid``, and its process, if there is one on this machine.
"""

import errno
import glob
import os
import selectors
import socket
import struct
import sys
import time

from bridge.site.sessions.pod_processes import PodProcesses, acceptors, link

HEAD = struct.Struct(">BIH")
"""Kind of a frame, number of its connection, bytes that follow."""
OPEN, OPENED, DATA, END, CLOSE, CREDIT, PING, STALE = range(1, 9)
"""``OPEN`` has the port, ``CREDIT`` the bytes that its sender has passed on, ``CLOSE`` the reason (none: reset by the
peer), ``STALE`` refuses ``OPEN``: the containers are others than those at the start."""
NUMBER = struct.Struct(">I")
PIECE = 16 * 1024
WINDOW = 64 * 1024
"""Bytes of one direction of a connection that the other end has not passed on, at most."""
SILENCE = 60.0
"""Seconds without a frame after which the submitter is gone."""
ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Connection:
    """One connection to a port. ``to_send`` has what the submitter has sent, ``credit`` what it still accepts."""

    def __init__(self, number: int, port: int, sock: socket.socket, family: int, allowed: "set[int]") -> None:
        self.number, self.port, self.sock, self.family, self.allowed = number, port, sock, family, allowed
        self.is_open = self.has_received_all = self.is_input_ended = self.is_shut = False
        self.to_send = bytearray()
        self.credit = WINDOW

    @property
    def events(self) -> int:
        """Return what to wait for."""
        if not self.is_open:
            return selectors.EVENT_WRITE
        reads = selectors.EVENT_READ if self.credit > 0 and not self.has_received_all else 0
        return reads | (selectors.EVENT_WRITE if self.to_send else 0)


class Connector:
    """All connections. One thread; only its output to the submitter, which takes everything, may block."""

    def __init__(self, processes: PodProcesses, containers: "set[str]") -> None:
        self._processes, self._containers = processes, containers
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._connections = {}  # type: dict[int, Connection]
        self._received = b""

    def run(self) -> None:
        """Serve until the submitter ends the input or falls silent."""
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < SILENCE:
            for key, events in self._selector.select(SILENCE / 4):
                if key.fd == 0:
                    data = os.read(0, 2**16)
                    if not data:
                        return
                    heard_at = time.monotonic()
                    self._take(data)
                elif key.data.number in self._connections:
                    self._serve(key.data, events)

    def _take(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self._received)
            end = HEAD.size + length
            if len(self._received) < end:
                return
            payload, self._received = self._received[HEAD.size : end], self._received[end:]
            if kind == OPEN:
                self._open(number, NUMBER.unpack(payload)[0])
            elif kind == PING:
                _tell(PING, number)
            elif number in self._connections:
                self._continue(self._connections[number], kind, payload)

    def _continue(self, connection: Connection, kind: int, payload: bytes) -> None:
        if kind == CLOSE:
            self._forget(connection)
            return
        if kind == CREDIT:
            connection.credit += NUMBER.unpack(payload)[0]
        elif kind == DATA:
            connection.to_send += payload
        elif kind == END:
            connection.is_input_ended = True
        self._update(connection)

    # --- the begin ----------------------------------------------------------------------------------------------------
    def _open(self, number: int, port: int) -> None:
        if container_pids() != self._containers:
            _tell(STALE, number)
            return
        self._connect(number, port, 0)

    def _connect(self, number: int, port: int, attempt: int) -> None:
        """Begin to connect to the first address from ``attempt`` on at which the pod listens."""
        for index, (family, address) in list(enumerate(ADDRESSES))[attempt:]:
            allowed = acceptors(port, address)
            if not allowed or not self._processes.hold(allowed):
                continue
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            problem = sock.connect_ex((address, port))
            if problem in (0, errno.EINPROGRESS):
                self._connections[number] = connection = Connection(number, port, sock, index, allowed)
                self._selector.register(sock, connection.events, connection)
                return
            sock.close()
        _tell(CLOSE, number, b"connection refused: no process of the pod listens on port %d of localhost" % port)

    def _connected(self, connection: Connection) -> None:
        problem = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        now = acceptors(connection.port, ADDRESSES[connection.family][1])
        # the pod may have ended meanwhile, and another user may listen there
        if problem or not now or now - connection.allowed:
            self._forget(connection)
            self._connect(connection.number, connection.port, connection.family + 1)
            return
        connection.is_open = True
        _tell(OPENED, connection.number)
        self._update(connection)

    # --- data ---------------------------------------------------------------------------------------------------------
    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if not connection.is_open:
                self._connected(connection)
                return
            if events & selectors.EVENT_WRITE and connection.to_send:
                sent = connection.sock.send(connection.to_send)
                del connection.to_send[:sent]
                _tell(CREDIT, connection.number, NUMBER.pack(sent))
            if events & selectors.EVENT_READ:
                self._receive(connection)
            self._update(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._reset(connection)

    def _receive(self, connection: Connection) -> None:
        data = connection.sock.recv(min(PIECE, connection.credit))
        connection.credit -= len(data)
        if data:
            _tell(DATA, connection.number, data)
        else:
            connection.has_received_all = True
            _tell(END, connection.number)

    def _update(self, connection: Connection) -> None:
        """Pass on the end of the input, forget what is over, and wait for what is next."""
        if connection.is_open and connection.is_input_ended and not connection.to_send and not connection.is_shut:
            connection.is_shut = True
            try:
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._reset(connection)
                return
        if connection.is_shut and connection.has_received_all:
            self._forget(connection)
        elif connection.number in self._connections:
            self._wait_for(connection, connection.events)

    def _wait_for(self, connection: Connection, events: int) -> None:
        # a selector waits for at least one event
        is_registered = connection.sock in self._selector.get_map()
        if events and is_registered:
            self._selector.modify(connection.sock, events, connection)
        elif events:
            self._selector.register(connection.sock, events, connection)
        elif is_registered:
            self._selector.unregister(connection.sock)

    def _reset(self, connection: Connection) -> None:
        if connection.number in self._connections:
            _tell(CLOSE, connection.number)
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._wait_for(connection, 0)
        self._connections.pop(connection.number, None)
        connection.sock.close()


def container_pids() -> "set[str]":
    """Return the first words of the files ``run/*.pid`` that have one."""
    found = set()
    for path in glob.glob("run/*.pid"):
        try:
            with open(path) as file:
                found.add(file.read().partition(" ")[0].strip())
        except OSError:
            continue
    return found - {""}


def _tell(kind: int, number: int, payload: bytes = b"") -> None:
    frame = HEAD.pack(kind, number, len(payload)) + payload
    while frame:
        frame = frame[os.write(1, frame) :]


def enter_network(processes: PodProcesses) -> None:
    """Start again in the network namespace of the containers, if they have one of their own."""
    for pid in processes.pids():
        if link(f"/proc/{pid}/ns/net") not in ("", link("/proc/self/ns/net")):
            words = ["nsenter", f"--target={pid}", "--net"]
            if link(f"/proc/{pid}/ns/user") != link("/proc/self/ns/user"):
                words += ["--user", "--preserve-credentials"]
            with open("/proc/self/cmdline") as file:
                os.execvp(words[0], [*words, "--", *file.read().split("\0")[:-1]])  # noqa: S606


def main(arguments: "list[str]") -> None:
    """Run with the arguments of the module."""
    containers = [word.partition(":") for word in arguments[1:]]
    pids = [int(pid) for _, _, pid in containers if pid]
    if not pids:
        sys.exit("no container of the pod runs on this machine")
    processes = PodProcesses(pids, arguments[0] == "alone")
    enter_network(processes)
    Connector(processes, {first for first, _, _ in containers}).run()


if __name__ == "__main__":
    main(sys.argv[1:])
