"""One connection to a NATS server, from its handshake to its end. It does not reconnect.

The reconnect of nats-py is not used: it sends the messages that were in its buffer when the connection broke, keeps the
first credentials, stops after some errors, and can hang while it closes a half-open connection. Its queues drop
messages, and one malformed header ends its reader. This module uses nats-py's handshake, transports, parser and writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import re
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.subscription import Subscription as NatsSubscription

from bridge.errors import SiteDownError, SiteTooLargeError, SiteUnknownOutcomeError
from bridge.logs import kv
from bridge.protocol.nats.nats_client import DirectClient
from bridge.protocol.nats.subscription import Respond, Route, TracedRespond
from bridge.telemetry import tracing

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
PING_INTERVAL = 10
PINGS_OUTSTANDING = 2
MOST_BUFFERED = 64 * 1024 * 1024
"""Bytes to be sent, at most; further messages are refused."""
_CLOSE_TIMEOUT = 2.0
_TURN = 64 * 1024
"""Bytes to send before the loop runs other tasks, approximately."""
_SUBJECT = re.compile(r"\S+")

_Answer = queue.SimpleQueue[bytes | Exception]
"""Holds one answer or error; a second one is ignored. A future would cost ten times as much."""


@dataclass(eq=False, slots=True)
class _Outgoing:
    subject: str
    data: bytes
    reply: str = ""
    answer: _Answer | None = None
    traceparent: str = ""


_Change = tuple[Callable[[Route], Awaitable[None]], Route]
"""A function that subscribes or unsubscribes, and its route."""


class Session:
    """A connection. Coroutines run on the loop. ``send``, ``request``, ``add`` and ``remove`` are thread-safe.

    ``options``: name, credentials and TLS, as nats-py's ``connect`` takes them.
    """

    def __init__(self, server: str, options: Mapping[str, Any], inbox_prefix: str) -> None:
        self._server, self._options = server, options
        self._client = DirectClient(require_tls=urlsplit(server).scheme == "tls")
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._failed: asyncio.Future[Exception] = self._loop.create_future()
        self._wake_up = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._outbox: deque[_Outgoing | _Change] = deque()
        self._unsent = 0
        self._is_wake_up_scheduled = False
        self._lock = threading.Lock()
        self._ended = False
        self._listening: dict[Route, tuple[int, NatsSubscription]] = {}
        self._draining: set[asyncio.Task[None]] = set()
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(12)}"
        self._inbox_route = Route(f"{self._inbox}.*", "", _ignore)
        self._is_inbox_subscribed = False
        self._tokens = itertools.count()
        self._waiting: dict[str, _Answer] = {}
        self.refused: str | None = None
        self.max_payload = 0

    # --- on the loop --------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Connect; raise the first error."""
        connecting = asyncio.ensure_future(
            self._client.connect(
                servers=[self._server],
                allow_reconnect=False,
                max_reconnect_attempts=-1,
                reconnect_time_wait=3600,  # one attempt: the first error ends it
                connect_timeout=int(CONNECT_TIMEOUT),
                # with a limit of nats-py, send() would wait for the transport; MOST_BUFFERED limits what waits
                pending_size=-1,
                ping_interval=PING_INTERVAL,
                max_outstanding_pings=PINGS_OUTSTANDING,
                **self._options,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                disconnected_cb=self._on_closed,
            )
        )
        outcomes: set[asyncio.Future[Any]] = {connecting, self._failed}
        await asyncio.wait(outcomes, timeout=CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await connecting
            raise self._failed.result() if self._failed.done() else TimeoutError("no answer to the handshake")
        connecting.result()
        self.max_payload = self._client.max_payload
        self._sender = asyncio.create_task(self._send())

    async def listen(self, routes: list[Route]) -> None:
        """Subscribe to these routes; return when the server has processed this."""
        for route in routes:
            await self._listen(route)
        await self._client.flush(int(CONNECT_TIMEOUT))

    def listening(self) -> set[Route]:
        """Return the routes that are subscribed, without that of the answers."""
        return self._listening.keys() - {self._inbox_route}

    async def wait_over(self, seconds: float) -> bool:
        """Wait for the end of the connection for ``seconds`` seconds; return whether it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
        return self._closed.is_set() or not self._client.is_connected

    async def close(self, *, flush: bool = False) -> None:
        """Close the connection within a few seconds. All pending requests fail."""
        if flush and self._client.is_connected:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._drain_outbox(), _CLOSE_TIMEOUT)
                await self._client.flush(int(_CLOSE_TIMEOUT))
        with self._lock:
            self._ended = True
            outbox, self._outbox = self._outbox, deque()
        # first what was certainly not sent; every other pending request may have arrived
        for item in outbox:
            if isinstance(item, _Outgoing) and item.answer is not None:
                self._waiting.pop(item.reply, None)
                item.answer.put(SiteDownError("the connection to the NATS server broke before the request was sent"))
        for answer in list(self._waiting.values()):
            answer.put(SiteUnknownOutcomeError("the connection to the NATS server broke before the answer came"))
        self._waiting.clear()
        if self._sender is not None:
            self._sender.cancel()
        try:
            await asyncio.wait_for(self._client.close(), _CLOSE_TIMEOUT)
        except Exception as error:
            log.debug("the connection did not close cleanly", extra=kv(error=repr(error)))
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._client.drop(), _CLOSE_TIMEOUT)

    async def _on_error(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_result(error)
        if isinstance(error, nats.errors.UnexpectedEOF | OSError):
            self._closed.set()
        elif "permissions violation" in str(error):
            if "subscription" in str(error):
                self.refused = str(error).removeprefix("nats: ")
            log.error("the nats server refuses a subject", extra=kv(error=error))

    async def _on_closed(self) -> None:
        self._closed.set()

    async def _listen(self, route: Route) -> None:
        if route not in self._listening:

            def deliver(subject: str, data: bytes, reply: str, no_responders: bool, traceparent: str) -> None:
                # the answer must use the connection of the request: only that one has the permission to answer
                respond: Respond | None = partial(self.send, reply) if reply else None
                if traceparent and respond is not None:
                    respond = TracedRespond(respond, traceparent)
                route.deliver(subject, data, respond)

            is_inbox = route is self._inbox_route
            receive = self._on_answer if is_inbox else deliver
            self._listening[route] = await self._client.listen(route.subject, route.queue, receive)

    async def _unlisten(self, route: Route) -> None:
        number, subscription = self._listening.pop(route, (0, None))
        if subscription is not None:
            self._client.routes.pop(number, None)
            await subscription.unsubscribe()

    async def _drain(self, route: Route) -> None:
        number, subscription = self._listening.pop(route, (0, None))
        if subscription is not None:
            task = asyncio.create_task(self._finish_drain(number, subscription))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
            await asyncio.sleep(0)  # the task sends UNSUB before any later message

    async def _finish_drain(self, number: int, subscription: NatsSubscription) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # the connection has ended
            await subscription.drain()  # type: ignore[no-untyped-call]
        self._client.routes.pop(number, None)

    async def _send(self) -> None:
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            # before the outbox is read: a message that is added from now on wakes this task again
            with self._lock:
                self._is_wake_up_scheduled = False
            await self._drain_outbox()

    async def _drain_outbox(self) -> None:
        while self._outbox:
            change = self._outbox[0]
            if isinstance(change, tuple):
                self._outbox.popleft()
                try:
                    await change[0](change[1])
                except Exception as error:
                    log.warning("not sent", extra=kv(error=repr(error)))
            elif messages := self._next_messages():
                try:
                    await self._client.send(
                        [(item.subject, item.data, item.reply, item.traceparent) for item in messages]
                    )
                except Exception as error:
                    for item in messages:
                        self._report_unsent(item, error)
            if self._outbox:
                await asyncio.sleep(0)

    def _next_messages(self) -> list[_Outgoing]:
        """Remove and return the messages to send at once: those before the next change of subscriptions."""
        messages: list[_Outgoing] = []
        size = 0
        while self._outbox and size < _TURN and isinstance(item := self._outbox[0], _Outgoing):
            self._outbox.popleft()
            if item.answer is None or item.reply in self._waiting:  # otherwise its request has timed out
                messages.append(item)
                size += len(item.data)
            with self._lock:
                self._unsent -= len(item.data)
        return messages

    def _report_unsent(self, item: _Outgoing, error: Exception) -> None:
        if item.answer is None:
            log.warning("not sent", extra=kv(error=repr(error)))
            return
        self._waiting.pop(item.reply, None)
        # nats-py raises its own errors before it accepts the message
        was_not_sent = isinstance(error, nats.errors.Error)
        item.answer.put((SiteDownError if was_not_sent else SiteUnknownOutcomeError)(f"not sent: {error}"))

    def _on_answer(self, subject: str, data: bytes, reply: str, no_responders: bool, traceparent: str) -> None:
        answer = self._waiting.pop(subject, None)
        if answer is not None:
            answer.put(SiteDownError("no submitter of the site is connected") if no_responders else data)

    # --- thread-safe --------------------------------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        """Whether the connection has no known failure."""
        return not self._ended and self._client.is_connected

    def add(self, route: Route) -> None:
        """Subscribe to one more route, before any later message is sent."""
        self._enqueue((self._listen, route))

    def remove(self, route: Route, *, drain: bool = False) -> None:
        """Unsubscribe from a route. ``drain``: deliver messages that the server sends before it has processed this."""
        self._enqueue((self._drain if drain else self._unlisten, route))

    def send(self, subject: str, *messages: bytes) -> None:
        """Publish messages at once; raise if they cannot be sent."""
        for data in messages:
            self._check(subject, len(data))
        self._enqueue(*(_Outgoing(subject, data) for data in messages))

    def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Publish and wait for the answer."""
        self._check(subject, len(data))
        with self._lock:
            if not self._is_inbox_subscribed:  # a site sends no requests, and needs no permission for an inbox
                self._is_inbox_subscribed = True
                self._outbox.append((self._listen, self._inbox_route))
        reply = f"{self._inbox}.{next(self._tokens)}"
        answer: _Answer = queue.SimpleQueue()
        # before the request is queued: the answer may arrive at once
        self._waiting[reply] = answer
        self._enqueue(_Outgoing(subject, data, reply, answer, tracing.current()))
        try:
            result = answer.get(timeout=timeout)
        except queue.Empty:
            if self._waiting.pop(reply, None) is not None:  # a request that was not sent yet is discarded
                raise SiteUnknownOutcomeError(f"no answer within {timeout:g} s") from None
            result = answer.get()  # it has arrived just now
        if isinstance(result, Exception):
            raise result
        return result

    def _check(self, subject: str, size: int) -> None:
        if not _SUBJECT.fullmatch(subject):  # white space would start another command
            raise ValueError(f"{subject!r} is not a subject")
        if size > self.max_payload:
            raise SiteTooLargeError(
                f"a message of {size} bytes; the limit of the NATS server is {self.max_payload}",
                hint="Raise max_payload in the NATS server's configuration.",
            )
        if self._unsent > MOST_BUFFERED:
            raise SiteDownError("the NATS server accepts no data: too much waits to be sent")

    def _enqueue(self, *items: _Outgoing | _Change) -> None:
        with self._lock:
            if self._ended or not self._client.is_connected:
                for item in items:
                    if isinstance(item, _Outgoing):
                        self._waiting.pop(item.reply, None)
                        raise SiteDownError("no connection to the NATS server")
                return
            self._outbox.extend(items)
            self._unsent += sum(len(item.data) for item in items if isinstance(item, _Outgoing))
            # one wake-up for all messages that wait: each costs a system call, and one of the loop
            if self._is_wake_up_scheduled:
                return
            self._is_wake_up_scheduled = True
            self._loop.call_soon_threadsafe(self._wake_up.set)


def _ignore(_subject: str, _data: bytes, _respond: Respond | None) -> None:
    pass
