"""A server whose answers are bytes that a test sends, over TCP or a unix socket."""

import threading

from tests.fakes.socket_server import SocketServer


class RawServer(SocketServer):
    """Calls ``answer`` with the connection after each HTTP request; the client closes the connection.

    ``requests`` has the head and the body of each. ``asked`` is set at the first request, and ``hung_up`` when a client
    has closed its connection. ``path``: that of a unix socket.
    """

    def __init__(self, answer=lambda connection: None, path=None):
        self.answer, self.requests = answer, []
        self.asked, self.hung_up = threading.Event(), threading.Event()
        super().__init__(self._talk_http, path)
        self.url = f"unix://{path}" if path else f"http://127.0.0.1:{self.port}"

    def _talk_http(self, connection):
        try:
            with connection.makefile("rb") as file:
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
        finally:
            connection.close()
            self.hung_up.set()
