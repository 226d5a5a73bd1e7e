"""The end of the process of a command: at once, whatever its threads wait for."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run(command: Callable[[], None]) -> NoReturn:
    """Run a command and end the process with its status.

    A thread of a library may wait for a server for minutes, and the interpreter may never end: a daemon thread that
    waits for the interpreter lock during the finalization is stopped there, with the locks of libcurl that it holds.
    So the process ends without a finalization, after the functions of :mod:`atexit` (they send the last traces).
    """
    try:
        command()
        status = 0
    except SystemExit as error:
        status = _status(error.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    end(status)


def end(status: int) -> NoReturn:
    """End the process: run the functions of :mod:`atexit`, and write what is buffered."""
    try:
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or the reader of a pipe has gone
                stream.flush()
        os._exit(status)


def _status(code: object) -> int:
    """Return the exit status for the code of a :class:`SystemExit`, as the interpreter does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1
