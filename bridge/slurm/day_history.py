"""The last day of Slurm in sums, which the controllers keep in the ConfigMap of :mod:`bridge.slurm.cluster_sums`. Pure.

It survives restarts of the controllers and of the web page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from bridge.slurm import states
from bridge.slurm.cluster_sums import ClusterSums
from bridge.slurm.models import Snapshot

KEY = "day.json"
"""The key in ``data`` of the ConfigMap; its value is a list of lists: the fields of :class:`Sample` in their order."""
PERIOD = 300.0
"""Seconds between two samples. Slurm lists a job for as long after its end, so none is missed."""
DAY = 86400.0
MOST = int(DAY / PERIOD)
"""Samples that are kept: 15 kB."""


class Sample(NamedTuple):
    """The sums at a time, in seconds since the epoch.

    ``own_cpus`` and ``other_cpus`` are in use by podbridge's jobs and by others, of ``cpus`` that are not closed.
    ``running`` and ``waiting`` are podbridge's jobs; ``started`` and ``ended`` are those since the sample before.
    """

    at: int
    own_cpus: int
    other_cpus: int
    cpus: int
    running: int
    waiting: int
    started: int
    ended: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The ids of podbridge's jobs that had started, and of those that had ended, at a time on the monotonic clock."""

    at: float
    started: frozenset[int]
    ended: frozenset[int]


def marks(snapshot: Snapshot, at: float) -> Marks:
    """Return the marks of a snapshot."""
    started, ended = set(), set()
    for job_id, observed in snapshot.jobs.items():
        if observed.missing or states.end_of(observed.job.states) is not None:
            ended.add(job_id)
        if observed.job.start_time and not states.is_pending(observed.job.states):
            started.add(job_id)
    return Marks(at, frozenset(started), frozenset(ended))


def sample(sums: ClusterSums, snapshot: Snapshot, before: Marks, now: Marks) -> Sample:
    """Return the sample of a snapshot; ``before`` are the marks of the sample before it."""
    jobs = [observed.job for observed in snapshot.jobs.values() if not observed.missing]
    cpus = sum(node.total.cpus for node in sums.nodes if not node.closed)
    return Sample(
        int(sums.at),
        sum(node.podbridge.cpus for node in sums.nodes),
        sum(node.others.cpus for node in sums.nodes),
        cpus,
        sum(states.is_allocated(job.states) for job in jobs),
        sum(states.is_pending(job.states) for job in jobs),
        len(now.started - before.started),
        len(now.ended - before.ended),
    )


def kept(samples: Iterable[Sample], now: float) -> tuple[Sample, ...]:
    """Return the samples of the last day, oldest first. A sample of the future is left out: a clock was set back."""
    return tuple(sorted(each for each in samples if now - DAY < each.at <= now + PERIOD))[-MOST:]


@cache
def _adapter() -> TypeAdapter[tuple[Sample, ...]]:
    return TypeAdapter(tuple[Sample, ...])


def to_text(samples: Sequence[Sample]) -> str:
    """Return the value of the key."""
    return _adapter().dump_json(tuple(samples)).decode()


def from_config_map(config_map: Mapping[str, Any]) -> tuple[Sample, ...]:
    """Return the samples of a ConfigMap; raises ``ValueError``."""
    text = (config_map.get("data") or {}).get(KEY)
    return () if text is None else _adapter().validate_json(text)
