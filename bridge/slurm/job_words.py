"""A job in words that users read in conditions, in the terminal and on the web page. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from bridge import clock
from bridge.slurm import states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job

_WAITING = re.compile(
    r"Slurm job [0-9]+ is (?:pending|suspended)(?: in partition ([^:]*))?: ([A-Za-z_]+)(?=[,;]|$)"
    r"(?:, estimated start ([0-9TZ:-]+))?"
)
_ASKED = re.compile(
    r"; it asks for (?:([0-9]{1,9}) CPUs?)?(?:(?:, )?([0-9]{1,12}(?:\.[0-9])?) ([MGT])iB)?"
    r"((?:(?:, )?[^ ,;]+:[0-9]{1,9})*)"
)
_MIB = {"M": 1, "G": 1024, "T": 1024**2}
UNLIMITED = 300 * 86400
"""Seconds: Slurm counts a job without a time limit as one of a year, so a later start says nothing."""


def amounts(given: Allotment | None) -> str:
    """Return CPUs, memory and gres: ``1 CPU, 500 GiB, gpu:2``; empty if nothing is known."""
    if given is None:
        return ""
    parts = [f"{given.cpus} CPU{'s' if given.cpus != 1 else ''}"] if given.cpus else []
    parts += [memory(given.memory_mib)] if given.memory_mib else []
    return ", ".join([*parts, *(f"{name}:{count}" for name, count in given.gres or () if count)])


def memory(mib: float) -> str:
    """Return an amount of memory: ``500 MiB``, ``1.5 GiB``, ``20 TiB``."""
    unit = "M" if mib < 1024 else "G" if mib < 10 * 1024**2 else "T"
    return f"{mib / _MIB[unit]:.{0 if unit == 'M' else 1}f}".removesuffix(".0") + f" {unit}iB"


def minutes(number: float) -> str:
    """Return a time in minutes as Slurm writes it: ``1-02:30:00``, ``00:45:00``."""
    days, rest = divmod(int(number), 1440)
    return f"{f'{days}-' if days else ''}{rest // 60:02}:{rest % 60:02}:00"


def waiting(job: Job, now: float) -> str:
    """Return the message of the condition of a pod whose job waits, at ``now`` (seconds since 1970)."""
    partition = f" in partition {job.partition}" if job.partition else ""
    # Slurm has none for a job that it has not considered, and for one that is suspended or about to end
    reason = job.reason or "no reason is known yet"
    start = f", estimated start {start}" if (start := expected_start(job, now)) else ""
    state = "suspended" if "SUSPENDED" in job.states else "pending"
    if not (states.is_pending(job.states) or "SUSPENDED" in job.states):
        state = "+".join(sorted(job.states))
    return f"Slurm job {job.job_id} is {state}{partition}: {reason}{start}{asks(job)}"


def asks(job: Job) -> str:
    """Return what a job asks for, as the end of a sentence; empty if it is not known."""
    return f"; it asks for {given}" if (given := amounts(job.request)) else ""


class WaitingWords(NamedTuple):
    """What a message of :func:`waiting` says; ``start`` is RFC 3339. Empty texts: it says nothing about it."""

    partition: str = ""
    reason: str = ""
    start: str = ""


def read_waiting(message: str) -> WaitingWords:
    """Read a message of :func:`waiting`; all texts are empty if it is another one, or has no reason."""
    match = _WAITING.match(message)
    return WaitingWords(*(text or "" for text in match.groups())) if match is not None else WaitingWords()


def read_asked(message: str) -> Allotment | None:
    """Return what the job asks for by a message of :func:`waiting`; ``None`` if it does not say.

    The message has rounded the memory; the least amount that it may mean is returned.
    """
    match = _ASKED.search(message)
    if match is None:
        return None
    cpus, amount, unit, devices = match.groups()
    gres = tuple(
        (name, int(count)) for name, _, count in (each.rpartition(":") for each in devices.split(", ") if each)
    )
    return Allotment(int(cpus or 0), max(0.0, float(amount) - 0.0499) * _MIB[unit] if amount else 0, gres)


def expected_start(job: Job, now: float) -> str:
    """Return when Slurm expects a pending job to start, in whole minutes; empty if it has not computed it."""
    if not job.start_time:
        return ""
    if job.start_time > now + UNLIMITED:
        return "unknown: the jobs ahead have no time limit"
    return clock.rfc3339(job.start_time - job.start_time % 60)
