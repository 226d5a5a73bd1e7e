"""The link to NATS: a synchronous interface to one asyncio loop in one thread.

It reconnects until the process ends. A request without a connection fails at once. The link never sends a message of a
broken connection on the next one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from bridge.core.threads import Supervisor
from bridge.errors import ConfigError, SiteDownError
from bridge.logs import kv
from bridge.protocol.nats.nats_session import Session
from bridge.protocol.nats.subscription import Handler, Route, Subscription

log = logging.getLogger(__name__)

RETRY_LEAST, RETRY_MOST = 0.5, 2.0
"""Seconds between two attempts to connect."""
LINGER = 1.0
"""Seconds for which the link stays open after the process began to stop, for last messages."""
_SMALLEST_PAYLOAD = 1024 * 1024
_CHECK_PERIOD = 0.25
_SCHEMES = ("nats", "tls", "ws", "wss")


class NatsServers(Protocol):
    """Addresses and credentials: ``pools.nats`` of a hub, ``[nats]`` of a site. The files are read at each connect."""

    @property
    def servers(self) -> Sequence[str]:
        """With ``nats://`` (TLS if the server requires it), ``tls://``, ``ws://`` or ``wss://``; tried in turn."""

    @property
    def seed_file(self) -> Path | None:
        """The nkey seed, instead of user and password."""

    @property
    def user(self) -> str | None:
        """The user."""

    @property
    def password_file(self) -> Path | None:
        """The password of the user."""

    @property
    def ca_file(self) -> Path | None:
        """CA certificates; ``None``: those of the system."""


class Link:
    """A connection to NATS that is restored after a failure. All methods are thread-safe.

    ``name``: what the server shows. ``inbox_prefix``: prefix of the subjects of answers; the user must be allowed to
    subscribe to them. Raises :class:`ConfigError`.
    """

    def __init__(self, section: NatsServers, name: str, inbox_prefix: str = "_INBOX") -> None:
        _check(section)
        self._section, self._name, self._inbox_prefix = section, name, inbox_prefix
        self._watchers: list[Callable[[bool], None]] = []
        self._changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._tasks: list[tuple[float, Callable[[], None]]] = []
        self._session: Session | None = None
        self._supervisor: Supervisor | None = None
        self._closing = threading.Event()
        self._error = "not started"
        self._max_payload = _SMALLEST_PAYLOAD

    def start(self, supervisor: Supervisor) -> None:
        """Start to connect; return at once."""
        with self._lock:
            self._supervisor = supervisor
            subscriptions = list(self._subscriptions)
        self._error = "not connected yet"
        supervisor.spawn("nats", lambda: self._run(supervisor))
        supervisor.spawn("nats-changes", lambda: self._notify(supervisor.stopping))
        for subscription in subscriptions:
            self._spawn(supervisor, subscription)

    def close(self) -> None:
        """Close the connection after all sent messages have left. It also closes when the process stops."""
        self._closing.set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        session = self._session
        return session is not None and session.connected

    def problem(self) -> str | None:
        """Return why there is no connection, or which subscription the server refuses; ``None`` if all is well."""
        session = self._session
        if session is None or not session.connected:
            return f"no connection to NATS: {self._error}"
        return f"the NATS server refuses: {session.refused}" if session.refused else None

    @property
    def max_payload(self) -> int:
        """Size of the largest message that the server accepts, in bytes; 1 MiB before the first connection."""
        return self._max_payload

    def watch(self, on_change: Callable[[bool], None]) -> None:
        """Call ``on_change(connected)`` on a thread after each change."""
        self._watchers.append(on_change)

    def publish(self, subject: str, *messages: bytes) -> None:
        """Send messages of one subject at once; raise SiteDownError or SiteTooLargeError if they were not sent."""
        self._current().send(subject, *messages)

    def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send a message and wait for the answer for ``timeout`` seconds.

        Raises SiteDownError or SiteTooLargeError if the message was not received, and SiteUnknownOutcomeError if it may
        have been.
        """
        return self._current().request(subject, data, timeout)

    def subscribe(
        self, subject: str | tuple[str, ...], handler: Handler, queue: str = "", threads: int = 1
    ) -> Subscription:
        """Handle messages of one or several subjects on ``threads`` threads of their own; one thread keeps their order.

        With ``threads=0`` the handler runs on the loop: it must take microseconds and never block. Threads end only
        with the process, so a subscription with threads should last as long.
        """
        subjects = (subject,) if isinstance(subject, str) else subject
        subscription = Subscription(self._remove, subjects, handler, queue, threads)
        with self._lock:
            self._subscriptions.append(subscription)
            supervisor, session = self._supervisor, self._session
            if session is not None:
                for route in subscription.routes:
                    session.add(route)
        if supervisor is not None:
            self._spawn(supervisor, subscription)
        return subscription

    def every(self, seconds: float, task: Callable[[], None]) -> None:
        """Call ``task`` on the loop every ``seconds`` seconds. It must take microseconds and never block."""
        with self._lock:
            self._tasks.append((seconds, task))

    @property
    def dropped(self) -> int:
        """Number of messages dropped because their handlers were too slow."""
        with self._lock:
            return sum(subscription.dropped for subscription in self._subscriptions)

    # --- internal -----------------------------------------------------------------------------------------------------
    def _current(self) -> Session:
        session = self._session
        if session is None:
            raise SiteDownError(f"no connection to NATS: {self._error}")
        return session

    def _remove(self, subscription: Subscription, drain: bool) -> None:
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                if self._session is not None:
                    for route in subscription.routes:
                        self._session.remove(route, drain=drain)

    def _routes(self) -> list[Route]:
        with self._lock:
            return [route for subscription in self._subscriptions for route in subscription.routes]

    def _spawn(self, supervisor: Supervisor, subscription: Subscription) -> None:
        for number in range(subscription.threads):
            name = f"nats-{subscription.routes[0].subject}-{number}"
            supervisor.spawn(name, lambda: subscription.work(supervisor.stopping))

    def _notify(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connected = self._changes.get(timeout=1.0)
            except queue.Empty:
                continue
            for watcher in list(self._watchers):
                try:
                    watcher(connected)
                except Exception:
                    log.exception("a callback for changes of the connection failed")

    def _run(self, supervisor: Supervisor) -> None:
        # asyncio warns whenever nats-py closes a TLS connection; errors go to the exception handler
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        asyncio.run(self._keep(supervisor))
        # for close(): a thread of the supervisor that returns before the process stops is a failure
        supervisor.stopping.wait()

    async def _keep(self, supervisor: Supervisor) -> None:
        """Connect, and reconnect until the process stops."""
        asyncio.get_running_loop().set_exception_handler(_log_exception)
        tasks = asyncio.create_task(self._run_tasks())
        attempts = failures = 0
        while not self._is_ending(supervisor):
            server = self._section.servers[attempts % len(self._section.servers)]
            attempts += 1
            session: Session | None = None
            try:
                # A new client reads the credentials again. The reconnect of nats-py keeps requests and sends them late.
                session = Session(server, self._options(server), self._inbox_prefix)
                await session.open()
                await session.listen(self._routes())
                while not self._adopt(session):
                    await session.listen(self._routes())
                failures = 0
                log.info("connected to nats", extra=kv(server=_shown(server)))
                self._changes.put(True)
                await self._watch(session, supervisor)
                self._error = "the connection broke"
            except Exception as error:
                self._error = f"{_shown(server)}: {str(error) or type(error).__name__}"
                failures += 1
                # the 1st, 2nd, 4th, 8th ... failure: an outage of days must not fill the log
                if failures & (failures - 1) == 0:
                    log.warning("no connection to nats", extra=kv(error=self._error, attempts=failures))
            finally:
                was_connected = self._session is not None
                with self._lock:
                    self._session = None
                if session is not None:
                    await session.close(flush=self._is_ending(supervisor))
                if was_connected:
                    level = logging.INFO if self._is_ending(supervisor) else logging.WARNING
                    log.log(level, "disconnected from nats", extra=kv(server=_shown(server)))
                    self._changes.put(False)
            await self._pause(supervisor)
        tasks.cancel()

    async def _run_tasks(self) -> None:
        due: dict[int, float] = {}
        while True:
            await asyncio.sleep(_CHECK_PERIOD)
            now = time.monotonic()
            for number, (seconds, task) in enumerate(list(self._tasks)):
                if now < due.get(number, now):
                    continue
                due[number] = now + seconds
                try:
                    task()
                except Exception:
                    log.exception("a periodic task on the loop failed")

    def _adopt(self, session: Session) -> bool:
        """Make a session current if it has all subscriptions; the lock prevents a concurrent change of them."""
        with self._lock:
            desired_routes = {route for subscription in self._subscriptions for route in subscription.routes}
            listening = session.listening()
            if not desired_routes <= listening:
                return False
            for route in listening - desired_routes:  # closed while the session was opened
                session.remove(route)
            self._session = session
            self._max_payload = session.max_payload
            return True

    async def _watch(self, session: Session, supervisor: Supervisor) -> None:
        while not await session.wait_over(_CHECK_PERIOD):
            if self._closing.is_set():
                return
            if supervisor.stopping.is_set():
                await session.wait_over(LINGER)
                return

    async def _pause(self, supervisor: Supervisor) -> None:
        seconds_left = random.uniform(RETRY_LEAST, RETRY_MOST)  # noqa: S311
        while seconds_left > 0 and not self._is_ending(supervisor):
            await asyncio.sleep(min(seconds_left, _CHECK_PERIOD))
            seconds_left -= _CHECK_PERIOD

    def _is_ending(self, supervisor: Supervisor) -> bool:
        return self._closing.is_set() or supervisor.stopping.is_set()

    def _options(self, server: str) -> dict[str, Any]:
        section = self._section
        return {
            "name": self._name,
            # with nats://, nats-py uses it if the server requires TLS
            "tls": None if server.startswith("ws://") else ssl.create_default_context(cafile=section.ca_file),
            "nkeys_seed_str": _read(section.seed_file),
            "user": section.user,
            "password": _read(section.password_file),
        }


def _check(section: NatsServers) -> None:
    if not section.servers:
        raise ConfigError("nats.servers: empty; give at least one address")
    for server in section.servers:
        if server.partition("://")[0] not in _SCHEMES or not server.partition("://")[2]:
            raise ConfigError(f"nats.servers: {_shown(server)!r}: must begin with nats://, tls://, ws:// or wss://")
        if section.ca_file is not None and server.startswith(("nats://", "ws://")):
            raise ConfigError(f"nats.servers: {_shown(server)}: a CA file requires tls:// or wss://")
        if "@" in server:
            raise ConfigError(
                "nats.servers: an address must not contain a user or password; use seedFile or passwordFile"
            )
    if section.seed_file is not None and section.user is not None:
        raise ConfigError("nats: a seed file and a user; set only one of them")
    if (section.user is None) != (section.password_file is None):
        raise ConfigError("nats: a user requires a password file, and a password file requires a user")


def _shown(server: str) -> str:
    """Return a server's address without user and password."""
    parts = urlsplit(server)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read(file: Path | None) -> str | None:
    return file.read_text().strip() if file is not None else None


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    log.error("nats: %s", context.get("message"), extra=kv(error=repr(context.get("exception"))))
