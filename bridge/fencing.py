"""Fencing: a process that has lost its lease sends no write, even if it was suspended during the call.

A check before the call is not enough: the process may be suspended between the check and the first byte, and resume
after its lease has expired. So the connection checks right before it sends bytes. A process that is suspended between
the two still sends: a thread that waits there for the interpreter lock can be milliseconds away from its first byte.
The preconditions of the writes (UID, resource version) and the search for second jobs cover this case.
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
    """In this context, call ``check`` before each send of this thread on a guarded connection.

    If ``check`` raises (:class:`bridge.errors.LostLeadershipError`), nothing is sent and the connection is closed.
    """
    token = _current.set(check)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Check | None:
    """Return the check of this context, for a client that has no connection class of Python."""
    return _current.get()


def guarded(connection_class: Any) -> Any:
    """Return a subclass of an ``http.client`` or urllib3 connection class that calls the fence before it sends."""

    class Guarded(connection_class):  # type: ignore[misc]
        def send(self, data: Any) -> None:
            """Connect first, because that takes time, then call the fence, then send."""
            if self.sock is None and self.auto_open:
                self.connect()
            check = _current.get()
            if check is not None:
                check()
            super().send(data)

    return Guarded


def guard_pool(pool_class: Any) -> Any:
    """Return a subclass of a urllib3 pool class with guarded connections."""
    return type(f"Guarded{pool_class.__name__}", (pool_class,), {"ConnectionCls": guarded(pool_class.ConnectionCls)})
