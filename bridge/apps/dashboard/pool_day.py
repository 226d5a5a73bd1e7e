"""The last day of the pools in sums, sampled by the process of the web page; a restart begins it anew."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from bridge.apps.view import node_view
from bridge.apps.view.node_view import NodeUse
from bridge.apps.view.pod_view import RUNNING, STARTING, PodView
from bridge.clock import Clock
from bridge.kube.object_store import Object
from bridge.slurm.day_history import MOST, Sample


def sample(pools: Iterable[NodeUse], rows: Iterable[PodView], since: float, at: float) -> Sample:
    """Return the sums of all pools at ``at``; pods count as started or ended if they did so after ``since``.

    ``waiting`` are the pods in the queues of the sites. A pod that was deleted since its end is not counted.
    """
    cpus = [use.usage("cpu") for use in pools if use.ready]
    names = {use.name for use in pools}
    there = [row for row in rows if row.node in names]
    return Sample(
        int(at),
        round(sum(each["used"] for each in cpus)),
        0,
        round(sum(each["total"] for each in cpus)),
        sum(row.state == RUNNING for row in there),
        sum(row.state == STARTING for row in there),
        sum(_is_within(row.times.started, since, at) for row in there),
        sum(_is_within(row.times.ended, since, at) for row in there),
    )


def _is_within(time: float | None, since: float, at: float) -> bool:
    return time is not None and since < time <= at


class PoolDay:
    """Keeps one day of samples, one for each ``PERIOD``. ``ready``: whether the objects are listed."""

    def __init__(
        self,
        pods: Callable[[], list[Object]],
        nodes: Callable[[], list[Object]],
        ready: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._pods, self._nodes, self._ready, self._clock = pods, nodes, ready, clock
        self._samples: deque[Sample] = deque(maxlen=MOST)
        self._lock = threading.Lock()
        self._since = clock.time()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def take(self) -> None:
        """Take a sample. Without pools, and while objects are missing, there is none."""
        if not self._ready():
            return
        rows = [obj["view"] for obj in self._pods()]
        pools, _ = node_view.nodes(self._nodes(), rows)
        since, self._since = self._since, self._clock.time()
        if pools:
            with self._lock:
                self._samples.append(sample(pools, rows, since, self._since))
