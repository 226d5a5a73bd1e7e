"""A server that hands its connections to a function of the test, over TCP or a unix socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class SocketServer:
    """Calls ``talk`` with each connection, in a thread of its own, and then closes the connection.

    ``accepted`` are all connections; ``closing`` is set at the end. ``path``: that of a unix socket.
    """

    def __init__(self, talk: Callable[[socket.socket], object], path: Path | None = None) -> None:
        self._talk, self.accepted, self.closing = talk, list[socket.socket](), threading.Event()
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self._listener.listen(200)
        self.port = 0 if path else int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more connections."""
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.accepted.append(self._listener.accept()[0])
                threading.Thread(target=self._serve, args=self.accepted[-1:], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._talk(connection)
