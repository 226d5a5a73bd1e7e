"""One processor for the submitter's own threads, all of them for what it starts.

Python's threads take turns. Where they may run on several processors, each system call of one wakes another on the next
processor, often for nothing: that cost a third of all submits (docs/performance.md). The kernel moves other work away
from a processor that is kept busy.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

_given: set[int] = set()
"""The processors that the process was given; empty: nothing was changed."""


def keep_to_one() -> None:
    """Keep the calling thread, and those that it starts from now on, to one of the processors it was given."""
    global _given
    given = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # not allowed here: slower, no worse
        os.sched_setaffinity(0, {random.choice(sorted(given))})  # noqa: S311
        _given = given


def count() -> int:
    """Give the number of processors that the submitter was given."""
    return len(_given or os.sched_getaffinity(0))


@contextlib.contextmanager
def all_given() -> Iterator[None]:
    """Let what is started meanwhile run on all processors that the submitter was given."""
    if not _given:
        yield
        return
    mine = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # none of them is left: the kernel has given others
        os.sched_setaffinity(0, _given)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, mine)
