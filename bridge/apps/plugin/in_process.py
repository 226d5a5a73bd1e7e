"""A site in this process: its submitter answers the pool's requests directly, without NATS."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from bridge.core.threads import Supervisor
from bridge.errors import SiteError, SiteRefusedError
from bridge.pools.registry import PoolSource
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import CommandOptions, Connection, Session
from bridge.protocol.nats.messages import Event, Published
from bridge.protocol.nats.request_client import refused
from bridge.protocol.nats.request_server import refusal
from bridge.protocol.nats.request_table import A, B, RequestKind
from bridge.site.service import Service
from bridge.site.submitter import Submitter

T = TypeVar("T")

OWNER = "interlink"
"""Owner of the jobs of a plugin that is the only client of its site."""
PERIOD = 0.2
"""Seconds between two checks whether the pool's snapshot is due."""


class InProcessClient:
    """The requests of a pool to the submitter in this process; implements the client of a submitter pool."""

    def __init__(self, handlers: Submitter, owner: str) -> None:
        self._handlers, self._owner = handlers, owner

    def call(self, kind: RequestKind[B, A], job: str, body: B, timeout: float | None = None) -> A:
        """Pass a request to the submitter, and return its answer. It has its own time limits, not ``timeout``."""
        return translate_site_errors(lambda: kind.handler_of(self._handlers)(self._owner, job, body))

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Return the pieces of a log; raises before the first one if there is no log."""
        return _Log(lambda wait: translate_site_errors(lambda: self._handlers.log(self._owner, job, options, wait)))

    def open_session(self, job: str, options: CommandOptions) -> Session:
        """Refuse: interLink's API has no commands in containers."""
        raise SiteRefusedError("interLink's API runs no commands in containers", reason="ExecNotSupported")

    def connect(self, job: str, port: int) -> Connection:
        """Refuse: interLink's API has no connections to ports."""
        raise SiteRefusedError("interLink's API connects to no ports of pods", reason="PortsNotSupported")

    def reach(self, job: str) -> Session:
        """Refuse: interLink's API has no connections to Services."""
        raise SiteRefusedError("interLink's API lets pods reach no Services", reason="ReachNotSupported")


class _Log:
    """The pieces of a log. Any thread may close it; the reader then ends at its next wait."""

    def __init__(self, begin: Callable[[Callable[[float], bool]], Iterator[bytes]]) -> None:
        self._closed = threading.Event()
        self._pieces = begin(self._closed.wait)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._closed.is_set():
            raise StopIteration
        piece = translate_site_errors(lambda: next(self._pieces, None))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """End the log, and close its files unless a thread is reading, which then closes them."""
        self._closed.set()
        close = getattr(self._pieces, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # the generator is running
                close()


class InProcessSite(PoolSource):
    """The pool of an open :class:`~bridge.site.service.Service`.

    The service's supervisor must be that of the process. Every source of pools that has a ``SiteConfig`` makes a
    service of it and passes it here.
    """

    every_pod = True

    def __init__(self, service: Service, owner: str = OWNER) -> None:
        self.service = service
        self.clock = service.clock
        self.pool = SubmitterPool(
            service.config.pool, owner, lambda _folder: InProcessClient(service.handlers, owner), service.clock
        )
        self._owner = owner

    def start(self, supervisor: Supervisor) -> None:
        """Start the submitter and the pool's snapshots."""
        self.service.start(self._receive)
        supervisor.spawn_every("pool", PERIOD, self._ask_if_due)

    def _receive(self, message: Published) -> None:
        if not isinstance(message, Event) or message.status.owner == self._owner:
            self.pool.receive(message)

    def pools(self) -> Mapping[str, SubmitterPool]:
        """Return the pool by its name."""
        return {self.pool.name: self.pool}

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change of the pool."""
        self.pool.subscribe(functools.partial(changed, self.pool.name))

    def stop(self) -> None:
        """Release the leadership of the submitter."""
        self.service.stop()

    def _ask_if_due(self) -> None:
        if self.pool.due(self.clock.monotonic()):
            self.pool.ask()


def translate_site_errors(call: Callable[[], T]) -> T:
    """Return the submitter's answer; its errors become those of a client, as over NATS.

    The submitter raises OSError if its folder cannot be written, for example because the disk is full.
    """
    try:
        return call()
    except SiteError:
        raise
    except Exception as error:
        raise refused(refusal(error, "the request")) from error
