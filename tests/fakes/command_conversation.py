"""A command of one client over a pair of sockets, with a session in memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.upgrade import Duplex
from bridge.serving.websocket_connection import WebSocketConnection
from controllers.kubelet.remote_command import RemoteCommand
from tests.fakes.memory_session import MemorySession
from tests.fakes.spdy_client import SpdyClient
from tests.fakes.websocket_client import WebSocketClient

Client = TypeVar("Client", SpdyClient, WebSocketClient)


class CommandConversation(Generic[Client]):
    """``client`` is the client; ``end`` is what the command has returned."""

    def __init__(
        self,
        client: Callable[[socket.socket], Client],
        connection: Callable[[Duplex], SpdyConnection | WebSocketConnection],
        streams: frozenset[str],
    ) -> None:
        self.session = MemorySession()
        self.bytes_in = self.bytes_out = 0
        self.end = ""
        self._ours, theirs = socket.socketpair()
        theirs.settimeout(10)
        self.client = client(theirs)
        served = connection(Duplex(self._ours, b"", 60.0))
        self.command = RemoteCommand(served, self.session, streams, self._received, self._sent)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.end = self.command.run()
        self._ours.close()

    def _received(self, count: int) -> None:
        self.bytes_in += count

    def _sent(self, count: int) -> None:
        self.bytes_out += count

    def close(self) -> None:
        """Disconnect the client, and check that the session has ended."""
        self.client.sock.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        assert self.session.closed
