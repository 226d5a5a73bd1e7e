"""A machine with the real scheduler and the controllers of Slurm: groups that may go to Slurm and to two pools.

Slurm, the API server and the sites are in memory. Of the pools' controllers, the machine has the Binding that is the
grant (``RaceActor.claim``), without a lease: ``tests/unit/controllers/test_race_machine.py`` has the rest of a pool.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge import names
from bridge.errors import BridgeError
from bridge.protocol.model.jobs import JobStatus
from bridge.workload import links, places, pods, remote_gangs
from bridge.workload.remote_gangs import Place
from controllers.virtual import race_decide
from controllers.virtual.pod_reports import PodReports
from controllers.virtual.pod_state import Entry
from controllers.virtual.race_act import RaceActor
from tests import builders
from tests.examples import examples
from tests.fakes.memory_checks import WriteChecks
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_kube import Killed
from tests.fakes.memory_slurm import MemoryJob
from tests.fakes.memory_world import path_of
from tests.fakes.recorders import RecordedEvents
from tests.unit.scheduler.hub_machine import NUMBER, HubMachine, pod_for_pools

POOLS = ("a", "b")
PLACES = (*POOLS, names.LOCAL_POOL)
SLURM = ("n1", "n2", "n3", "n4")
NEEDS = {
    "race": "a,b,local", "short": "b,local", "far": "a,b", "plain": "a,local",
    "gang": "a,local", "crowd": "a,b", "troop": "a,b,local",
}  # fmt: skip
"""Pods by the first word of their names: the places that they select."""
RACES = ("race", "short", "far", "crowd", "troop")
GROUPS = ("gang", "crowd", "troop")
PODS = ("race-0", "race-1", "short-0", "far-0", "plain-0", *[f"{name}-{slot}" for name in GROUPS for slot in (0, 1)])
MEMBERS = 2
ROUNDS = 70


def make(name: str, uid: str, created: str) -> Any:
    kind, _, slot = name.partition("-")
    annotations = {names.POOLS: NEEDS[kind]}
    if kind in RACES:
        annotations[names.PLACEMENT] = names.RACE
    if kind in GROUPS:
        annotations |= builders.group(MEMBERS, kind="podgroup", name=kind, uid=f"o-{kind}", slot=int(slot))
    return pod_for_pools(name, uid, created, "5", annotations, names.MANAGED_TAINT)


@dataclass
class Offer:
    """A job of a pod at a site; ``ticket``: its script waits for the grant."""

    pool: str
    uid: str
    pod: Any
    """The pod as the controllers that have made the offer know it."""
    ticket: str = ""

    @property
    def gang(self) -> str:
        return remote_gangs.gang_of(self.pod)

    @property
    def place(self) -> Place | None:
        return remote_gangs.place_of(self.pod)

    @property
    def claims(self) -> bool:
        """Whether the controllers send a grant if the script asks: of a group, that of the first pod decides."""
        job = JobStatus(job=self.uid, namespace="ns", name="p", phase="queued", asks=self.ticket)
        return isinstance(race_decide.decide(self.pod, job, Entry(), 0.0), race_decide.Claim)


class PlaceChecks(WriteChecks):
    """The rules for writes, also for Bindings to pools. ``granted`` are the UIDs of all pods that were ever bound."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub, lambda link: MEMBERS if link.group else 1)
        self.granted: set[str] = set()
        self.claiming = self.late = False

    def _bind(self, pod: Any, node: str) -> None:
        uid, name = pods.uid(pod), pod["metadata"]["name"]
        assert uid not in self.granted, f"{name} gets a second grant"
        self.granted.add(uid)
        if self.late:
            return
        if node not in POOLS:
            super()._bind(pod, node)
            return
        if self.claiming:
            assert node in places.open_pools(pod), f"{name} is granted to {node}, where it has no place"
        elif self.fresh:
            follows = bool(places.granted(pod))  # the first pod of its group
            jobs = [job.job_id for job in self._hub.slurm.live() if links.key(pod) in job.request.link.keys]
            jobs = [] if follows else jobs
            assert not jobs, f"{name} is bound to {node}, and Slurm may start its jobs {jobs}"
            at = self._hub.kube.get(f"/api/v1/nodes/{node}")
            assert is_open(at), f"{name} is bound to {node}, which takes no pods"

    def started(self, job: MemoryJob) -> list[Any]:
        """Return the pods of the job that are not at a pool: the label of such a pod may name the job that lost."""
        return [pod for pod in super().started(job) if pod["spec"].get("nodeName") not in POOLS]

    def _delete(self, pod: Any) -> None:
        assert pod["spec"].get("nodeName") not in POOLS, f"{pod['metadata']['name']} is terminated at its pool"
        super()._delete(pod)


def is_open(node: Any) -> bool:
    return node["status"]["conditions"][0]["status"] == "True" and not node["spec"].get("unschedulable")


class Places(HubMachine):
    """Owners create pods, places start and end jobs, and processes are killed or work from old data."""

    @initialize(
        first=st.sets(st.sampled_from(PODS), min_size=2),
        apart=st.booleans(),
        closed=st.sampled_from(["", *POOLS]),
        at=st.sampled_from(PLACES),
    )
    def begin(self, first: set[str], apart: bool, closed: str, at: str) -> None:
        """``closed``: a pool that is not Ready at first. ``at``: the only place with room in the end."""
        self.use(MemoryHub(SLURM, apart=apart, pools=POOLS))
        self.checks, self.at = PlaceChecks(self.hub), at
        self.offers: list[Offer] = []
        self.won: dict[str, str] = {}
        self.old: dict[str, Any] = {}
        actor = RaceActor(
            self.hub.kube,
            PodReports(RecordedEvents(), self.hub.clock),
            None,
            None,
            self.hub.clock,
            lambda: None,
            30,
            60,
        )  # type: ignore[arg-type]
        self.actor = actor
        if closed:
            self.set_pool(closed, ready=False)
        for name in sorted(first):
            self.create(name)
        self.look()

    # --- the API server -----------------------------------------------------------------------------------------------
    @rule()
    def next_binding_is_late(self) -> None:
        self.next_is_late = True

    @precondition(lambda self: self.in_flight)
    @rule(number=NUMBER)
    def late_binding_arrives(self, number: int) -> None:
        path, body = self.in_flight.pop(number % len(self.in_flight))
        self.checks.late = True
        with contextlib.suppress(BridgeError):
            pod = self.arrive(path, body)
            # the hub may have cancelled the job meanwhile, or does so before it sees the pod
            self.hub.slurm.moved.add(pods.job_id(pod) or 0)
        self.checks.late = False

    # --- owners, users, kubelets --------------------------------------------------------------------------------------
    def absent(self) -> list[str]:
        have = {pod["metadata"]["name"] for pod in self.hub.kube.pods()}
        return [name for name in PODS if name not in have]

    def create(self, name: str) -> None:
        self.made += 1
        self.hub.create(make(name, f"u{self.made}", self.hub.kube.stamp()))

    @precondition(lambda self: self.absent())
    @rule(number=NUMBER)
    def owner(self, number: int) -> None:
        self.create(self.absent()[number % len(self.absent())])

    @precondition(lambda self: self.hub.kube.pods())
    @rule(number=NUMBER, now=st.integers(0, 2))
    def delete(self, number: int, now: int) -> None:
        if now == 2:
            everyone = self.hub.kube.pods()
            self.hub.kube.request_deletion(path_of(everyone[number % len(everyone)]))

    @precondition(lambda self: self.waiting())
    @rule(number=NUMBER)
    def begin_or_end_the_race(self, number: int) -> None:
        pod = self.waiting()[number % len(self.waiting())]
        annotations = pod["metadata"]["annotations"]
        if annotations.pop(names.PLACEMENT, None) is None and "gang" not in pod["metadata"]["name"]:
            annotations[names.PLACEMENT] = names.RACE
        self.hub.kube.put(path_of(pod), pod)

    def waiting(self) -> list[Any]:
        return copy.deepcopy([pod for pod in self.hub.kube.pods() if pods.is_open(pod) and not pods.is_deleted(pod)])

    # --- places -------------------------------------------------------------------------------------------------------
    @rule(name=st.sampled_from(POOLS), ready=st.booleans(), races=st.booleans())
    def pool_changes(self, name: str, ready: bool, races: bool) -> None:
        self.set_pool(name, ready, races=races)

    def set_pool(self, name: str, ready: bool, *, races: bool = True) -> None:
        self.set_ready(name, ready, **{names.RACE_ALLOWED: str(races).lower()})

    @rule(name=st.sampled_from([*POOLS, *SLURM]), cordoned=st.booleans())
    def cordon(self, name: str, cordoned: bool) -> None:
        self.hub.cordon(name, cordoned)

    @rule(name=st.sampled_from(SLURM))
    def block(self, name: str) -> None:
        """A pod of another scheduler takes a node, or ends."""
        self.hub.block(name)

    @rule(pool=st.sampled_from(POOLS), stale=st.booleans())
    def places_are_offered(self, pool: str, stale: bool) -> None:
        """Controllers offer jobs for the pods that race; ``stale``: from a cache that lags."""
        for uid, pod in self.known(stale).items():
            if pool not in places.open_pools(pod):
                continue
            # an offer for another job of the group is withdrawn
            gang = remote_gangs.gang_of(pod)
            self.offers = [o for o in self.offers if (o.pool, o.uid) != (pool, uid) or o.gang == gang]
            if not any((o.pool, o.uid) == (pool, uid) for o in self.offers):
                self.offers.append(Offer(pool, uid, pod))

    def known(self, stale: bool) -> dict[str, Any]:
        if not stale:
            self.old = copy.deepcopy({pods.uid(pod): pod for pod in self.hub.kube.pods()})
        return self.old

    @precondition(lambda self: self.offers)
    @rule(number=NUMBER)
    def script_asks(self, number: int) -> None:
        self.ask(self.offers[number % len(self.offers)], f"t{number}")

    def ask(self, offer: Offer, ticket: str) -> None:
        """Let a script ask; that of a group starts once the site has all pods."""
        together = [offer]
        if offer.place is not None:
            together = [other for other in self.offers if (other.pool, other.gang) == (offer.pool, offer.gang)]
            if {other.place.rank for other in together if other.place} != {*range(offer.place.size)}:
                return
        for each in together:
            each.ticket = ticket

    @precondition(lambda self: any(offer.claims for offer in self.offers))
    @rule(number=NUMBER, killed=st.booleans())
    def claim(self, number: int, killed: bool) -> None:
        """Controllers, or former ones, send the grant; ``killed``: right after the Binding."""
        asking = [offer for offer in self.offers if offer.claims]
        self.send_grant(asking[number % len(asking)], killed)

    def send_grant(self, offer: Offer, killed: bool = False) -> None:
        self.checks.claiming, self.hub.writes.kill_after = True, 1 if killed else None
        try:
            self.actor.claim(offer.pod, offer.ticket, SimpleNamespace(name=offer.pool), Entry())  # type: ignore[arg-type]
        except Killed:
            self.hub.restart()
        except BridgeError:
            pass
        finally:
            self.checks.claiming, self.hub.writes.kill_after = False, None

    @rule(pool=st.sampled_from(POOLS), starts=st.booleans(), number=NUMBER, ends=st.booleans(), killed=st.booleans())
    def everything_goes_on(self, pool: str, starts: bool, number: int, ends: bool, killed: bool) -> None:
        """The usual order, so that most runs come far; ``ends``: the pod loses its places before its grant is sent."""
        self.look(starts)
        self.look()
        self.places_are_offered(pool, stale=False)
        if self.offers:
            offer = self.offers[number % len(self.offers)]
            self.ask(offer, f"t{number}")
            offer = next((o for o in self.offers if o.claims and (o.pool, o.gang) == (offer.pool, offer.gang)), offer)
            if ends and (pod := self.known(stale=False).get(offer.uid)) is not None:
                pod["metadata"]["annotations"].pop(names.PLACEMENT, None)
                self.hub.kube.put(path_of(pod), copy.deepcopy(pod))
            if offer.claims:
                self.send_grant(offer, killed)

    @rule(number=NUMBER)
    def offer_ends(self, number: int) -> None:
        if self.offers:
            self.offers.pop(number % len(self.offers))

    @precondition(lambda self: self.hub.slurm.live())
    @rule(number=NUMBER, starts=st.booleans(), state=st.sampled_from(["FAILED", "NODE_FAIL", "PREEMPTED", "PENDING"]))
    def slurm_job(self, number: int, starts: bool, state: str) -> None:
        """A job starts, ends or is requeued."""
        job = self.hub.slurm.live()[number % len(self.hub.slurm.live())]
        if starts:
            self.hub.slurm.start(job)
        else:
            self.hub.slurm.moved.add(job.job_id)
            job.set(state)

    @precondition(lambda self: not self.hub.slurm.fault)
    @rule(fault=st.sampled_from(["late", "unanswered", "lost", "unavailable"]))
    def next_submission_fails(self, fault: str) -> None:
        self.hub.slurm.fault = fault

    # --- the hub ------------------------------------------------------------------------------------------------------
    @rule(
        polls=st.sampled_from(["all", "controllers", ""]), delivers=st.booleans(), loops=st.sampled_from(["01", "10"])
    )
    def decide(self, polls: str, delivers: bool, loops: str) -> None:
        self.hub.clock.advance(0.01)
        if polls == "all" or not self.hub.poller.snapshot.sequence:
            self.hub.poll()
        elif polls:
            self.hub.own_poller.poll()
        if delivers:
            self.hub.deliver()
        for number in loops:
            self.hub.loops[int(number)].reconcile()

    @precondition(lambda self: self.hub.queues[0].calls or self.hub.queues[1].calls)
    @rule(number=NUMBER, which=st.integers(0, 1))
    def act(self, number: int, which: int) -> None:
        queue = self.hub.queues[which]
        if queue.calls:
            self.hub.run(lambda: queue.run(number))

    @rule(seconds=st.sampled_from([1, 6, 40, 310]))
    def wait(self, seconds: float) -> None:
        if seconds > 4:
            self.late_requests_arrive()
        self.hub.clock.advance(seconds)

    def late_requests_arrive(self) -> None:
        while self.hub.slurm.late:
            self.hub.slurm.add(self.hub.slurm.late.pop())

    @rule(starts=st.booleans(), times=st.integers(1, 3))
    def looks(self, starts: bool, times: int) -> None:
        for _ in range(times):
            self.look(starts)

    def look(self, starts: bool = False) -> None:
        hub = self.hub
        hub.run_all()
        for job in hub.slurm.live() if starts else ():
            hub.slurm.start(job)
        hub.clock.advance(0.01)
        hub.poll()
        for number in (0, 1):
            hub.deliver()
            if not hub.poller.snapshot.sequence:
                hub.poll()
            hub.loops[number].reconcile()
            self.checks.fresh = number == 0 and not hub.writes.faults
            hub.run_all()
            self.checks.fresh = False

    @rule(writes=st.integers(1, 6))
    def kill(self, writes: int) -> None:
        self.hub.writes.kill_after = writes

    def decide_all(self) -> None:
        self.hub.poll()
        self.hub.deliver()
        for loop in self.hub.loops:
            loop.reconcile()

    # --- what must hold -----------------------------------------------------------------------------------------------
    @invariant()
    def the_members_of_a_group_run_at_one_place(self) -> None:
        """All in one job of Slurm, or all at one pool."""
        used: dict[str, set[Any]] = {}
        for pod in self.running() if hasattr(self, "hub") else ():
            group, node = links.group_of(pod), pod["spec"]["nodeName"]
            if group is not None and not group.alone and not pods.is_deleted(pod):
                used.setdefault(group.key.name, set()).add(node if node in POOLS else pods.job_id(pod))
        assert all(len(jobs) <= 1 for jobs in used.values()), f"{used}: {self.story()}"

    @invariant()
    def a_job_of_a_group_is_granted_at_one_place_ever(self) -> None:
        for pod in self.running() if hasattr(self, "hub") else ():
            gang, node = remote_gangs.gang_of(pod), pod["spec"]["nodeName"]
            if gang and node in POOLS:
                assert self.won.setdefault(gang, node) == node, self.story()

    def teardown(self) -> None:
        """Only one place has room: what may use it gets it, and no job is left of what runs elsewhere or is gone."""
        if not hasattr(self, "hub"):
            return
        self.hub.writes.kill_after, self.hub.slurm.fault, self.hub.writes.faults = None, "", []
        self.next_is_late = False
        self.in_flight.clear()
        self.open(*{*PLACES} - {self.at})  # the waiting pods get their places elsewhere
        self.create_absent()
        self.look()
        self.look()
        self.open(self.at)
        for _ in range(8):
            self.round(finish=False)
        self.check_what_lost()
        for _ in range(ROUNDS):
            self.round()
        self.check_one_place()
        self.open(*PLACES)
        for number in range(ROUNDS):
            self.round()
            if number > 3 and not self.waiting() and not self.hub.slurm.live():
                break
        assert not self.waiting(), self.story()
        assert not self.hub.slurm.live(), self.story()
        held = [pod["metadata"]["name"] for pod in self.hub.kube.pods() if pods.is_held(pod)]
        assert not held, self.story()

    def open(self, *open_places: str) -> None:
        """Give room to these places, and to no other."""
        for name in POOLS:
            self.hub.cordon(name, False)
            self.set_pool(name, name in open_places)
        for name in SLURM:
            self.hub.cordon(name, False)
            if (name in self.hub.blockers) == (names.LOCAL_POOL in open_places):
                self.hub.block(name)

    def create_absent(self) -> None:
        self.delete_failed()
        for name in self.absent():
            self.create(name)

    def round(self, finish: bool = True) -> None:
        self.wait(20)
        self.create_absent()
        for pool in POOLS:
            self.places_are_offered(pool, stale=False)
        for offer in [*self.offers]:
            if is_open(self.hub.kube.get(f"/api/v1/nodes/{offer.pool}")):
                self.ask(offer, offer.ticket or "t")
                if offer.claims:
                    self.send_grant(offer)
            if offer.uid not in self.known(stale=False):
                self.offers.remove(offer)
        for _ in range(2):
            self.look(starts=True)
            self.the_members_of_a_group_run_at_one_place()
        for pod in self.running():
            if finish or pods.is_deleted(pod):
                self.finish(pod, "Succeeded")

    def check_what_lost(self) -> None:
        """The jobs of pods that run elsewhere are withdrawn while these run."""
        wanted = {
            links.key(pod) for pod in (*self.waiting(), *self.running()) if pod["spec"].get("nodeName") not in POOLS
        }
        for job in self.hub.slurm.live():
            assert not wanted.isdisjoint(job.request.link.keys), f"job {job.job_id} is not withdrawn: {self.story()}"

    def check_one_place(self) -> None:
        for pod in self.waiting():
            name, usable = pod["metadata"]["name"], NEEDS[pod["metadata"]["name"].partition("-")[0]].split(",")
            group = [one for one in self.waiting() if links.key(one) == links.key(pod)]
            # the last member of a group does not race on its own
            races = all(map(places.wants_race, group)) and (len(group) > 1 or links.group_of(pod) is None)
            # without a race, a pod that was left to Slurm stays there: Slurm may start its job at any moment
            at_slurm = not races and (self.hub.scheduler._is_at_slurm(pods.uid(pod), pod))
            may = self.at in usable and (self.at == names.LOCAL_POOL or not at_slurm)
            assert not may, f"{name} waits while {self.at} has room: {self.story()}"
        self.check_what_lost()

    def story(self) -> str:
        lines = [f"at {self.hub.clock.now}, only {self.at} has room", super().story()]
        lines += [f"job {j.job_id} {j.state} {j.nodes} {j.request.link.keys}" for j in self.hub.slurm.jobs.values()]
        return "\n".join([*lines, *map(str, self.offers)])


# a failure shows its steps as they were tried: to shrink them would take minutes
Places.TestCase.settings = settings(
    max_examples=examples(8, 60), stateful_step_count=40, phases=[Phase.reuse, Phase.generate]
)
TestPlaces = Places.TestCase
