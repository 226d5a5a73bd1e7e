"""A server whose answers are bytes that a test sends, over TCP or a unix socket."""

import contextlib
import socket
import threading


class RawServer:
    """Calls ``answer`` with the connection after each HTTP request; the client closes the connection.

    ``requests`` has the head and the body of each. ``asked`` is set at the first request, and ``hung_up`` when a client
    has closed its connection. ``path``: that of a unix socket.
    """

    def __init__(self, answer=lambda connection: None, path=None):
        self.answer, self.requests, self.connections = answer, [], 0
        self.asked, self.hung_up = threading.Event(), threading.Event()
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"unix://{path}" if path else f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as file:
            head, size = b"", 0
            while line := file.readline():
                head += line
                if line.lower().startswith(b"content-length:"):
                    size = int(line[15:])
                if line == b"\r\n":
                    self.requests.append((head + file.read(size)).decode())
                    self.asked.set()
                    self.answer(connection)
                    head, size = b"", 0
        self.hung_up.set()
