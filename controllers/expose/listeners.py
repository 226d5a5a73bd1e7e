"""The listening sockets for the exposed ports of pods, and the thread that accepts their connections."""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.shares import Shares
from bridge.errors import ShareExceededError
from bridge.logs import kv
from bridge.telemetry.metrics import EXPOSED_PORTS
from bridge.workload import pods, services
from controllers.expose.expose_decide import ListenerKey

log = logging.getLogger(__name__)

REST = 60.0
"""Seconds until another pod gets a closed port: nodes may still send connections there."""
BACKLOG = 128
POLL = 0.5
PAUSE = 0.1
"""Seconds between two attempts while the process has no more file descriptors."""
_CROWDED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """What a listener leads to."""

    namespace: str
    name: str
    uid: str
    port: int


Accepted = Callable[[socket.socket, Target], None]


class Listeners:
    """The listeners. One thread calls :meth:`update`, another one :meth:`run`.

    They listen on all addresses of the family of ``address``, on the ports ``numbers``. ``accepted`` gets each
    connection, and must not wait.
    """

    def __init__(self, address: str, numbers: range, accepted: Accepted, clock: Clock = SYSTEM_CLOCK) -> None:
        self._family, self._host = (socket.AF_INET6, "::") if ":" in address else (socket.AF_INET, "0.0.0.0")  # noqa: S104
        self._numbers, self._accepted, self._clock = numbers, accepted, clock
        self._shares = Shares(len(numbers), "exposed ports", "namespace", "pod", of_member=services.MOST_EXPOSED)
        self._next = 0
        self._closed_at: dict[int, float] = {}
        self._open: dict[ListenerKey, tuple[socket.socket, Callable[[], None]]] = {}
        self._lock = threading.Lock()
        """Guards the next one, which both threads use."""
        self._targets: dict[int, tuple[socket.socket, Target]] = {}
        self._poll = select.epoll()

    def ports(self) -> dict[ListenerKey, int]:
        """Return the port of each listener."""
        return {key: number_of(sock) for key, (sock, _) in self._open.items()}

    def update(
        self, wanted: Iterable[tuple[ListenerKey, Pod]], taken: frozenset[int] = frozenset()
    ) -> list[tuple[Pod, str]]:
        """Open the missing listeners and close the others; return the pods for which this is not possible, and why.

        ``taken``: ports that no new listener may have.
        """
        pods_by_key = dict(wanted)
        for key in self._open.keys() - pods_by_key.keys():
            self._close(key)
        problems = []
        for key in sorted(pods_by_key.keys() - self._open.keys()):
            try:
                self._add(key, pods_by_key[key], taken)
            except ShareExceededError as error:
                problems.append((pods_by_key[key], f"port {key[1]} is not exposed: {error.with_hint}"))
        EXPOSED_PORTS.set(len(self._open))
        return problems

    def run(self, stopping: threading.Event) -> None:
        """Accept connections until the process stops."""
        while not stopping.is_set():
            for descriptor, _ in self._poll.poll(POLL):
                with self._lock:
                    listener = self._targets.get(descriptor)
                if listener is not None:
                    self._accept(*listener, stopping)

    def close(self) -> None:
        """Close all listeners."""
        for key in list(self._open):
            self._close(key)

    def _accept(self, sock: socket.socket, target: Target, stopping: threading.Event) -> None:
        try:
            client = sock.accept()[0]
        except OSError as error:
            if error.errno in _CROWDED:
                log.warning("connection not accepted", extra=kv(pod=f"{target.namespace}/{target.name}", error=error))
                stopping.wait(PAUSE)
            return  # else the client or the listener is gone
        client.setblocking(True)
        self._accepted(client, target)

    def _add(self, key: ListenerKey, pod: Pod, taken: frozenset[int]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        with self._shares.unless_it_fails(namespace, pods.uid(pod)) as leave:
            sock = self._listen(taken)
        self._open[key] = sock, leave
        with self._lock:
            self._targets[sock.fileno()] = sock, Target(namespace, name, *key)
        self._poll.register(sock, select.EPOLLIN)

    def _listen(self, taken: frozenset[int]) -> socket.socket:
        """Listen on the next free port. In turn, so that a closed one rests as long as possible."""
        now, count = self._clock.monotonic(), len(self._numbers)
        for offset in range(count):
            number = self._numbers[(self._next + offset) % count]
            if number in taken or now - self._closed_at.get(number, -REST) < REST:
                continue
            sock = socket.socket(self._family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((self._host, number))
                sock.listen(BACKLOG)
            except OSError as error:
                sock.close()
                log.debug("port in use", extra=kv(port=number, error=error))
                continue
            sock.setblocking(False)
            self._next = (self._next + offset + 1) % count
            return sock
        raise ShareExceededError("all ports of pools.expose.ports are in use")

    def _close(self, key: ListenerKey) -> None:
        sock, leave = self._open.pop(key)
        self._closed_at[number_of(sock)] = self._clock.monotonic()
        self._poll.unregister(sock)
        with self._lock:
            del self._targets[sock.fileno()]
        sock.close()
        leave()


def number_of(sock: socket.socket) -> int:
    """Return the port of a listening socket."""
    return int(sock.getsockname()[1])
