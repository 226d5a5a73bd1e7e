"""What is used of nats-py's client: handshake, transports, parser and writer; not its queues, nor its reconnecting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import WebSocketTransport

log = logging.getLogger(__name__)

_NO_RESPONDERS = b"NATS/1.0 503"

Deliver = Callable[[str, bytes, str, bool], None]
"""Takes subject, data, reply subject, and whether it is the server's word that nobody listens."""


class DirectClient(Client):
    """nats-py's client; messages go straight to who wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[int, Deliver] = {}

    async def listen(self, subject: str, queue: str, deliver: Deliver) -> tuple[int, Subscription]:
        """Have ``deliver`` called on the loop with what comes; gives the number of the route, too."""
        number = self._sid + 1  # that subscribe() gives, before it yields to anybody
        self.routes[number] = deliver
        return number, await self.subscribe(subject, queue=queue)

    async def send(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        """Publish messages (subject, data, reply subject), all or none, as one command for the transport.

        Over WebSocket each command is a frame, a TLS record and a system call.
        """
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        parts: list[bytes] = []
        for subject, data, reply in messages:
            parts += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")
        command = b"".join(parts)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        deliver = self.routes.get(sid)
        if deliver is None:
            return
        nobody = not data and bool(headers) and headers.startswith(_NO_RESPONDERS)
        try:
            deliver(subject.decode("utf-8", "replace"), data, reply.decode("utf-8", "replace"), nobody)
        except Exception:
            log.exception("a message could not be delivered")

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py would go on in the clear
        if self._current_server and self._current_server.uri.scheme == "tls" and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        await super()._process_info({**info, "connect_urls": []}, initial_connection)

    async def drop(self) -> None:
        """Drop the connection without a word: a clean close waits for ever on one that is half-open."""
        transport: Any = self._transport
        for name in ("_io_writer", "_bare_io_writer"):
            if (writer := getattr(transport, name, None)) is not None:
                writer.transport.abort()
        if (connection := getattr(getattr(transport, "_ws", None), "_conn", None)) is not None and connection.transport:
            connection.transport.abort()
        if isinstance(transport, WebSocketTransport) and transport._client is not None:
            await transport._client.close()
