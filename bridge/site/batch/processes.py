"""Processes of this machine: how jobs are started, and all of them, read from ``/proc``."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.core.grouping import grouped
from bridge.site.cpus import all_given

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

SHORTAGES = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of :func:`start` that may not occur at the next attempt."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. ``started`` is in clock ticks since the machine started, ``rss`` in bytes."""

    pid: int
    parent: int
    session: int
    started: int
    rss: int
    zombie: bool


def start(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a job's directory, in a session of its own, without input and output."""
    with all_given():
        return subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o077,
        )


def read(pid: int) -> Process | None:
    """Read one process; ``None``: it does not exist, or is hidden as another user's (``hidepid``, see proc(5)).

    Raises :class:`OSError` if that is not known, for example without a free file descriptor.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # pid (command, which may hold anything) state ppid pgrp session ...: see proc(5)
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        rss=int(fields[21]) * _PAGE,
        zombie=fields[0] in (b"Z", b"X"),
    )


def is_running(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start runs; ``False`` for a zombie."""
    process = read(pid)
    return process is not None and process.started == started and not process.zombie


def age(started: int) -> float:
    """Return the seconds since a process started; changes of the time of day have no effect."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS


def read_all() -> dict[int, Process]:
    """Read all processes."""
    processes = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in processes if process is not None}


def members(processes: dict[int, Process], sessions: Collection[int]) -> dict[int, list[Process]]:
    """Return processes by session. A process that has left its session belongs to it while its ancestors do."""
    children = grouped((process.parent, process) for process in processes.values())
    session_ids = set(sessions)
    processes_by_session: dict[int, list[Process]] = {session: [] for session in session_ids}
    owner: dict[int, int] = {
        process.pid: process.session for process in processes.values() if process.session in session_ids
    }
    unvisited = list(owner)
    while unvisited:
        pid = unvisited.pop()
        for child in children.get(pid, ()):
            if child.pid not in owner:
                owner[child.pid] = owner[pid]
                unvisited.append(child.pid)
    for pid, session in owner.items():
        processes_by_session[session].append(processes[pid])
    return processes_by_session


def boot_id() -> str:
    """Return an id that changes with each start of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
