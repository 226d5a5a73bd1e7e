"""Connects ``kubectl port-forward`` with ports of a pod: each pair of streams is one connection.

The client opens an error stream and a data stream for each connection, with the same ``requestID``. The calling thread
reads the frames of all; each connection has two threads, which send to the site and to the client. SPDY has no flow
control for a stream, so a connection holds :data:`MOST_INPUT` bytes of what the client has sent, and then delays the
other connections of the same client. A WebSocket has one connection for each port of the request, whose end the client
learns from that of the WebSocket.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.protocol.model.sessions import Connection
from bridge.serving.spdy import CANCEL, REFUSED_STREAM, Data, Open, Reset
from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.streaming import WRITE_TIMEOUT
from bridge.serving.upgrade import ProtocolViolationError
from bridge.serving.websocket_connection import WebSocketConnection
from bridge.telemetry.metrics import FORWARDED_CONNECTIONS, PORT_BYTES, PORT_CONNECTIONS
from controllers.kubelet.command_request import is_port

log = logging.getLogger(__name__)

_BY_CLIENT, _BY_PORT = "closed by the client", "reset by the port"
MOST_INPUT = 64 * 1024
MOST_CONNECTIONS = 1024
"""Connections of one server; a pod has an eighth of them at most."""
STREAMS = MOST_CONNECTIONS
"""Streams of one client that it has not ended: more than its connections may have."""
ERROR, DATA = "error", "data"
Connect = Callable[[int], Connection]
Enter = Callable[[], Callable[[], None]]


class PortForward:
    """The connections of one client to one pod.

    ``connect`` connects to a port. ``enter`` takes a share for a connection, and returns the function that releases it.
    ``about``: the pod, pool and user, for the log. ``most``: the connections that the client can open; 0: any number.
    """

    def __init__(
        self,
        client: SpdyConnection | WebSocketConnection,
        connect: Connect,
        enter: Enter,
        about: Mapping[str, str],
        uid: str,
        most: int = 0,
    ) -> None:
        self._most, self._ended = most, itertools.count(1)
        self._client, self._connect, self._enter = client, connect, enter
        self._about, self._uid = about, uid
        self._error_streams: dict[str, int] = {}
        self._connections: dict[int, ForwardedConnection] = {}
        self._over = threading.Event()

    def run(self) -> str:
        """Serve until the client ends the connection; return why it has ended, for the log."""
        end = "the client disconnected"
        try:
            for frame in self._client.frames():
                if isinstance(frame, Open):
                    self._open(frame)
                elif (connection := self._connections.get(frame.stream)) is not None:
                    connection.take(frame)
        except OSError as error:
            end = f"{end}: {error}"
        except ProtocolViolationError as error:
            end = f"the client violated the protocol: {error}"
        finally:
            self.close()
            self._client.abort()
        return end

    def close(self) -> None:
        """End all connections; any thread may call it."""
        self._over.set()
        for connection in list(self._connections.values()):
            connection.close()

    def _open(self, frame: Open) -> None:
        kind, request = frame.headers.get("streamtype", ""), frame.headers.get("requestid", "")
        port = frame.headers.get("port", "")
        # kubectl opens the error stream first
        is_first = (
            kind == ERROR
            and request != ""
            and request not in self._error_streams
            and len(self._error_streams) < STREAMS
        )
        if not is_port(port) or not (is_first or (kind == DATA and request in self._error_streams)):
            self._client.reset(frame.stream, REFUSED_STREAM)
            return
        self._client.accept(frame.stream)
        if is_first:
            self._error_streams[request] = frame.stream
            return
        connection = ForwardedConnection(
            self._client, self._error_streams.pop(request), frame.stream, int(port), self._about, self._uid
        )
        self._connections[frame.stream] = connection
        connection.start(self._connect, self._enter, lambda: self._forget(frame.stream))
        if self._over.is_set():
            connection.close()

    def _forget(self, stream: int) -> None:
        self._connections.pop(stream, None)
        if next(self._ended) == self._most:
            with suppress(OSError):
                self._client.end()
            if not self._over.wait(WRITE_TIMEOUT):
                self._client.abort()


class ForwardedConnection:
    """One connection: its streams, and the session at the site once it is open."""

    def __init__(
        self,
        client: SpdyConnection | WebSocketConnection,
        error: int,
        data: int,
        port: int,
        about: Mapping[str, str],
        uid: str,
    ) -> None:
        self._client, self._error, self._data, self._port = client, error, data, port
        self._about, self._uid = about, uid
        self._changed = threading.Condition()
        self._input: deque[bytes] = deque()
        self._held = self._received = self._sent = 0
        self._is_input_ended = self._is_over = self._is_given_up = False
        self._session: Connection | None = None

    def start(self, connect: Connect, enter: Enter, ended: Callable[[], object]) -> None:
        """Connect, on a thread of its own, which calls ``ended`` at its end."""
        threading.Thread(target=self._run, args=(connect, enter, ended), name="kubelet-forward", daemon=True).start()

    def take(self, frame: Data | Reset) -> None:
        """Accept what the client has sent; wait while too much is held."""
        if isinstance(frame, Reset):
            self.close()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._held < MOST_INPUT or self._is_over)
            if frame.data:
                self._input.append(frame.data)
                self._held += len(frame.data)
            self._is_input_ended |= frame.end
            self._changed.notify_all()

    def close(self) -> None:
        """End the connection for the client, which has reset it or is gone. Idempotent."""
        self._is_given_up = True
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            session = self._session
        if session is not None:
            session.close()

    def _run(self, connect: Connect, enter: Enter, ended: Callable[[], object]) -> None:
        begin, end = time.monotonic(), "an unexpected error"
        try:
            with ExitStack() as undo:
                try:
                    undo.callback(enter())
                    session = connect(self._port)
                except BridgeError:
                    PORT_CONNECTIONS.labels("refused").inc()
                    raise
                undo.callback(session.close)
                PORT_CONNECTIONS.labels("opened").inc()
                with FORWARDED_CONNECTIONS.track_inprogress():
                    end = self._forward(session)
        except BridgeError as error:
            end = _BY_CLIENT if self._is_given_up else str(error)
            if not self._is_given_up:
                self._fail(error)
        except OSError as error:
            end = f"the client disconnected: {error}"
        except Exception:
            log.exception("a forwarded connection broken off")
            self._client.abort()
        finally:
            self._end()
            ended()
            counts = kv(
                **self._about,
                port=self._port,
                seconds=round(time.monotonic() - begin, 3),
                bytes_in=self._sent,
                bytes_out=self._received,
                end=end,
            )
            log.info("forwarded connection ended", extra=counts)

    def _forward(self, session: Connection) -> str:
        with self._changed:
            self._session = session
            if self._is_over:
                return _BY_CLIENT
        sender = threading.Thread(target=self._send_input, args=(session,), name="kubelet-forward-input", daemon=True)
        sender.start()
        try:
            while data := session.receive():
                self._client.send(self._data, data)
                self._received += len(data)
                PORT_BYTES.labels("out").inc(len(data))
            if data is None:
                if self._is_given_up:
                    return _BY_CLIENT
                if self._client.ends_streams:
                    self._client.reset(self._data, CANCEL)
                    self._client.send(self._error, b"", end=True)
                else:
                    self._client.send(self._error, _BY_PORT.encode())
                return _BY_PORT
            # kubectl waits for the end of both streams before it ends its own direction
            self._client.send(self._data, b"", end=True)
            self._client.send(self._error, b"", end=True)
            if self._client.ends_streams:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_over or (self._is_input_ended and not self._input))
            return "closed by the port"
        finally:
            self._end()
            sender.join()

    def _send_input(self, session: Connection) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._input or self._is_input_ended or self._is_over)
                    if self._is_over:
                        return
                    data = self._input[0] if self._input else b""
                if not data:
                    session.end_input()
                    return
                session.send(data)
                self._sent += len(data)
                PORT_BYTES.labels("in").inc(len(data))
                with self._changed:
                    self._input.popleft()
                    self._held -= len(data)
                    self._changed.notify_all()
        except BridgeError as error:  # receive() raises too, and the client gets its error
            log.debug("input of a connection not sent", extra=kv(error=error))
            session.close()

    def _fail(self, error: BridgeError) -> None:
        """Send the error as a kubelet does."""
        pod = self._about["pod"]
        text = f"error forwarding port {self._port} to pod {pod}, uid {self._uid}: {error.with_hint}"
        try:
            self._client.send(self._error, text.encode(), end=True)
            self._client.send(self._data, b"", end=True)
        except OSError:
            log.debug("the client has disconnected before an error", extra=kv(error=error))
