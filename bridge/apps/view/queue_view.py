"""What waits where: sums by partition and pool for all, and the position of each pod that a user may see. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.apps.view import wait_reasons
from bridge.apps.view.pod_view import RUNNING, STARTING, WAITING, PodView, seconds
from bridge.slurm import job_words
from bridge.slurm.cluster_sums import ClusterSums

PARTITION, POOL, NO_JOB = KINDS = ("partition", "pool", "no job")


@dataclass(frozen=True, slots=True)
class QueueSums:
    """The work at one place. ``waiting`` are counts by reason: of jobs for a partition, of pods for others.

    ``others_running`` and ``others_waiting`` are the jobs of others; ``None``: not known.
    """

    kind: str
    name: str
    running: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    others_running: int | None = None
    others_waiting: int | None = None


class Position(NamedTuple):
    """The position of a job among podbridge's jobs that wait in a partition and are not held, and their number.

    ``others``: the jobs of others that wait there. Their priorities are not read: some of them start earlier.
    """

    number: int
    of: int
    others: int
    partition: str

    @property
    def text(self) -> str:
        """The position in words."""
        others = f"; {self.others} jobs of others wait there, too" if self.others else ""
        return f"position {self.number} of {self.of} among podbridge's jobs in partition {self.partition}{others}"


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod that waits: its place and reason, its position there, and its expected start.

    ``position`` and ``start`` (seconds since the epoch) are ``None`` if they are not known.
    """

    pod: PodView
    place: str
    reason: str
    position: Position | None
    start: float | None
    step: str


def places(rows: Iterable[PodView], pools: Collection[str], sums: ClusterSums | None) -> list[QueueSums]:
    """Return the sums of all places: pods without a job by the reason of their condition, partitions, then pools.

    ``rows`` are all pods, and ``pools`` the pools that the user may see. A partition without work is left out.
    """
    without: Counter[str] = Counter()
    waiting: dict[str, Counter[str]] = {name: Counter() for name in pools}
    running: Counter[str] = Counter()
    for row in rows:
        if row.state == WAITING and not row.job:
            without[row.reason] += 1
        elif row.state == STARTING and row.node in waiting:
            waiting[row.node][row.reason or row.state] += 1
        elif row.state == RUNNING:
            running[row.node] += 1
    result = [QueueSums(NO_JOB, "", 0, _ranked(without))] if without else []
    for each in sums.partitions if sums is not None else ():
        told = {reason or "not known yet": count for reason, count in each.waiting.items()}
        numbers = each.others_running, each.others_waiting
        result.append(QueueSums(PARTITION, each.name, each.running, _ranked(told), *numbers))
    return result + [QueueSums(POOL, name, running[name], _ranked(waiting[name])) for name in sorted(pools)]


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def positions(sums: ClusterSums | None) -> dict[int, Position]:
    """Return the positions of podbridge's waiting jobs; of a job in several partitions the best one."""
    result: dict[int, Position] = {}
    for each in sums.partitions if sums is not None else ():
        for index, job_id in enumerate(each.order):
            position = Position(index + 1, len(each.order), each.others_waiting, each.name)
            result[job_id] = min(result.get(job_id, position), position)
    return result


def waiting_pods(rows: Iterable[PodView], pools: Collection[str], sums: ClusterSums | None) -> list[QueuedPod]:
    """Return the pods that wait: for a job, for Slurm, or in the queue of a pool."""
    known = positions(sums)
    return [
        _queued(row, known) for row in rows if row.state == WAITING or (row.state == STARTING and row.node in pools)
    ]


def _queued(row: PodView, known: Mapping[int, Position]) -> QueuedPod:
    words = job_words.read_waiting(row.message)
    position = known.get(int(row.job)) if row.job.isdecimal() else None
    reason, start = words.reason or row.reason or row.state, seconds(words.start)
    if row.state != WAITING:
        return QueuedPod(row, row.node, reason, position, start, "")
    about = {"pod": row.name, "namespace": row.namespace, "job": row.job, "message": row.message}
    step = wait_reasons.next_step(row.reason, words.reason, **about)
    return QueuedPod(row, words.partition, reason, position, start, step)
