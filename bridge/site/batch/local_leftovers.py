"""Removes what the containers of a killed script left, with ``job.sh leftovers``.

A container is a session of its own or, with podman, no descendant of the script. So only the script knows what its
containers leave when it is killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping

from bridge.clock import Clock
from bridge.logs import kv
from bridge.site.batch import processes

log = logging.getLogger(__name__)

LONGEST = 60.0
"""Seconds after which a job's end is reported although the removal has not ended."""


class Leftovers:
    """Runs the removals with these variables, at the same time and without waiting for them."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment, self._clock = dict(environment), clock
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def gone(self, uid: str, folder: str) -> bool:
        """Return whether the removal for a killed job has ended; the first call starts it."""
        if uid not in self._running:
            try:
                child = processes.start(["bash", f"{folder}/job.sh", "leftovers"], folder, self._environment)
            except OSError as error:
                if error.errno in processes.SHORTAGES:
                    raise
                return True  # without the directory, nothing can be found
            self._running[uid] = (child, self._clock.monotonic())
        child, began = self._running[uid]
        code = child.poll()
        if code is None and self._clock.monotonic() - began < LONGEST:
            return False
        if code != 0:
            log.warning("a killed job may have left processes or files", extra=kv(job=uid, code=code, log="script.log"))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        del self._running[uid]
        return True
