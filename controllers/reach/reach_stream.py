"""The stream of one pod's connections to Services, which the site opens one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bridge.errors import BridgeError
from bridge.protocol.model.sessions import STDOUT, Exit, Session
from bridge.relay import multiplexer, reacher
from bridge.relay.relayed import RelayedConnection

MOST = 2 * reacher.MOST
"""Connections of one stream: the site has half as many, but forgets some earlier."""
_LONGEST_ERROR = 1000
Accepted = Callable[[str, RelayedConnection], None]


class ReachStream:
    """Implements :class:`bridge.relay.relayed.Stream` over a session.

    ``accepted`` gets each connection with its target, and must not wait: the site may wait until this end reads.
    """

    def __init__(self, session: Session, accepted: Accepted) -> None:
        self._session, self._accepted = session, accepted
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._connections: dict[int, RelayedConnection] = {}

    def run(self) -> str:
        """Serve until the end of the stream; return why it has ended, for the log."""
        received, errors, end = b"", b"", "closed"
        try:
            while True:
                output = self._session.receive()
                if isinstance(output, Exit):
                    text = errors.decode("utf-8", "replace").strip().replace("\n", "; ")
                    return text or f"the site's end has ended with code {output.code}"
                if output.channel != STDOUT:
                    errors = (errors + output.data)[-_LONGEST_ERROR:]
                    continue
                complete, received = multiplexer.frames(received + output.data)
                is_valid = all(self._take(*frame) for frame in complete)
                if not is_valid or len(received) > multiplexer.HEAD.size + multiplexer.PIECE:
                    return "the site violates the protocol"
        except BridgeError as error:
            end = str(error)
        finally:
            self.close()
        return end

    def close(self) -> None:
        """End the stream and its connections. Idempotent; any thread may call it."""
        self._session.close()
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.closed("the stream of the pod has ended")

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame, unless the stream has ended."""
        with self._writing:
            self._session.send(multiplexer.HEAD.pack(kind, number, len(payload)) + payload)

    def forget(self, number: int) -> None:
        """Remove a connection that is closed."""
        with self._lock:
            self._connections.pop(number, None)

    def _take(self, kind: int, number: int, payload: bytes) -> bool:
        """Handle a frame; return whether it keeps to the protocol."""
        connection = self._connections.get(number)
        if kind != multiplexer.OPEN:
            return connection is None or connection.handle(kind, payload)
        if connection is not None or len(self._connections) >= MOST:
            return False
        connection = RelayedConnection(self, number)
        with self._lock:
            self._connections[number] = connection
        self._accepted(payload.decode("utf-8", "replace"), connection)
        return True
