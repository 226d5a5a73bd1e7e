"""nats-py's client, of which podbridge uses the handshake, the transports, the parser and the writer.

nats-py 2.16 has no public interface for four things that podbridge needs, so this module uses private names of it:

- messages that do not pass nats-py's queues, which drop messages (``_process_msg``, ``_sid``);
- several messages as one command that is written at once, after nats-py's own (``_transport``, ``_pending``,
  ``_pending_data_size``), with a header if the server accepts headers (``_server_info``);
- an error if a server of a ``tls://`` address offers no TLS (``_process_info``);
- an abort of a half-open connection (``_transport`` and the transports' own fields).

``tests/unit/protocol/nats/test_nats_client.py`` asserts that these names exist and behave as this module expects. The
release is pinned in ``pyproject.toml`` and ``requirements.lock``; before an upgrade, run these tests with the new
release.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import WebSocketTransport

log = logging.getLogger(__name__)

_NO_RESPONDERS = b"NATS/1.0 503"
_TRACEPARENT = re.compile(rb"\r\ntraceparent: ?([0-9a-f-]{55})\r\n", re.IGNORECASE)

Deliver = Callable[[str, bytes, str, bool, str], None]
"""Takes subject, data, reply subject, whether the server reports that the subject has no subscribers, and the value of
the header ``traceparent``, which is empty if there is none."""
Message = tuple[str, bytes, str, str]
"""Subject, data, reply subject and ``traceparent``; the last two may be empty."""


class DirectClient(Client):
    """A client that passes each message to its subscriber at once, without a queue.

    ``require_tls``: raise SecureConnWantedError if the server offers no TLS; nats-py would continue without encryption.
    """

    def __init__(self, *, require_tls: bool = False) -> None:
        super().__init__()
        self._require_tls = require_tls
        self.routes: dict[int, Deliver] = {}

    async def listen(self, subject: str, queue: str, deliver: Deliver) -> tuple[int, Subscription]:
        """Subscribe ``deliver``, which runs on the loop; return the number of its route and the subscription."""
        number = self._sid + 1  # subscribe() uses this number before it yields to another task
        self.routes[number] = deliver
        return number, await self.subscribe(subject, queue=queue)

    async def send(self, messages: Sequence[Message]) -> None:
        """Publish messages, all or none, as one command for the transport; wait while it accepts no more.

        Over WebSocket each command is a frame, a TLS record and a system call.
        """
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        parts: list[bytes] = []
        for subject, data, reply, traceparent in messages:
            # HPUB is an error for a server before 2.2, or with no_header_support
            if traceparent and self._server_info.get("headers"):
                header = f"NATS/1.0\r\ntraceparent: {traceparent}\r\n\r\n".encode()
                head = f"HPUB {subject} {reply} {len(header)} {len(header) + len(data)}\r\n".encode()
                parts += (head, header, data, b"\r\n")
            else:
                parts += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")
        # nats-py's own task for this costs one more turn of the loop
        transport: Any = self._transport
        transport.writelines([*self._pending, b"".join(parts)])
        self._pending, self._pending_data_size = [], 0
        await transport.drain()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        deliver = self.routes.get(sid)
        if deliver is None:
            return
        no_responders = not data and bool(headers) and headers.startswith(_NO_RESPONDERS)
        match = _TRACEPARENT.search(headers) if headers else None
        traceparent = match[1].decode() if match else ""
        try:
            deliver(
                subject.decode("utf-8", "replace"), data, reply.decode("utf-8", "replace"), no_responders, traceparent
            )
        except Exception:
            # an exception here would end nats-py's reader, and with it the connection
            log.exception("a message could not be delivered")

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._require_tls and not info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        # nats-py would add the addresses that servers of a cluster announce; only the configured ones are used
        await super()._process_info({**info, "connect_urls": []}, initial_connection)

    async def drop(self) -> None:
        """Abort the connection without a flush. ``close()`` waits forever on a half-open connection."""
        transport: Any = self._transport
        for name in ("_io_writer", "_bare_io_writer"):
            if (writer := getattr(transport, name, None)) is not None:
                writer.transport.abort()
        if (connection := getattr(getattr(transport, "_ws", None), "_conn", None)) is not None and connection.transport:
            connection.transport.abort()
        if isinstance(transport, WebSocketTransport) and transport._client is not None:
            await transport._client.close()
