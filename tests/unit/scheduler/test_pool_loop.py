"""The choice of places by the loop of the scheduler, with the pods that go to the colocated Slurm."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.workload import eligibility, pods
from scheduler.places.pool_places import PoolPlaces
from scheduler.places.slurm_place import SlurmPlace
from scheduler.scheduler_loop import Scheduler
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.memory_hub import Queue
from tests.fakes.memory_kube import MemoryCache, MemoryKube, Writes
from tests.fakes.recorders import RecordedEvents

OURS = Config().scheduler_name
MANAGED = {"key": names.MANAGED_TAINT, "value": OURS, "effect": "NoExecute"}
VIRTUAL = [
    {"key": names.POOL_TAINT, "value": "site", "effect": "NoSchedule"},
    {"key": names.VIRTUAL_TAINT, "value": "true", "effect": "NoSchedule"},
]


def node(name: str, cpu: str, *, virtual: bool) -> dict[str, Any]:
    labels = {names.POOL_LABEL: name} if virtual else {names.SLURM_NODENAME_LABEL: name}
    made = builders.node(
        name,
        labels=labels,
        annotations={names.RACE_ALLOWED: "true"},
        allocatable={"cpu": cpu, "pods": "10"},
        ready="True",
        taints=VIRTUAL if virtual else [MANAGED],
    )
    made["metadata"] |= {"uid": name, "resourceVersion": "1"}
    return made


def pod(race: bool) -> dict[str, Any]:
    annotations = {names.POOLS: "site,local"}
    if race:
        annotations |= {names.PLACEMENT: names.RACE, names.PLACES: "site,local"}
    tolerations = [{**taint, "operator": "Equal"} for taint in (*VIRTUAL, MANAGED)]
    spec = {"schedulerName": OURS, "tolerations": tolerations}
    identity = {"name": "u1", "resourceVersion": "1"}
    return builders.pod(annotations=annotations, requests={"cpu": "4"}, metadata=identity, **spec)


class World:
    """A scheduler with one waiting pod, a pool and a node of Slurm, about which nothing is decided."""

    def __init__(self, race: bool, cpu_of_pool: str) -> None:
        self.pods = MemoryCache([pod(race)], pods.is_open)
        self.nodes = MemoryCache([node("site", cpu_of_pool, virtual=True), node("w1", "8", virtual=False)])
        config = Config.model_validate({"pools": {"nats": {"servers": ["nats://x"]}, "race": {"enabled": race}}})
        self.queue = Queue()
        kube = cast(KubeClient, MemoryKube(Writes()))
        events, nodes = cast(EventRecorder, RecordedEvents()), cast(Cache, self.nodes)
        shared = KubeDependencies(config, kube, nodes, events, FakeClock())
        self.loop = Scheduler(shared, cast(Cache, self.pods), None, None)
        loop, writer = self.loop, self.loop.pools._writer
        kept = loop.states, loop.groups, writer, loop.occupancy
        slurm = cast(SlurmPlace, SimpleNamespace(has_job=lambda _: False, expected_wait=lambda: 0.0))
        self.loop.pools = PoolPlaces(self.loop, shared, slurm, *kept)
        self.loop.workers = self.loop.pools.workers = cast(Any, self.queue)
        self.pods.subscribe(self.loop.pools.changed)
        self.loop.subscribe()

    @property
    def local(self) -> set[str]:
        return self.loop._at_slurm

    def look(self) -> int:
        """Decide once, carry out the actions, and return the number of these and of pods left to Slurm."""
        before = set(self.local)
        self.loop.reconcile()
        count = len(self.queue.calls) + len(self.local - before)
        while self.queue.calls:
            self.queue.run(0)
        return count


@pytest.mark.parametrize("race", [False, True])
def test_a_pod_is_left_to_slurm_once(race: bool) -> None:
    world = World(race, "8" if race else "1")
    assert [world.look() for _ in range(3)] == [1, 0, 0]
    assert world.local == {"u1"}


def test_a_pod_that_was_left_to_slurm_stays_there_when_a_pool_gets_room() -> None:
    world = World(race=False, cpu_of_pool="1")
    world.look()
    larger = node("site", "64", virtual=True)
    larger["metadata"]["resourceVersion"] = "2"
    world.nodes.deliver(larger, gone=False)
    assert world.look() == 0


def test_a_pod_whose_bind_failed_or_was_refused_leaves_its_room_free() -> None:
    world = World(race=False, cpu_of_pool="4")
    for _ in range(2):
        world.loop.reconcile()
        assert world.queue.calls.pop("u1") is not None
    assert world.local == set()


def test_the_view_of_a_node_is_computed_once_for_each_of_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    viewed: list[str] = []
    original = eligibility.view

    def view(raw: Any, taken: Any = None) -> eligibility.NodeView:
        viewed.append(raw["metadata"]["name"])
        return original(raw, taken)

    monkeypatch.setattr(eligibility, "view", view)
    world = World(race=False, cpu_of_pool="8")

    def decide() -> None:
        world.queue.calls.clear()
        world.local.clear()
        world.loop.reconcile()
        assert len(world.queue.calls) + len(world.local) == 1

    for _ in range(3):
        decide()
    assert sorted(viewed) == ["site", "w1"]
    smaller = node("site", "1", virtual=True)
    smaller["metadata"]["resourceVersion"] = "2"
    world.nodes.deliver(smaller, gone=False)
    viewed.clear()  # the loop compares the two states, too
    decide()
    assert viewed == ["site"]
    world.nodes.deliver(node("w1", "8", virtual=False), gone=True)
    decide()
    assert set(world.loop.pools._views) == {"site"}


def test_a_node_of_slurm_that_reports_the_same_again_wakes_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    world, wakes = World(race=False, cpu_of_pool="8"), list[str]()
    monkeypatch.setattr(world.loop, "wake", lambda *_: wakes.append(""))

    def wakes_after(change: dict[str, Any]) -> int:
        wakes.clear()
        world.nodes.deliver(change, gone=False)
        return len(wakes)

    again = node("w1", "8", virtual=False)
    again["metadata"]["resourceVersion"] = "2"
    again["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:01Z"
    assert wakes_after(again) == 0
    larger = node("w1", "16", virtual=False)
    larger["metadata"]["resourceVersion"] = "3"
    assert wakes_after(larger) == 1
    virtual = node("site", "8", virtual=True)
    virtual["metadata"]["resourceVersion"] = "2"
    virtual["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:01Z"
    assert wakes_after(virtual) == 0
    # a virtual node may become ready, or allow a race
    virtual = copy.deepcopy(virtual)
    virtual["metadata"] |= {"resourceVersion": "3", "annotations": {}}
    assert wakes_after(virtual) == 1
    virtual = copy.deepcopy(virtual)
    virtual["metadata"]["resourceVersion"] = "4"
    virtual["status"]["conditions"][0]["status"] = "False"
    assert wakes_after(virtual) == 1


def test_a_pod_that_no_longer_waits_is_forgotten() -> None:
    world = World(race=False, cpu_of_pool="1")
    world.look()
    gone = pod(race=False)
    gone["metadata"]["resourceVersion"] = "2"
    world.pods.deliver(gone, gone=True)
    world.look()
    assert world.local == set()
    assert world.loop.pools._candidates == set()


def test_a_pod_without_pools_is_looked_at_when_it_gets_one() -> None:
    world = World(race=False, cpu_of_pool="8")

    def change(version: str, **changes: Any) -> None:
        changed = pod(race=False)
        changed["metadata"] |= {"resourceVersion": version}
        changed["spec"] |= changes
        world.pods.deliver(changed, gone=False)

    change("2", tolerations=[])
    assert world.loop.pools._candidates == set()
    assert world.look() == 0
    change("3")
    assert world.look() == 1
    change("4", nodeName="site")
    assert world.loop.pools._candidates == set()


def test_calls_to_a_slurm_that_does_not_answer_hold_no_worker_of_the_pools() -> None:
    config, supervisor = Config.model_validate({"workers": 2}), Supervisor()
    events, kube = cast(EventRecorder, RecordedEvents()), cast(KubeClient, MemoryKube(Writes()))
    caches = [cast(Cache, MemoryCache([])) for _ in range(2)]
    loop = Scheduler(KubeDependencies(config, kube, caches[0], events, FakeClock()), caches[1], None, None)
    answered, bound = threading.Event(), threading.Event()
    try:
        for workers in (loop.workers, loop.pools.workers):
            workers.start(supervisor)
        for number in range(4):
            loop.workers.submit(f"slurm-{number}", lambda: bool(answered.wait(60)))  # type: ignore[arg-type,return-value]
        loop.pools.workers.submit("pool", bound.set)
        assert bound.wait(20)
        assert loop.has_call("slurm-0")
    finally:
        answered.set()
        supervisor.stop()
