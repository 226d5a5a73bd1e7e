"""A TCP proxy that can drop all traffic silently, like a firewall: neither end is told."""

from __future__ import annotations

import contextlib
import socket
import threading


class BlackholeProxy:
    """Forwards connections on ``port`` to the port ``target`` of this machine.

    Between ``cut`` and ``mend`` no data arrives and connections stay open. ``mend`` closes the connections that were
    open during the cut.
    """

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
                end.shutdown(socket.SHUT_RDWR)  # close() would wait for the thread that reads

    def close(self) -> None:
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                self._passable.wait()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                continue
            self._open += [client, server]
            for source, destination in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, destination), daemon=True).start()

    def _forward(self, source: socket.socket, destination: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._passable.wait()
                destination.sendall(data)
        except OSError:  # closed by mend
            return
        self._passable.wait()  # a close is forwarded no earlier than data
        with contextlib.suppress(OSError):
            destination.shutdown(socket.SHUT_WR)
