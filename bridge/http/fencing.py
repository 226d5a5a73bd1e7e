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

Check = Callable[[], None]

_current: ContextVar[Check | None] = ContextVar("fence", default=None)


@contextmanager
def fence(check: Check | None) -> Iterator[None]:
    """In this context, :mod:`bridge.http.curl_client` calls ``check`` right before it sends a request of this thread.

    If ``check`` raises (:class:`bridge.errors.LostLeadershipError`), nothing is sent and the connection is closed.
    """
    token = _current.set(check)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Check | None:
    """Return the check of this context."""
    return _current.get()
