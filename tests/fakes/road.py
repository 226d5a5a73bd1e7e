"""A way to a server that can be cut, as by a firewall: packets go nowhere, and nobody is told so."""

from __future__ import annotations

import contextlib
import socket
import threading


class Road:
    """A way to a port of this machine. While it is cut, nothing arrives; connections from before are dead after it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: list[socket.socket] = []
        self._passable = threading.Event()
        self._passable.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._passable.clear()

    def mend(self) -> None:
        old, self._open = self._open, []
        self._passable.set()
        for end in old:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a close would wait for whoever reads

    def close(self) -> None:
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        while True:
            try:
                site = self._listener.accept()[0]
                self._passable.wait()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                continue
            self._open += [site, server]
            for one, other in ((site, server), (server, site)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                self._passable.wait()
                other.sendall(data)
        except OSError:  # closed by mend
            return
        self._passable.wait()  # that it was closed is told no sooner than anything else
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
