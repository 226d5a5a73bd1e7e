"""Wait for an observable state: the one polling helper of hack/ and of all tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FIRST = 0.005
"""Seconds before the second call of a check; the pause doubles up to ``every``."""


def eventually(check: Callable[[], T], what: str = "the condition", timeout: float = 60.0, every: float = 0.1) -> T:
    """Call ``check`` until it returns a true value, and return that value.

    Parameters
    ----------
    check
        called at least once; an exception that it raises ends the wait.
    what
        the awaited state, for the error message.
    timeout
        seconds. A test that asserts a limit passes it; the default only ends a test that would hang.
    every
        longest pause between two calls, in seconds.

    Raises
    ------
    AssertionError
        if no call within ``timeout`` returned a true value. The message contains ``what`` and the last value.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {timeout:g} s waiting for: {what} (last value: {found!r})")
        time.sleep(min(pause, every))
        pause *= 2
