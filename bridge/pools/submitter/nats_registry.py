"""The pools that announce themselves over NATS, and the dispatch of their messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.threads import Supervisor
from bridge.errors import SiteError
from bridge.logs import kv
from bridge.pools.registry import PoolSource
from bridge.pools.submitter.inbox import Inbox
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.nats.envelope import LIMITS, GarbledError, M, check_pool, parse, unpack
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Event
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_table import SUBMIT
from bridge.protocol.nats.subjects import ANY, Subjects, kind_of, pool_of
from bridge.protocol.nats.subscription import Respond, Subscription
from bridge.telemetry.metrics import POOL_FLOODS, POOL_MESSAGES_UNUSABLE

log = logging.getLogger(__name__)

MOST_POOLS = 1000
MUTE = 10.0
"""Seconds for which messages of a flooding pool are ignored; shorter than the time after which a site is silent."""
MOST_REQUESTS = 100
"""Pools that are asked for a snapshot at once. Each has a thread until it has answered."""
_TICK = 0.5


class NatsPools(PoolSource):
    """All pools that have announced themselves since this process started, and those restored from a store.

    ``owner``: the cluster whose jobs are received. ``submit_timeout``: seconds to wait for the answer to a submit.
    """

    server = "nats"

    def __init__(
        self,
        link: Link,
        prefix: str,
        owner: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        submit_timeout: float = SUBMIT.timeout,
    ) -> None:
        self.link, self._prefix, self._owner, self._clock = link, prefix, owner, clock
        self._submit_timeout = submit_timeout
        self._lock = threading.Lock()
        self._pools: dict[str, SubmitterPool] = {}
        self._subscribers: list[Callable[[str, str], None]] = []
        self._wake_up = threading.Event()
        self._requesting: set[SubmitterPool] = set()
        self._supervisor: Supervisor | None = None
        self.dropped: dict[str, int] = {}
        published = Subjects(prefix, ANY, owner).published()
        self._models = {kind_of(prefix, subject): model for model, subject in published.items()}
        # keeps the order of a pool's messages: an announcement must not overtake an event
        self._inbox = Inbox(self._on_flood)
        self._muted: dict[str, float] = {}
        self._subscribed: tuple[str, ...] = ()
        self._subscription: Subscription | None = None
        self._listen()
        link.watch(self._on_link)

    def start(self, supervisor: Supervisor) -> None:
        """Start the requests for snapshots. The caller starts the link."""
        self._supervisor = supervisor
        supervisor.spawn("pools", lambda: self._run(supervisor.stopping))
        supervisor.spawn("pools-inbox", lambda: self._read(supervisor.stopping))

    def problem(self) -> str | None:
        """Return why there is no connection; ``None`` if there is one."""
        return self.link.problem()

    def pools(self) -> dict[str, SubmitterPool]:
        """Return all pools by name."""
        return dict(self._pools)

    def remove(self, name: str) -> None:
        """Remove a pool. Its next announcement adds it again."""
        with self._lock:
            self._pools = {key: pool for key, pool in self._pools.items() if key != name}
        self._inbox.forget(name)
        self._notify(name, "")

    def recall(self, announce: Announce, received_at: float, buildconfig: BuildConfigMessage | None) -> None:
        """Add a pool from stored values; raise GarbledError if there are too many pools."""
        pool = self._pools.get(announce.pool) or self._add(announce.pool)
        pool.recall(announce, received_at, buildconfig)

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change of a pool.

        Its arguments are the pool's name, and the pod's UID or an empty string as in :meth:`SubmitterPool.subscribe`.
        The removal of a pool is a change with an empty string.
        """
        self._subscribers.append(changed)

    # --- internal -----------------------------------------------------------------------------------------------------
    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake_up.wait(_TICK)
            self._wake_up.clear()
            self._listen()
            self.tick()

    def _read(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.drain(_TICK)

    def drain(self, timeout: float = 0.0) -> None:
        """Handle the messages in the inbox; wait for the first one for at most ``timeout`` seconds."""
        received = self._inbox.get(timeout)
        while received is not None:
            name, (subject, data), has_lost = received
            try:
                self._handle(name, subject, data)
                if has_lost and (pool := self._pools.get(name)) is not None:
                    pool.request_snapshot()
            except Exception:  # a message from outside must not end this process
                log.exception("a message of a pool could not be handled", extra=kv(subject=subject))
            received = self._inbox.get(0.0)

    # --- subscriptions ------------------------------------------------------------------------------------------------
    def _on_flood(self, name: str) -> None:
        """Mute a pool for a while. Called on the link's loop or on the thread of the inbox."""
        # All pools share one connection. Measured in test_flood.py: beside a pool that sends 500 MB/s, the changes
        # of other pools take at most 0.6 s.
        with self._lock:
            if name in self._muted:
                return
            self._muted[name] = self._clock.monotonic() + MUTE
        POOL_FLOODS.labels(name).inc()
        log.error("a pool floods the hub: its messages are ignored for a while", extra=kv(pool=name, seconds=MUTE))
        self._wake_up.set()

    def _listen(self) -> None:
        """Subscribe to all pools or, while some are muted, to each of the others by name.

        Messages of unknown pools are not received while a pool is muted. The other pools lose no message: the new
        subscription begins before the old one ends, and messages that the server has queued for the old one still
        arrive.
        """
        now = self._clock.monotonic()
        with self._lock:  # a flood mutes a pool in another thread
            unmuted = [name for name, until in self._muted.items() if until <= now]
            for name in unmuted:
                del self._muted[name]
            muted = set(self._muted)
        names = tuple(sorted(self._pools.keys() - muted)) if muted else (ANY,)
        if names == self._subscribed:
            return
        subjects = tuple(
            subject for name in names for subject in Subjects(self._prefix, name, self._owner).published().values()
        )
        old_subscription, self._subscription = (
            self._subscription,
            self.link.subscribe(subjects, self._on_message, threads=0),
        )
        self._subscribed = names
        if old_subscription is not None:
            old_subscription.drain()
        for name in muted:
            self._inbox.clear(name)
        for name in unmuted:  # its events were dropped while it was muted
            if (pool := self._pools.get(name)) is not None:
                pool.request_snapshot()
                self._wake_up.set()

    def tick(self) -> None:
        """Start the requests that are due, each on a thread of its own: a site that is silent delays no other."""
        if not self.link.connected:
            return
        now = self._clock.monotonic()
        for name, pool in self.pools().items():
            if pool not in self._requesting and len(self._requesting) < MOST_REQUESTS and pool.due(now):
                self._requesting.add(pool)
                threading.Thread(target=self._request, args=(pool,), name=f"pool-{name}", daemon=True).start()

    def _request(self, pool: SubmitterPool) -> None:
        try:
            pool.ask()
        finally:
            self._requesting.discard(pool)

    def _on_link(self, connected: bool) -> None:
        if connected:  # messages were lost while there was no connection
            for pool in self.pools().values():
                pool.request_snapshot()
            self._wake_up.set()

    def _on_message(self, subject: str, data: bytes, _respond: Respond | None) -> None:
        name = pool_of(self._prefix, subject)
        with self._lock:
            muted = name in self._muted
        if not muted:
            self._inbox.put(name, (subject, data))

    def _handle(self, name: str, subject: str, data: bytes) -> None:
        kind = kind_of(self._prefix, subject)
        try:
            if not name:
                raise GarbledError("no pool in the subject")
            message = self._parse(self._models[kind], name, data)
            check_pool(name, message.pool)
            if isinstance(message, Event) and message.status.owner != self._owner:
                raise GarbledError(f"an event of a job of owner {message.status.owner or 'unknown'}")
            pool = self._pools.get(name)
            if pool is None and not isinstance(message, Event):  # otherwise a snapshot follows its announcement
                pool = self._add(name)
            if pool is not None:
                pool.receive(message)
                if pool.due(self._clock.monotonic()):
                    self._wake_up.set()
        except SiteError as error:
            POOL_MESSAGES_UNUSABLE.labels(kind).inc()
            count = self.dropped[kind] = self.dropped.get(kind, 0) + 1
            if count & (count - 1) == 0:
                log.warning("a message was dropped", extra=kv(subject=subject, count=count, error=error))

    def _parse(self, kind: type[M], name: str, data: bytes) -> M:
        """Parse a message; its bytes after decompression count for the rate of the pool."""
        size = LIMITS[kind]
        try:
            text = unpack(data, size)
            size = len(text)
        finally:
            self._inbox.charge(name, max(0, size - len(data)))
        return parse(kind, text)

    def _add(self, name: str) -> SubmitterPool:
        with self._lock:
            if name in self._pools:
                return self._pools[name]
            if len(self._pools) >= MOST_POOLS:
                raise GarbledError(f"more than {MOST_POOLS} pools")
            connect = lambda folder: PoolClient(self.link, self._prefix, name, self._owner, self._clock, folder)  # noqa: E731
            pool = SubmitterPool(name, self._owner, connect, self._clock, self._submit_timeout)
            pool.subscribe(lambda job: self._notify(name, job))
            # a new dict: other threads read it without the lock
            self._pools = {**self._pools, name: pool}
        log.info("a pool was added", extra=kv(pool=name))
        return pool

    def _notify(self, name: str, job: str) -> None:
        for subscriber in self._subscribers:
            subscriber(name, job)
