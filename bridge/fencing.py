"""A write by a process that leads no more must not be sent, even if it was suspended in the middle of sending it.

A check before the call is not enough: the process may be stopped between the check and the first byte, and go on long
after its lease has run out. So the check stands in the connection itself, right before bytes leave. A process that is
suspended between the two still sends: a thread that waits for the interpreter lock there can be milliseconds away from
its first byte. The preconditions of the writes (UID, resource version) and the look for second jobs cover that case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Check = Callable[[], None]

_current: ContextVar[Check | None] = ContextVar("fence", default=None)


@contextmanager
def fence(check: Check | None) -> Iterator[None]:
    """Have ``check`` called before any byte that this thread sends meanwhile on a guarded connection.

    ``check`` raises (:class:`bridge.errors.LostLeadershipError`) to stop it; the connection is closed then.
    """
    token = _current.set(check)
    try:
        yield
    finally:
        _current.reset(token)


def guarded(connection_class: Any) -> Any:
    """Give a subclass of an ``http.client`` (or urllib3) connection that asks the fence before it sends."""

    class Guarded(connection_class):  # type: ignore[misc]
        def send(self, data: Any) -> None:
            """Connect first, which takes its time, then ask, then send."""
            if self.sock is None and self.auto_open:
                self.connect()
            check = _current.get()
            if check is not None:
                check()
            super().send(data)

    return Guarded


def guard_pool(pool_class: Any) -> Any:
    """Give a subclass of a urllib3 connection pool whose connections are guarded."""
    return type(f"Guarded{pool_class.__name__}", (pool_class,), {"ConnectionCls": guarded(pool_class.ConnectionCls)})
