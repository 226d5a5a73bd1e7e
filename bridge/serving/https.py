"""An HTTP(S) server for a WSGI application: cheroot, with what a webhook needs changed.

What is changed, and the failure that each change prevents:

- cheroot shakes hands in the thread that accepts: one client that connects and stays silent would stop every other
  one for 10 s. Here a connection waits in the selector until it has something to say, and a worker shakes hands.
- A new certificate is a new TLS context, swapped in one assignment: loading it into the context in use leaves a moment
  with the new certificate and no key. Connections that are open stay open.
- Idle connections are kept longer than the API server keeps its side (90 s): if the server is the one to close, a
  request that is just on its way is lost, and Go does not send a POST twice.
- Going down, it answers what is under way and what still arrives for a short while, with ``Connection: close``.

Where ``certificates`` names authorities of clients, the verified certificate of a client that shows one stands in the
WSGI environment under :data:`PEER_CERTIFICATE`, in DER. Long answers: see :mod:`bridge.serving.streaming`.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import cheroot.connections
import cheroot.errors
import cheroot.server
import cheroot.ssl
import cheroot.wsgi
from cheroot.makefile import MakeFile

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.serving.certificates import Certificates, ServerContext
from bridge.serving.streaming import Gateway, Request, Streams

log = logging.getLogger(__name__)

BODY_LIMIT = 8 * 2**20
"""Bytes of a request's body; the API server's own limit for an object is 3 MiB, and a review holds two."""
HEADER_LIMIT = 64 * 2**10
READ_TIMEOUT = 10.0
HANDSHAKE_TIMEOUT = 5.0
IDLE_TIMEOUT = 120
BACKLOG = 512
PEER_CERTIFICATE = "podbridge.peer_certificate"
"""Key in the WSGI environment; no header of a request can have that name."""

WSGI = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Server:
    """Serves ``app`` at ``host:port`` with ``threads`` workers; plain HTTP when ``certificates`` is None.

    ``start`` binds and raises :class:`BridgeError` when that fails; ``run`` serves until ``stop`` is set, then drains:
    for ``drain`` seconds at least it goes on answering while clients move elsewhere.
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
    ) -> None:
        self.name = name
        self._drain = drain
        self._streams = streams
        self._server = _Server(
            (host, port),
            app,
            numthreads=threads,
            max=threads,
            server_name="podbridge",
            request_queue_size=BACKLOG,
            timeout=IDLE_TIMEOUT,
        )
        self._server.gateway = Gateway
        self._server.streams = streams
        if certificates is not None:
            adapter = _Adapter()
            self._server.ssl_adapter = adapter
            certificates.listen(adapter.use)

    @property
    def port(self) -> int:
        """The port bound, after :meth:`start`."""
        return int(self._server.bind_addr[1])

    def start(self) -> None:
        """Bind, listen and start the workers: connections wait in the kernel until :meth:`run`."""
        failure: list[OSError] = []

        def prepare() -> None:
            try:
                self._server.prepare()
            except OSError as error:
                failure.append(error)

        # cheroot's workers are daemons only if the thread that starts them is one; else a process that fails elsewhere
        # could not end
        thread = threading.Thread(target=prepare, name=f"{self.name}-prepare", daemon=True)
        thread.start()
        thread.join()
        if failure:
            raise BridgeError(f"the {self.name} server can't listen on {self._server.bind_addr}: {failure[0]}")
        if self._streams is not None:
            self._streams.start()

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; raises when the server ends by itself."""
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
                raise BridgeError(f"the {self.name} server ended: {ended[0] if ended else 'no reason given'}")
            if self._streams is not None and not self._streams.watched:
                raise BridgeError(f"the {self.name} server no longer notices clients that hang up")
        self.stop()
        thread.join(5)

    def stop(self) -> None:
        """Answer what comes for a while, then close; safe to call again."""
        if not self._server.ready:
            return
        self._server.draining = True
        time.sleep(self._drain)
        if self._streams is not None:
            self._streams.end()
        self._server.stop()
        log.info("server stopped", extra=kv(server=self.name))


class _Connection(cheroot.server.HTTPConnection):
    """A connection whose handshake is done by the worker that reads its first request."""

    RequestHandlerClass = Request
    shaken = False
    handed_over = False

    def communicate(self) -> bool:
        if isinstance(self.socket, ssl.SSLSocket) and not self._secured(self.socket):
            return False
        self.socket.settimeout(READ_TIMEOUT)
        keep = bool(super().communicate())  # type: ignore[no-untyped-call]
        return keep or self.handed_over

    def _secured(self, sock: ssl.SSLSocket) -> bool:
        if self.shaken:
            # who was trusted then may not be now; a client asks again on a new connection when an idle one is closed
            return _clients(sock.context) == _clients(self.server.ssl_adapter.context)
        sock.settimeout(HANDSHAKE_TIMEOUT)
        try:
            sock.do_handshake()
        except OSError as error:
            log.debug("handshake failed", extra=kv(peer=self.remote_addr, error=error))
            return False
        self.shaken = True
        if sock.context.verify_mode != ssl.CERT_NONE and (certificate := sock.getpeercert(binary_form=True)):
            self.ssl_env = {**(self.ssl_env or {}), PEER_CERTIFICATE: certificate}
        return True


class _Server(cheroot.wsgi.Server):
    ConnectionClass = _Connection
    max_request_body_size = BODY_LIMIT
    max_request_header_size = HEADER_LIMIT
    keep_alive_conn_limit = 1000
    draining = False
    streams: Streams | None = None
    _connections: Any

    def process_conn(self, conn: Any) -> None:
        """Give a connection to a worker once it has something to say."""
        if conn.last_used is None:
            self._connections.put(conn)  # a new one: this sets last_used
        else:
            super().process_conn(conn)

    def put_conn(self, conn: Any) -> None:
        """Keep a connection for its next request, unless a thread of its own has it."""
        if not conn.handed_over:
            super().put_conn(conn)

    @property
    def can_add_keepalive_connection(self) -> bool:
        return not self.draining and bool(super().can_add_keepalive_connection)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        # below warning it tells of clients that went away: noise on a healthy server
        log.log(level if level >= logging.WARNING else logging.DEBUG, "http server", extra=kv(text=msg.strip()))
        if traceback and level >= logging.WARNING:
            log.log(level, "http server failed", exc_info=True)


class _Adapter(cheroot.ssl.Adapter):
    """TLS by the context in force when the connection comes in."""

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None

    def use(self, context: ssl.SSLContext) -> None:
        self.context = context

    def bind(self, sock: Any) -> Any:
        return sock

    def wrap(self, sock: Any) -> tuple[Any, dict[str, Any]]:
        if self.context is None:
            sock.close()
            raise cheroot.errors.FatalSSLAlert("no certificate yet")
        wrapped = self.context.wrap_socket(sock, do_handshake_on_connect=False, server_side=True)
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, Any]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        return MakeFile(sock, mode, bufsize)


def _clients(context: ssl.SSLContext | None) -> bytes:
    return context.clients if isinstance(context, ServerContext) else b""
