"""A machine with the real scheduler: a group at pools, whose Bindings stop, arrive late or are repeated."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge import names
from bridge.errors import BridgeError
from bridge.workload import links, pods, remote_gangs
from tests import builders
from tests.examples import examples
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_kube import Killed
from tests.fakes.memory_world import path_of
from tests.unit.scheduler.hub_machine import NUMBER, HubMachine, pod_for_pools

POOLS = ("a", "b")
SIZE = 3
MEMBERS = [f"train-{slot}" for slot in range(SIZE)]


def make(name: str, uid: str, minimum: int, created: str, cpus: str = "2") -> Any:
    annotations = {names.POOLS: "a,b", **builders.group(SIZE, minimum, slot=int(name[-1]))}
    return pod_for_pools(name, uid, created, cpus, annotations)


class Gangs(HubMachine):
    """An owner creates members again, sites end them, and leaders are killed before, in and after their Bindings."""

    @initialize(
        minimum=st.integers(2, SIZE),
        first=st.sets(st.sampled_from(MEMBERS), min_size=2),
        cpus=st.lists(st.sampled_from("12"), min_size=SIZE, max_size=SIZE),
    )
    def begin(self, minimum: int, first: set[str], cpus: list[str]) -> None:
        self.cpus = dict(zip(MEMBERS, cpus, strict=True))
        self.use(MemoryHub(("n1",), pools=POOLS))
        self.minimum, self.succeeded = minimum, set[str]()
        self.ranks: dict[str, set[int]] = {}
        """The ranks of each job that a member has had."""
        self.shapes: dict[tuple[str, int], str] = {}
        """The shape of each rank of each job."""
        self.bound: list[str] = []
        self.hub.kube.on_bind = self.check_binding
        for name in sorted(first):
            self.make(name)

    # --- the API server -----------------------------------------------------------------------------------------------
    def check_binding(self, pod: Any, node: str) -> None:
        place = remote_gangs.place_of(pod)
        self.bound.append(pods.uid(pod))
        assert node in POOLS
        if place is None:
            assert 1 + len(self.succeeded) >= self.minimum, f"{pods.uid(pod)} runs alone: {self.story()}"
            return
        if place.gang not in self.ranks:
            assert place.size + len(self.succeeded) >= self.minimum, f"a part of the group starts: {self.story()}"
        self.ranks.setdefault(place.gang, set()).add(place.rank)
        shape = links.shape(pod)
        assert self.shapes.setdefault((place.gang, place.rank), shape) == shape, self.story()

    @precondition(lambda self: self.in_flight)
    @rule()
    def late_binding_arrives(self) -> None:
        path, body = self.in_flight.pop()
        with contextlib.suppress(BridgeError):
            self.arrive(path, body)
            self.refuse_taken_ranks()

    # --- the owner, users, sites --------------------------------------------------------------------------------------
    def make(self, name: str) -> None:
        self.made += 1
        self.hub.create(make(name, f"u{self.made}", self.minimum, self.hub.kube.stamp(), self.cpus[name]))

    @rule()
    def owner(self) -> None:
        self.delete_failed()
        have = {pod["metadata"]["name"] for pod in self.hub.kube.pods()}
        for name in MEMBERS:
            if name not in have:
                self.make(name)

    @precondition(lambda self: self.hub.kube.pods())
    @rule(number=NUMBER, everyone=st.booleans())
    def delete(self, number: int, everyone: bool) -> None:
        some = self.hub.kube.pods()
        for pod in some if everyone and number == 0 else [some[number % len(some)]]:
            self.hub.kube.request_deletion(path_of(pod))

    def refuse_taken_ranks(self) -> None:
        """The site refuses a member whose rank another one has: only a Binding that was on its way can cause this."""
        holders: dict[tuple[str, int], Any] = {}
        for pod in sorted(self.running(), key=lambda each: self.bound.index(pods.uid(each))):
            place = remote_gangs.place_of(pod)
            if place is not None and holders.setdefault((place.gang, place.rank), pod) is not pod:
                self.finish(pod, "Failed")

    def finish(self, pod: Any, phase: str) -> str:
        phase = super().finish(pod, phase)
        self.succeeded |= {pods.uid(pod)} if phase == "Succeeded" else set()
        return phase

    @rule(name=st.sampled_from(POOLS), ready=st.booleans())
    def pool_changes(self, name: str, ready: bool) -> None:
        self.set_ready(name, ready)

    # --- the hub ------------------------------------------------------------------------------------------------------
    @rule(delivers=st.booleans(), seconds=st.sampled_from([0.01, 1, 70]))
    def decide(self, delivers: bool, seconds: float) -> None:
        self.hub.clock.advance(seconds)
        if delivers:
            self.hub.deliver()
        self.hub.scheduler.reconcile()

    @precondition(lambda self: self.hub.queues[0].calls)
    @rule(number=NUMBER)
    def act(self, number: int) -> None:
        self.hub.run(lambda: self.hub.queues[0].run(number))

    def decide_all(self) -> None:
        self.hub.deliver()
        self.hub.scheduler.reconcile()

    @rule()
    def look(self) -> None:
        self.hub.clock.advance(0.01)
        self.decide_all()
        self.hub.run_all()

    @rule(writes=st.integers(1, 3), late=st.booleans())
    def kill(self, writes: int, late: bool) -> None:
        """Kill the leader after so many writes, or with the next Binding on the way."""
        self.next_is_late, self.hub.writes.kill_after = late, None if late else writes
        self.look()

    # --- what must hold -----------------------------------------------------------------------------------------------
    @invariant()
    def no_two_members_have_one_rank_and_all_run_in_one_job(self) -> None:
        if not hasattr(self, "hub"):
            return
        placed = [(pod, place) for pod in self.running() if (place := remote_gangs.place_of(pod)) is not None]
        assert len({place.rank for _, place in placed}) == len(placed), self.story()
        assert len({(pod["spec"]["nodeName"], place.gang, place.size) for pod, place in placed}) <= 1, self.story()

    def teardown(self) -> None:
        """The owner and the hub go on: every job has had all its members, and who waits has no place there."""
        if not hasattr(self, "hub"):
            return
        self.hub.writes.kill_after, self.hub.writes.faults, self.next_is_late = None, [], False
        for name in POOLS:
            self.set_ready(name, True)
        for _ in range(8):
            self.owner()
            self.look()
            self.hub.clock.advance(20)
            for pod in filter(pods.is_deleted, self.running()):
                self.finish(pod, "Failed")
        self.no_two_members_have_one_rank_and_all_run_in_one_job()
        for pod in self.running():
            if (place := remote_gangs.place_of(pod)) is not None:
                assert self.ranks[place.gang] == set(range(place.size)), self.story()
        for pod in filter(pods.is_open, self.hub.kube.pods()):
            reason = pods.condition(pod, names.POD_SCHEDULED).get("reason")
            assert reason in ("GangFull", "GangDiffers"), self.story()

    def story(self) -> str:
        return f"minimum {self.minimum}, {len(self.succeeded)} have succeeded\n{super().story()}"


Gangs.TestCase.settings = settings(
    max_examples=examples(40, 400), stateful_step_count=40, phases=[Phase.reuse, Phase.generate]
)
TestGangs = Gangs.TestCase


def hub_with_members(count: int = SIZE) -> MemoryHub:
    hub = MemoryHub(("n1",), pools=POOLS)
    for number, name in enumerate(MEMBERS[:count]):
        hub.create(make(name, f"u{number}", SIZE, hub.kube.stamp()))
    hub.deliver()
    return hub


def bound(hub: MemoryHub) -> dict[str, str]:
    """Return the place of each bound pod, by UID."""
    return {
        pods.uid(pod): str(pod["metadata"]["annotations"].get(names.PLACE_IN_JOB))
        for pod in hub.kube.pods()
        if pods.is_bound(pod)
    }


def die_at_writes(hub: MemoryHub, in_flight: list[tuple[str, Any]]) -> Any:
    """Kill the leader at each Binding while its request is on the way; return what sends one."""
    send = hub.kube.create

    def killed(path: str, body: Any) -> Any:
        in_flight.append((path, body))
        raise Killed

    hub.kube.create = killed  # type: ignore[method-assign]
    return send


def test_the_first_binding_decides_which_job_the_group_has_whichever_leader_sent_it() -> None:
    hub, in_flight = hub_with_members(), list[tuple[str, Any]]()
    send = die_at_writes(hub, in_flight)
    hub.scheduler.reconcile()
    hub.run_all()
    hub.kube.create = send  # type: ignore[method-assign]
    hub.scheduler.reconcile()
    send(*in_flight[0])
    hub.run_all()
    first = in_flight[0][1]["metadata"]["annotations"][names.PLACE_IN_JOB]
    assert bound(hub) == {"u0": first}, "the Bindings of the new leader follow another one"
    hub.work()
    gang = first.split("/")[0]
    assert bound(hub) == {f"u{rank}": f"{gang}/{rank}/{SIZE}" for rank in range(SIZE)}


def test_a_late_binding_of_another_choice_of_members_begins_no_second_job() -> None:
    """Two of three are enough: the former leader has chosen the two that are alike, the next one must take others."""
    hub, in_flight = hub_with_members(0), list[tuple[str, Any]]()
    for slot, cpus in enumerate("122"):
        hub.create(make(MEMBERS[slot], f"u{slot}", 2, hub.kube.stamp(slot), cpus))
    send = die_at_writes(hub, in_flight)
    while not in_flight:
        hub.work()
    hub.kube.request_deletion(f"/api/v1/namespaces/ns/pods/{MEMBERS[2]}")
    bodies = list[Any]()
    hub.kube.create = lambda path, body: bodies.append(body) or send(path, body)  # type: ignore[method-assign]
    while not bodies:
        hub.deliver()
        hub.scheduler.reconcile()
        hub.writes.kill_after = 1
        hub.run_all()
    with contextlib.suppress(BridgeError):
        send(*in_flight[0])
    hub.work(3)
    hub.create(make(MEMBERS[2], "u3", 2, hub.kube.stamp(9), "2"))
    hub.work(3)
    places = {uid: place.split("/") for uid, place in bound(hub).items()}
    assert len({gang for gang, _, _ in places.values()}) == 1, places
    assert sorted(int(rank) for _, rank, _ in places.values()) == [0, 1], places


def test_news_about_one_member_are_a_decision_about_its_group() -> None:
    hub = hub_with_members()
    hub.scheduler.reconcile_some({"u1"})
    assert len(hub.queues[0].calls) == 1
    hub.run_all()
    assert set(bound(hub)) == {"u0", "u1", "u2"}


class PodGroupWorld:
    """A scheduler without a Slurm, a PodGroup ``g`` that a user changes, and its pods."""

    def __init__(self) -> None:
        self.hub = hub_with_members(0)
        self.hub.scheduler.slurm = None

    def write(self, minimum: int, uid: str = "o") -> None:
        self.hub.kube.objects["/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"] = {
            "kind": "PodGroup",
            "metadata": {"name": "g", "uid": uid, "resourceVersion": "1"},
            "spec": {"minMember": minimum},
            "status": {},
        }

    def member(self, number: int, minimum: int, uid: str = "o") -> None:
        pod = make(f"m-{number}", f"u{number}", minimum, self.hub.kube.stamp())
        pod["metadata"]["annotations"] |= builders.group(minimum, kind="podgroup", name="g", uid=uid)
        self.hub.create(pod)


def test_a_group_at_pools_starts_when_its_minimum_is_lowered() -> None:
    world = PodGroupWorld()
    world.write(4)
    for number in range(3):
        world.member(number, 4)
    world.hub.work(5)
    assert bound(world.hub) == {}
    world.write(3)
    world.hub.work(20)
    assert set(bound(world.hub)) == {"u0", "u1", "u2"}


def test_pods_that_wait_for_a_pool_join_the_group_that_was_created_again() -> None:
    world = PodGroupWorld()
    for number in range(2):
        world.member(number, 3)
    world.write(3, "new")
    world.member(2, 3, "new")
    world.hub.work(20)
    places = bound(world.hub).values()
    assert {place.split("/")[1] for place in places} == {"0", "1", "2"}
    assert len({place.split("/")[0] for place in places}) == 1
