"""The link to NATS: one asyncio loop in one thread, behind a synchronous face.

It connects, and connects again, for ever. What is asked for while there is no connection fails at once and is never
sent later; what is sent on a connection that breaks is never sent on the next.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigError, SiteDownError
from bridge.logs import kv
from bridge.threads import Supervisor
from bridge.wire.session import Handler, NatsAccess, Route, Session, shown
from bridge.wire.subscription import Subscription

log = logging.getLogger(__name__)

RETRY_LEAST, RETRY_MOST = 0.5, 2.0
"""Seconds between two attempts to connect."""
LINGER = 1.0
"""Seconds that the link outlives the process's wish to stop, for last words."""
_SMALLEST_PAYLOAD = 1024 * 1024
_LOOK = 0.25
_SCHEMES = ("nats", "tls", "ws", "wss")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and as whom to connect. Files are read at each connect, so a rotated one is taken up.

    ``servers``: ``nats://`` (TLS if the server wants it), ``tls://`` (never without), ``ws://`` or ``wss://``, tried in
    turn. ``inbox_prefix``: where answers to this link's own requests go; the server must let it listen there.
    """

    servers: tuple[str, ...]
    name: str
    seed_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    inbox_prefix: str = "_INBOX"

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("nats.servers: empty; at least one address is needed")
        for server in self.servers:
            if server.partition("://")[0] not in _SCHEMES or not server.partition("://")[2]:
                raise ConfigError(f"nats.servers: {shown(server)!r}: must begin with nats://, tls://, ws:// or wss://")
            if self.ca_file is not None and server.startswith(("nats://", "ws://")):
                raise ConfigError(f"nats.servers: {shown(server)}: with a CA file, tls:// or wss:// must be asked for")
            if "@" in server:
                raise ConfigError("nats.servers: no user or password in an address; use seedFile or passwordFile")
        if self.seed_file is not None and self.user is not None:
            raise ConfigError("nats: a seed file and a user; one of them is enough")
        if (self.user is None) != (self.password_file is None):
            raise ConfigError("nats: a user needs a password file, and the other way round")


class Link:
    """A connection to NATS that mends itself; every method may be called from any thread."""

    def __init__(self, settings: Settings, on_change: Callable[[bool], None] | None = None) -> None:
        self._settings = settings
        self._watchers: list[Callable[[bool], None]] = [on_change] if on_change else []
        self._changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._chores: list[tuple[float, Callable[[], None]]] = []
        self._session: Session | None = None
        self._supervisor: Supervisor | None = None
        self._closing = threading.Event()
        self._error = "not started"
        self._max_payload = _SMALLEST_PAYLOAD

    def start(self, supervisor: Supervisor) -> None:
        """Start connecting; does not wait for it."""
        with self._lock:
            self._supervisor = supervisor
            waiting = list(self._subscriptions)
        self._error = "not connected yet"
        supervisor.spawn("nats", lambda: self._run(supervisor))
        supervisor.spawn("nats-changes", lambda: self._tell(supervisor.stopping))
        for subscription in waiting:
            self._spawn(supervisor, subscription)

    def close(self) -> None:
        """End the connection now, after what was sent has left; at the process's stop it ends by itself."""
        self._closing.set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        session = self._session
        return session is not None and session.connected

    def problem(self) -> str | None:
        """Say what is wrong: why there is no connection, or which subscription the server refuses."""
        session = self._session
        if session is None or not session.connected:
            return f"no connection to NATS: {self._error}"
        return f"the NATS server refuses: {session.refused}" if session.refused else None

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server takes; 1 MiB before the first connection."""
        return self._max_payload

    def watch(self, on_change: Callable[[bool], None]) -> None:
        """Have ``on_change`` called, on a thread, with whether there is a connection, whenever that changes."""
        self._watchers.append(on_change)

    def publish(self, subject: str, data: bytes) -> None:
        """Send a message; raises SiteDownError or SiteTooLargeError when it surely is not sent."""
        self._current().send(subject, data)

    def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send a message and wait ``timeout`` seconds for the answer.

        Raises SiteDownError and SiteTooLargeError (surely not taken), SiteUnknownOutcomeError (perhaps taken).
        """
        return self._current().request(subject, data, timeout)

    def subscribe(
        self, subject: str | tuple[str, ...], handler: Handler, queue: str = "", threads: int = 1
    ) -> Subscription:
        """Have messages of one or several subjects handled on ``threads`` threads of their own; with one, in order.

        With ``threads=0`` the handler runs on the loop: only for what takes microseconds and never blocks. A
        subscription with threads is meant to last as long as the process: its threads do not end before.
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

    def every(self, seconds: float, chore: Callable[[], None]) -> None:
        """Have ``chore`` called on the loop again and again: only for what takes microseconds and never blocks."""
        with self._lock:
            self._chores.append((seconds, chore))

    @property
    def dropped(self) -> int:
        """Messages lost because their handlers could not keep up."""
        with self._lock:
            return sum(subscription.dropped for subscription in self._subscriptions)

    # --- inside -------------------------------------------------------------------------------------------------------
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

    def _tell(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connected = self._changes.get(timeout=1.0)
            except queue.Empty:
                continue
            for watcher in list(self._watchers):
                try:
                    watcher(connected)
                except Exception:
                    log.exception("a watcher of the connection failed")

    def _run(self, supervisor: Supervisor) -> None:
        # asyncio warns each time that nats-py closes a TLS connection; its errors come to the exception handler
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        asyncio.run(self._keep(supervisor))
        supervisor.stopping.wait()

    async def _keep(self, supervisor: Supervisor) -> None:
        """Connect again and again, until the process stops."""
        asyncio.get_running_loop().set_exception_handler(_log_exception)
        chores = asyncio.create_task(self._do_chores())
        attempts = failures = 0
        while not self._ending(supervisor):
            server = self._settings.servers[attempts % len(self._settings.servers)]
            attempts += 1
            session: Session | None = None
            try:
                session = Session(self._access(server), self._settings.inbox_prefix)
                await session.open()
                await session.listen(self._routes())
                while not self._adopt(session):
                    await session.listen(self._routes())
                failures = 0
                log.info("connected to nats", extra=kv(server=shown(server)))
                self._changes.put(True)
                await self._watch(session, supervisor)
                self._error = "the connection broke"
            except Exception as error:
                self._error = f"{shown(server)}: {str(error) or type(error).__name__}"
                failures += 1
                if failures & (failures - 1) == 0:
                    log.warning("no connection to nats", extra=kv(error=self._error, attempts=failures))
            finally:
                was = self._session is not None
                with self._lock:
                    self._session = None
                if session is not None:
                    await session.close(flush=self._ending(supervisor))
                if was:
                    level = logging.INFO if self._ending(supervisor) else logging.WARNING
                    log.log(level, "disconnected from nats", extra=kv(server=shown(server)))
                    self._changes.put(False)
            await self._pause(supervisor)
        chores.cancel()

    async def _do_chores(self) -> None:
        due: dict[int, float] = {}
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            for number, (seconds, chore) in enumerate(list(self._chores)):
                if now < due.get(number, now):
                    continue
                due[number] = now + seconds
                try:
                    chore()
                except Exception:
                    log.exception("a chore on the loop failed")

    def _adopt(self, session: Session) -> bool:
        """Make a session the current one if it listens to everything; under the lock, so that nothing slips through."""
        with self._lock:
            if not session.listens_to([route for each in self._subscriptions for route in each.routes]):
                return False
            self._session = session
            self._max_payload = session.max_payload
            return True

    async def _watch(self, session: Session, supervisor: Supervisor) -> None:
        while not await session.wait_over(_LOOK):
            if self._closing.is_set():
                return
            if supervisor.stopping.is_set():
                await session.wait_over(LINGER)
                return

    async def _pause(self, supervisor: Supervisor) -> None:
        left = random.uniform(RETRY_LEAST, RETRY_MOST)  # noqa: S311
        while left > 0 and not self._ending(supervisor):
            await asyncio.sleep(min(left, _LOOK))
            left -= _LOOK

    def _ending(self, supervisor: Supervisor) -> bool:
        return self._closing.is_set() or supervisor.stopping.is_set()

    def _access(self, server: str) -> NatsAccess:
        settings = self._settings
        scheme = server.partition("://")[0]
        tls = None
        if scheme != "ws":
            tls = ssl.create_default_context(cafile=settings.ca_file)
        return NatsAccess(
            server=server,
            name=settings.name,
            seed=_read(settings.seed_file),
            user=settings.user,
            password=_read(settings.password_file),
            tls=tls,
        )


def _read(file: Path | None) -> str | None:
    return file.read_text().strip() if file is not None else None


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    log.error("nats: %s", context.get("message"), extra=kv(error=repr(context.get("exception"))))
