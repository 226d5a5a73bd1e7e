"""A group of three that races over the colocated Slurm and a pool: one Binding is the grant, whoever is killed when."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from bridge import names
from bridge.errors import KubeConflictError
from bridge.protocol.model.jobs import JobStatus
from bridge.workload import places, pods, remote_gangs
from controllers.virtual import race_decide
from controllers.virtual.pod_reports import PodReports
from controllers.virtual.pod_state import Entry
from controllers.virtual.race_act import RaceActor
from tests import builders
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_kube import Killed
from tests.fakes.recorders import RecordedEvents

SIZE = 3
POOL, PODS = "a", "/api/v1/namespaces/ns/pods"
WRITES = 24
"""More writes than one group needs from its creation to its last Binding, with those of a repeated one."""


def make(slot: int, uid: str = "", size: int = SIZE, minimum: int = SIZE) -> dict[str, Any]:
    keys = (names.VIRTUAL_TAINT, names.POOL_TAINT, names.MANAGED_TAINT)
    return builders.pod(
        uid or f"u{slot}",
        held=True,
        requests={"cpu": "5"},
        annotations={
            names.POOLS: f"{POOL},local",
            names.PLACEMENT: names.RACE,
            **builders.group(size, minimum, slot=slot),
        },
        metadata={"name": uid or f"u{slot}", "creationTimestamp": f"2026-01-01T00:00:0{slot}Z"},
        tolerations=[{"key": key, "operator": "Exists"} for key in keys],
    )


class World(MemoryHub):
    """A hub with one pool; ``bound`` are the Bindings in their order: UID and node."""

    def __init__(self, nodes: int = SIZE) -> None:
        super().__init__(tuple(f"n{number}" for number in range(1, nodes + 1)), pools=(POOL,))
        self.bound: list[tuple[str, str]] = []
        self.kube.on_bind = lambda pod, node: self.bound.append((pods.uid(pod), node))

    def begin(self, count: int = SIZE, **more: int) -> None:
        """Create the pods of the group, and go on until its job is pending in Slurm."""
        for slot in range(count):
            self.create(make(slot, **more))
        self.go_on(3)

    def go_on(self, steps: int = 1, starts: bool = False) -> None:
        for _ in range(steps):
            for job in self.slurm.live() if starts else ():
                self.slurm.start(job)
            self.run(lambda: self.work(controllers=True))

    def members(self) -> dict[str, Any]:
        return {pods.uid(pod): pod for pod in self.kube.pods()}

    def claim(self) -> None:
        """Let the script of the group's job at the pool ask: the controllers send the grant of rank 0."""
        gang = [pod for pod in self.kube.pods() if POOL in places.open_pools(pod)]
        place = next((found for pod in gang if (found := remote_gangs.place_of(pod)) and found.rank == 0), None)
        together = [pod for pod in gang if place is not None and remote_gangs.gang_of(pod) == place.gang]
        if place is None or len(together) < place.size:
            return  # the site waits for all pods
        pod: Any = self.kube.get(f"{PODS}/{pods.uid(min(together, key=rank_of))}")
        pool: Any = type("Pool", (), {"name": POOL})
        actor = RaceActor(
            self.kube, PodReports(RecordedEvents(), self.clock), None, None, self.clock, lambda: None, 30, 60
        )  # type: ignore[arg-type]
        self.run(lambda: actor.claim(pod, "t", pool, Entry()))

    def nodes_of(self) -> dict[str, str]:
        return {uid: pod["spec"].get("nodeName", "") for uid, pod in self.members().items()}


@pytest.fixture
def world() -> World:
    """A hub with a group whose job is pending in Slurm."""
    made = World()
    made.begin()
    return made


def rank_of(pod: Any) -> int:
    place = remote_gangs.place_of(pod)
    assert place is not None
    return place.rank


def test_a_group_is_queued_at_slurm_and_at_the_pool(world: World) -> None:
    for uid, pod in world.members().items():
        assert places.recorded(pod) == (POOL, names.LOCAL_POOL)
        assert places.open_pools(pod) == (POOL,)
        assert rank_of(pod) == int(uid[1:])
    assert len(world.slurm.live()) == 1


def test_slurm_wins_with_the_binding_of_the_first_pod(world: World) -> None:
    world.go_on(2, starts=True)
    assert world.bound == [("u0", "n1"), ("u1", "n2"), ("u2", "n3")]
    assert all(remote_gangs.place_of(pod) is None for pod in world.members().values()), "no place at a pool is left"


def test_a_pool_wins_and_the_placeholder_job_is_withdrawn(world: World) -> None:
    world.go_on(25)  # the waiting pods get the id of their job
    assert {pods.job_id(pod) for pod in world.members().values()} == {world.slurm.live()[0].job_id}
    world.claim()
    assert world.bound == [("u0", POOL)]
    world.go_on(6, starts=True)
    assert world.nodes_of() == dict.fromkeys(("u0", "u1", "u2"), POOL)
    assert not world.slurm.live()
    assert not any(map(pods.is_held, world.members().values()))
    assert {pod["metadata"]["annotations"][names.GRANT] for pod in world.members().values()} == {f"{POOL}/t"}


def test_the_job_at_slurm_starts_when_a_pool_has_won(world: World) -> None:
    """The decision is older than the grant: the Binding of the first pod fails, so no other one is sent."""
    (job,) = world.slurm.live()
    world.slurm.start(job)
    world.decide()
    assert world.queues[0].calls, "the members are to be bound"
    world.claim()
    world.run_all()
    assert world.bound == [("u0", POOL)]
    world.go_on(4)
    assert set(world.nodes_of().values()) == {POOL}
    assert not world.slurm.live()


@pytest.mark.parametrize("polls", [1, 3])
def test_a_member_that_waits_for_its_binding_to_the_pool_does_not_end_with_the_lost_job(
    world: World, polls: int
) -> None:
    world.go_on(25)
    world.claim()
    for _ in range(polls):  # no scheduler goes on; the controllers withdraw the job
        world.clock.advance(1)
        world.poll()
        world.deliver()
        world.controllers.reconcile()
        world.run_all()
    assert not any(pods.is_deleted(pod) for pod in world.members().values())
    world.restart()
    world.go_on(4)
    assert set(world.nodes_of().values()) == {POOL}


def test_without_the_first_pod_no_member_is_bound_until_there_is_another_gang(world: World) -> None:
    """Another pod could be granted to the pool as the first one of a gang that this process does not know yet."""
    world.kube.request_deletion(f"{PODS}/u0")
    world.go_on(1, starts=True)
    world.create(make(0, "heir"))
    world.decide()
    assert not world.bound
    world.go_on(4)
    assert world.bound[0] == ("heir", "n1")
    assert len(world.bound) == SIZE


def test_the_first_pod_gets_a_node_if_slurm_has_fewer_than_members() -> None:
    world = World()
    world.begin(count=3, size=4, minimum=2)
    for uid, rank in (("u0", 2), ("u2", 0)):
        pod = world.kube.get(f"{PODS}/{uid}")
        gang = remote_gangs.gang_of(pod)
        pod["metadata"]["annotations"][names.PLACE_IN_JOB] = f"{gang}/{rank}/3"
        world.kube.put(f"{PODS}/{uid}", pod)
    (job,) = world.slurm.live()
    world.slurm.drained["n3"] = "DRAIN"
    world.slurm.start(job)
    world.slurm.drained.clear()
    assert job.nodes == ("n1", "n2")
    world.go_on(3)
    assert world.bound[0][0] == "u2"
    assert {node for _, node in world.bound[:2]} == {"n1", "n2"}


def test_a_group_whose_race_ends_keeps_only_slurm(world: World) -> None:
    pod = world.kube.get(f"{PODS}/u1")
    del pod["metadata"]["annotations"][names.PLACEMENT]
    world.kube.put(f"{PODS}/u1", pod)
    world.go_on(2)
    assert {places.recorded(pod) for pod in world.members().values()} == {()}
    world.go_on(3, starts=True)
    assert sorted(world.nodes_of().values()) == ["n1", "n2", "n3"]


def test_the_sites_grant_only_the_first_pod(world: World) -> None:
    """So the Binding of the first pod to a node of Slurm is the end of the race at all pools."""
    for pod in world.members().values():
        job = JobStatus(job=pods.uid(pod), namespace="ns", name="p", phase="queued", asks="t")
        claims = isinstance(race_decide.decide(pod, job, Entry(), 0.0), race_decide.Claim)
        assert claims == (rank_of(pod) == 0)


@pytest.mark.parametrize("winner", ["slurm", "pool", "both"])
@pytest.mark.parametrize("writes", range(1, WRITES))
def test_killed_after_any_write_the_group_runs_at_one_place(winner: str, writes: int) -> None:
    world = World()
    for slot in range(SIZE):
        world.create(make(slot))
    world.writes.kill_after = writes
    for step in range(14):
        world.go_on(starts=winner != "pool" and step > 3)
        if winner != "slurm" and step > 3:
            world.claim()
    nodes = world.nodes_of()
    assert all(nodes.values()), nodes
    assert set(nodes.values()) in ({POOL}, {"n1", "n2", "n3"}), nodes
    assert len(world.bound) == SIZE
    assert winner == "both" or (set(nodes.values()) == {POOL}) == (winner == "pool")
    assert len(world.slurm.live()) == (POOL not in nodes.values()), "the job of the loser is withdrawn"


@pytest.mark.parametrize("nth", range(1, SIZE + 1))
def test_a_late_binding_of_a_killed_leader_splits_no_group(world: World, nth: int) -> None:
    """The leader is killed while a Binding is on its way, which arrives when a pool has been granted the group."""
    late: list[tuple[str, Any]] = []
    send, sent = world.kube.create, 0

    def create(path: str, body: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent != nth:
            return send(path, body)
        late.append((path, body))
        raise Killed

    world.kube.create = create  # type: ignore[method-assign]
    world.go_on(2, starts=True)
    assert late
    world.kube.create = send  # type: ignore[method-assign]
    world.claim()
    with contextlib.suppress(KubeConflictError):
        send(*late[0])
    world.go_on(6, starts=True)
    assert set(world.nodes_of().values()) in ({POOL}, {"n1", "n2", "n3"})
