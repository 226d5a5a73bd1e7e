"""The mean wait of pods by policy, on a trace that is replayed over three places: ``./hack/bench.sh --places COUNT``.

The choice of a place and the expected waits are podbridge's own; the batch systems are models. Each place has users of
its own, whose jobs podbridge does not see, and starts jobs in their order, or earlier if they fit beside the first one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, quantiles
from typing import Any

from bridge import names
from bridge.workload import eligibility, queue_wait
from cluster.bench.table import Table
from scheduler import pod_group
from scheduler.group_actions import BindToPool
from scheduler.nodes.occupancy import Occupancy
from scheduler.places import place_decide
from scheduler.places.place_view import PlaceView, Policy, PoolView

SEED = 44
CORES: Mapping[str, int] = {"large": 512, "medium": 256, "small": 128}
OWN_LOAD: Mapping[str, float] = {"large": 0.75, "medium": 0.35, "small": 0.2}
"""Share of the cores that the place's own users need."""
POD_LOAD = 0.4
"""Share of all cores that the pods of the trace need."""
LOOK = 30.0
"""Seconds between two announcements of a place."""
FIRST = 50
"""Waiting pods for which a place is chosen at once: the others come later anyway."""
POLICIES: tuple[Policy, ...] = ("order", "least-loaded", "soonest")


def _node(name: str, cpu: int) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"cpu": str(cpu), "pods": "100000"}, "conditions": [ready]}
    taints = [{"key": names.POOL_TAINT, "value": name, "effect": "NoSchedule"}]
    return {
        "metadata": {"name": name, "labels": {names.POOL_LABEL: name}},
        "spec": {"taints": taints},
        "status": status,
    }


POOLS = ",".join(CORES)
VIEWS = {name: eligibility.view(_node(name, cores)) for name, cores in CORES.items()}


@dataclass(slots=True)
class Work:
    """A job: its arrival and length in seconds; ``pod`` is empty for a job of a place's own users."""

    arrived: float
    seconds: float
    cores: int
    pod: str = ""
    started: float | None = None


@dataclass(slots=True)
class Place:
    """The queue of one place. ``history`` are the jobs of podbridge."""

    cores: int
    free: int
    queue: list[Work] = field(default_factory=list)
    history: list[Work] = field(default_factory=list)

    def start(self, now: float) -> list[Work]:
        """Return the jobs that start now; one that has started elsewhere leaves the queue."""
        started = []
        self.queue = [work for work in self.queue if work.started is None]
        for work in self.queue:
            if work.cores <= self.free:
                work.started, self.free = now, self.free - work.cores
                started.append(work)
        return started

    def wait(self, now: float) -> float:
        """Return the expected wait, as the hub computes it."""
        return queue_wait.expected_wait([(work.arrived, work.started) for work in self.history[-500:]], now)


def trace(count: int) -> tuple[list[Work], dict[str, list[Work]]]:
    """Return the pods, and the jobs of each place's own users, for the same time."""
    dice = random.Random(SEED)  # noqa: S311  (a reproducible trace)

    def jobs(load: float, cores: int, until: float | None, most: int) -> list[Work]:
        works: list[Work] = []
        now = 0.0
        while len(works) < most and (until is None or now < until):
            seconds, size = min(dice.lognormvariate(5.5, 1.2), 20_000.0), dice.choice([1, 2, 4, 8, 16, 32])
            works.append(Work(now, seconds, size))
            now += dice.expovariate(1.0) * 502 * 10.5 / (load * cores)  # the mean length and size of these jobs
        return works

    pods = jobs(POD_LOAD, sum(CORES.values()), None, count)
    for number, work in enumerate(pods):
        work.pod = f"p{number}"
    end = pods[-1].arrived
    return pods, {name: jobs(OWN_LOAD[name], CORES[name], end, 10**9) for name in CORES}


class Replay:
    """The trace with one policy; without one, each pod is queued at all places at once."""

    def __init__(self, count: int, policy: Policy | None) -> None:
        self._policy = policy
        self._pods, own = trace(count)
        self._places = {name: Place(cores, cores) for name, cores in CORES.items()}
        self._events: list[tuple[float, int, str, Work]] = []
        self._order = 0
        for name, works in [("", self._pods), *own.items()]:
            for work in works:
                self._add(work.arrived, name, work)
        self._waiting: list[Work] = []
        self._occupancy, self._waits, self._looked_at = Occupancy(""), dict.fromkeys(CORES, 0.0), -LOOK

    def _add(self, at: float, place: str, work: Work) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, place, work))

    def run(self) -> list[float]:
        """Return the waits of the pods in seconds."""
        while self._events:
            now, _, name, work = heapq.heappop(self._events)
            if work.started is not None:
                self._places[name].free += work.cores
                self._occupancy.correct((work.pod,), lambda _: False)
            elif name:
                self._places[name].queue.append(work)
            else:
                self._waiting.append(work)
            if now - self._looked_at >= LOOK:
                self._looked_at = now
                self._waits = {each: place.wait(now) for each, place in self._places.items()}
            if self._waiting and work.pod:
                self._submit()
            for each, place in self._places.items():
                for begun in place.start(now):
                    self._add(now + begun.seconds, each, begun)
        return [(work.started or 0.0) - work.arrived for work in self._pods]

    def _submit(self) -> None:
        """Submit the first waiting pods to the places that are chosen for them."""
        first = self._waiting[:FIRST]
        if self._policy is None:
            chosen = {work.pod: tuple(CORES) for work in first}
        else:
            chosen = {uid: (name,) for uid, name in _choose(first, self._policy, self._occupancy, self._waits).items()}
        for work in first:
            for name in chosen.get(work.pod, ()):
                self._places[name].queue.append(work)
                self._places[name].history.append(work)
        self._waiting = [work for work in self._waiting if work.pod not in chosen]


def _choose(works: list[Work], policy: Policy, occupancy: Occupancy, waits: Mapping[str, float]) -> dict[str, str]:
    """Let the scheduler choose places; return those of the pods for which one has room."""
    pods = [
        {
            "metadata": {"name": work.pod, "namespace": "ns", "uid": work.pod, "annotations": {names.POOLS: POOLS}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(work.cores)}}}],
            },
            "status": {},
        }
        for work in works
    ]
    pools = {name: PoolView(VIEWS[name], wait=waits[name]) for name in CORES}
    decision = place_decide.decide(PlaceView(pod_group.of_each(pods), pools, (), occupancy, {}, policy, {}, 0.0))
    for occupant in decision.planned:
        occupancy.assume(occupant)
    return {action.pod["metadata"]["uid"]: action.pool for action in decision.actions if isinstance(action, BindToPool)}


def measure(table: Table, count: int) -> None:
    """Replay the trace with each policy, and as a race."""
    means: dict[str, float] = {}
    for policy in (*POLICIES, None):
        waits = Replay(count, policy).run()
        name = policy or "race"
        means[name] = mean(waits)
        note = f"p95 {quantiles(waits, n=20)[-1]:.0f} s, {means[name] / means['order']:.2f} of order"
        table.add(f"mean wait, {name}", f"{means[name]:.0f} s", note)
