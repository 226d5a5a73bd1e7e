"""The processes of local jobs: each job is a session, whose leader has written its claim file."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Mapping

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
