"""Connects to ports of a pod: a program that runs beside the job, on its machine, and serves many connections.

The submitter passes this file, after the modules that it imports, as one program to ``job.sh connector``, which runs
it with any Python from 3.6 on. Frames go over its standard input and output: see
:mod:`bridge.site.sessions.connector_process`.

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
import sys
import time

from bridge.relay.multiplexer import CLOSE, NUMBER, OPEN, OPENED, SILENCE, STALE, Multiplexer, RelayedSocket
from bridge.relay.pod_processes import PodProcesses, acceptors, link

ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortConnection(RelayedSocket):
    """One connection to a port. ``allowed``: the sockets of the pod that may accept it, by their inodes."""

    def __init__(self, number: int, port: int, sock: socket.socket, family: int, allowed: "set[int]") -> None:
        super().__init__(number, sock)
        self.port, self.family, self.allowed = port, family, allowed


class Connector(Multiplexer):
    """The connections to ports of one pod."""

    def __init__(self, processes: PodProcesses, containers: "set[str]") -> None:
        super().__init__()
        self._processes, self._containers = processes, containers
        self.selector.register(0, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the submitter ends the input or falls silent."""
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < SILENCE:
            for key, events in self.selector.select(SILENCE / 4):
                if key.fd == 0:
                    data = os.read(0, 2**16)
                    if not data:
                        return
                    heard_at = time.monotonic()
                    self.take(data)
                elif key.data.number in self.connections:
                    self.serve(key.data, events)

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame."""
        if kind == OPEN:
            self._open(number, NUMBER.unpack(payload)[0])
        else:
            super().handle(kind, number, payload)

    def serve(self, connection: RelayedSocket, events: int) -> None:
        """Pass on data of a connection, which may be open or not."""
        if not connection.is_open and isinstance(connection, PortConnection):
            self._connected(connection)
        else:
            super().serve(connection, events)

    def _open(self, number: int, port: int) -> None:
        if container_pids() != self._containers:
            self.tell(STALE, number)
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
                self.connections[number] = connection = PortConnection(number, port, sock, index, allowed)
                self.selector.register(sock, connection.events, connection)
                return
            sock.close()
        self.tell(CLOSE, number, b"connection refused: no process of the pod listens on port %d of localhost" % port)

    def _connected(self, connection: PortConnection) -> None:
        problem = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        now = acceptors(connection.port, ADDRESSES[connection.family][1])
        # the pod may have ended meanwhile, and another user may listen there
        if problem or not now or now - connection.allowed:
            self.forget(connection)
            self._connect(connection.number, connection.port, connection.family + 1)
            return
        self.tell(OPENED, connection.number)
        self.opened(connection)


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
