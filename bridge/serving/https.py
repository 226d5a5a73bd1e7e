"""An HTTP(S) server for a WSGI application, based on cheroot.

The differences to cheroot, each with the failure that it prevents:

- cheroot performs TLS handshakes in the accepting thread and blocks a worker on each client, so a few slow clients
  block all others. Here no thread blocks on a client, and each stage of a connection has a deadline: see
  :mod:`bridge.serving.http_connection` and :mod:`bridge.serving.selector`.
- A new certificate is loaded into a new TLS context, which replaces the old one by one assignment. Loading it into the
  context in use would leave a moment with the new certificate and the old key. Open connections stay open.
- At a stop, the server finishes requests in progress and answers new ones for a short time, with
  ``Connection: close``.

If ``certificates`` has authorities of clients, the verified certificate of a client is in the WSGI environment under
:data:`~bridge.serving.http_connection.PEER_CERTIFICATE`, in DER. For long answers see :mod:`bridge.serving.streaming`.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cheroot.errors
import cheroot.ssl
import cheroot.wsgi

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.serving.certificates import Certificates
from bridge.serving.framing import HEADER_LIMIT
from bridge.serving.http_connection import ClosedError, Connection
from bridge.serving.selector import Connections
from bridge.serving.streaming import Gateway, Streams

log = logging.getLogger(__name__)

BODY_LIMIT = 64 * 2**10
"""Default maximum of a request's body in bytes: health, metrics and the kubelet API need no body."""
BACKLOG = 512
FINISH_TIMEOUT = 2.0
"""Seconds that a stopping server waits until a client accepts the next piece of an answer."""

WSGI = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Server:
    """Serves ``app`` at ``host:port`` with ``threads`` workers; plain HTTP if ``certificates`` is None.

    With ``unix``, it listens on this Unix domain socket instead, which only the user of the process can open. A request
    body larger than ``body_limit`` bytes is answered with 413.

    ``start`` binds the port and raises :class:`BridgeError` if that fails. ``run`` serves until ``stop`` is set, and
    then answers requests for at least ``drain`` more seconds, so that clients can connect to another replica.
    """

    def __init__(
        self,
        app: WSGI,
        host: str,
        port: int,
        *,
        threads: int = 8,
        certificates: Certificates | None = None,
        name: str = "http",
        drain: float = 0.5,
        streams: Streams | None = None,
        body_limit: int = BODY_LIMIT,
        unix: Path | None = None,
    ) -> None:
        self.name = name
        self._unix = unix
        self._drain = drain
        self._streams = streams
        self._server = _Server(
            (host, port) if unix is None else str(unix),
            app,
            numthreads=threads,
            max=threads,
            server_name="podbridge",
            request_queue_size=BACKLOG,
        )
        self._server.max_request_body_size = body_limit
        self._server.gateway = Gateway
        self._server.streams = streams
        if certificates is not None:
            adapter = _Adapter()
            self._server.ssl_adapter = adapter
            certificates.listen(adapter.use)

    @property
    def port(self) -> int:
        """The bound port, after :meth:`start`; 0 for a Unix domain socket."""
        return int(self._server.bind_addr[1]) if self._unix is None else 0

    def start(self) -> None:
        """Bind, listen and start the workers. The kernel queues connections until :meth:`run`."""
        failure: list[OSError] = []

        def prepare() -> None:
            try:
                self._server.prepare()
            except OSError as error:
                failure.append(error)

        # cheroot's workers are daemon threads only if a daemon thread starts them; others would keep a failed process
        # running
        thread = threading.Thread(target=prepare, name=f"{self.name}-prepare", daemon=True)
        thread.start()
        thread.join()
        if failure:
            raise BridgeError(f"the {self.name} server cannot listen on {self._server.bind_addr}: {failure[0]}")
        if self._streams is not None:
            self._streams.start()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; raises :class:`BridgeError` if the server ends by itself."""
        ended: list[BaseException | None] = []

        def serve() -> None:
            try:
                self._server.serve()
            except BaseException as error:
                ended.append(error)
            else:
                ended.append(None)

        thread = threading.Thread(target=serve, name=f"{self.name}-accept", daemon=True)
        thread.start()
        while not stop.wait(0.5):
            if not thread.is_alive():
                raise BridgeError(f"the {self.name} server ended: {ended[0] if ended else 'unknown reason'}")
            if self._streams is not None and not self._streams.watched:
                raise BridgeError(f"the thread of the {self.name} server that detects closed connections has ended")
        self.stop()
        thread.join(5)

    def stop(self) -> None:
        """Answer requests for ``drain`` seconds, then close all connections. A second call does nothing."""
        if not self._server.ready:
            return
        self._server.draining = True
        time.sleep(self._drain)
        if self._streams is not None:
            self._streams.end()
        self._server.stop()
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)
        log.info("server stopped", extra=kv(server=self.name))


class _Server(cheroot.wsgi.Server):
    ConnectionClass = Connection
    max_request_header_size = HEADER_LIMIT
    draining = False
    streams: Streams | None = None
    socket: Any
    _connections: Any

    def prepare(self) -> None:
        """Bind, listen, start the workers."""
        super().prepare()
        # cheroot's prepare() has made its own ConnectionManager
        self._connections.close()
        self._connections = Connections(self)

    def bind_unix_socket(self, bind_addr: str) -> Any:
        """Bind a socket with mode 0600; cheroot's own method lets every user connect.

        A file that a killed process has left is replaced. A socket that another process serves is an error.
        """
        if Path(bind_addr).is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(bind_addr) == 0:
                    raise OSError(errno.EADDRINUSE, "another process listens on this socket")
            Path(bind_addr).unlink()
        self.socket = socket.socket(socket.AF_UNIX)
        os.fchmod(self.socket.fileno(), 0o600)  # Linux creates the file with the mode of the unbound socket
        self.socket.bind(bind_addr)
        return self.socket

    def put_conn(self, conn: Any) -> None:
        """Return a connection to the selector, unless a separate thread uses it."""
        if conn.handed_over:
            return
        if not self.ready:
            with suppress(ClosedError):
                conn.finish(FINISH_TIMEOUT)
        super().put_conn(conn)

    def release(self, conn: Connection) -> None:
        """Uncount the memory of a closed connection."""
        self._connections.count(conn, 0)

    @property
    def can_add_keepalive_connection(self) -> bool:
        return not self.draining and bool(super().can_add_keepalive_connection)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        # messages below warning are about clients that disconnect
        log.log(level if level >= logging.WARNING else logging.DEBUG, "http server", extra=kv(text=msg.strip()))
        if traceback and level >= logging.WARNING:
            log.log(level, "http server failed", exc_info=True)


class _Adapter(cheroot.ssl.Adapter):
    """Wraps each new connection with the current TLS context."""

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None

    def use(self, context: ssl.SSLContext) -> None:
        self.context = context

    def bind(self, sock: Any) -> Any:
        return sock

    def wrap(self, sock: Any) -> tuple[Any, dict[str, Any]]:
        if self.context is None:
            raise cheroot.errors.FatalSSLAlert("no certificate yet")
        wrapped = self.context.wrap_socket(sock, do_handshake_on_connect=False, server_side=True)
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, Any]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        raise NotImplementedError
