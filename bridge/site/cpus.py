"""One processor for the submitter's own threads, all processors for the programs that it starts.

Python's threads take turns at the interpreter. On several processors, each system call of one thread wakes another on
the next processor, often for nothing: this cost a third of all submissions. The kernel moves other work away from a
busy processor. The hub gained nothing by this.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

_own_cpus: set[int] = set()
"""The processors of the process at its start; empty: unchanged."""


def keep_to_one() -> None:
    """Bind the calling thread, and those that it starts later, to one of its processors."""
    global _own_cpus
    cpus = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # not allowed here: slower, nothing else
        os.sched_setaffinity(0, {random.choice(sorted(cpus))})  # noqa: S311
        _own_cpus = cpus


def count() -> int:
    """Return the number of processors of the submitter at its start."""
    return len(_own_cpus or os.sched_getaffinity(0))


@contextlib.contextmanager
def all_given() -> Iterator[None]:
    """Let programs that are started meanwhile run on all processors of the submitter."""
    if not _own_cpus:
        yield
        return
    current_cpus = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the kernel has assigned other processors since
        os.sched_setaffinity(0, _own_cpus)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, current_cpus)
