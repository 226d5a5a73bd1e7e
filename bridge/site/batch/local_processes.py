"""The processes of local jobs: each job is a session, whose leader has written its claim file.

A container is a session of its own or, with podman, no descendant of the script. So only the script knows what its
containers leave when it is killed: ``job.sh leftovers`` removes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping

from bridge.clock import Clock
from bridge.logs import kv
from bridge.site.batch import processes
from bridge.site.batch.local_records import Claim, Record

MEMORY_SLACK = 64 * 2**20
"""Bytes that a job may use above a tenth more than it requested."""


def over_memory(running: Mapping[int, tuple[Record, Claim]]) -> Iterator[tuple[Record, Claim, int]]:
    """Yield the jobs, given by session, that use more memory than they requested, and the bytes that they use."""
    for pid, session in (processes.members(processes.read_all(), running) if running else {}).items():
        (job, claim), used = running[pid], sum(process.rss for process in session)
        if used > job.memory * 1.1 + MEMORY_SLACK:
            yield job, claim, used


def kill(claims: Collection[Claim]) -> None:
    """Kill the remaining processes of jobs. The list of all processes is read for this call, and only once."""
    if not claims:
        return
    processes_by_pid = processes.read_all()
    # if another process has the pid now, the job's session is gone
    pids = {
        pid for pid, started, _ in claims if pid not in processes_by_pid or processes_by_pid[pid].started == started
    }
    for session in processes.members(processes_by_pid, pids).values():
        for process in session:
            if processes.is_running(process.pid, process.started):  # else the pid may be another process's by now
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)


log = logging.getLogger(__name__)

LONGEST_REMOVAL = 60.0
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
        if code is None and self._clock.monotonic() - began < LONGEST_REMOVAL:
            return False
        if code != 0:
            log.warning("a killed job may have left processes or files", extra=kv(job=uid, code=code, log="script.log"))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        del self._running[uid]
        return True
