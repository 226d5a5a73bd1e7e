"""The use of CPU and memory by the containers of jobs, which their scripts measure on their machines on request.

The submitter sets the time of one file, and the script of each running job that sees it measures once. Without a
request, nothing is measured.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from bridge.clock import Clock
from bridge.protocol.model.jobs import MOST_CONTAINERS, ContainerUse, JobUsage
from bridge.site.files import atomic_files
from bridge.site.files.beneath import Below

ASK = "usage"
MEASURED = "run/usage"
LEAST_GAP = 5.0
"""Seconds between two requests to the scripts, which measure at most as often."""
PAUSE = 60.0
"""Seconds without a request after which the next one waits for what the scripts measure now."""
WAIT = 1.8
"""Seconds of this wait: scripts look once a second."""
STALE = 120.0
"""Seconds before a request after which a measurement is too old. A shared file system may show a request late."""
_LARGEST_FILE = 2**16
# few enough digits that no job makes an answer invalid
_TIME = re.compile("[0-9]{1,15}")
_CONTAINER = re.compile("([a-z0-9-]{1,63}) ([0-9]{1,9}) ([0-9]{1,15}) ([0-9]{1,12})")


class UsageReader:
    """Asks the scripts of a site and reads what they have measured. ``wait`` waits for some seconds."""

    def __init__(self, folder: Path, clock: Clock, wait: Callable[[float], object]) -> None:
        self._ask = folder / ASK
        self._clock, self._wait = clock, wait
        self._asked_at = float("-inf")
        self._lock = threading.Lock()

    def read(self, jobs: Sequence[tuple[str, str]]) -> list[JobUsage]:
        """Return the measurements of jobs, which are UIDs with their directories, as far as there are any.

        Raises OSError if the directory of the site cannot be written to.
        """
        since = self._request() - STALE if jobs else 0.0
        found = (_measured(uid, path, since) for uid, path in jobs)
        return [usage for usage in found if usage is not None]

    def _request(self) -> float:
        """Ask the scripts, unless they were asked a moment ago; return when, by the clock of the file system."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._asked_at < LEAST_GAP:
                return self._ask.stat().st_mtime
            self._asked_at = now
            try:
                before = self._ask.stat().st_mtime
            except FileNotFoundError:
                before = float("-inf")
            os.close(os.open(self._ask, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(self._ask)
            asked = self._ask.stat().st_mtime
            if asked - before > PAUSE:
                self._wait(WAIT)
            return asked


def _measured(uid: str, path: str, since: float) -> JobUsage | None:
    descriptor = atomic_files.open_plain(Below(path, MEASURED))
    if descriptor is None:
        return None
    try:
        if os.fstat(descriptor).st_mtime < since:
            return None
        return parse(uid, os.read(descriptor, _LARGEST_FILE))
    except OSError:  # a stale handle of a shared file system
        return None
    finally:
        os.close(descriptor)


def parse(uid: str, content: bytes) -> JobUsage | None:
    """Return what a script has written (``measure_usage`` in ``watching.bash``); ``None`` if a job has changed it."""
    first, *lines = content.decode(errors="replace").splitlines() or [""]
    if not _TIME.fullmatch(first):
        return None
    found = map(_CONTAINER.fullmatch, lines[:MOST_CONTAINERS])
    containers = [
        ContainerUse(name=line[1], restarts=int(line[2]), cpu=int(line[3]) / 100, memory=int(line[4]) * 1024)
        for line in found
        if line is not None
    ]
    return JobUsage(job=uid, at=int(first) / 100, containers=containers)
