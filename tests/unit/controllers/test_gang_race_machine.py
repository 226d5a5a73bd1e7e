"""A group of two pods that races at two sites: hubs and submitters are killed, messages are lost, late or doubled.

As in ``test_race_machine.py``; here the decisions about places are the scheduler's, too. Two hubs decide and act at
once from caches of their own. The colocated Slurm is a place whose job has started when a hub says so:
``tests/unit/scheduler/test_places_machine.py`` has its jobs.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge import names
from bridge.config.hub import Config
from bridge.errors import BridgeError, KubeConflictError, KubeNotFoundError
from bridge.kube.resources import PODS
from bridge.workload import eligibility, links, places, pods, remote_gangs
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_state import Entry, PodView, PoolView
from controllers.virtual.prune_nodes import prune
from controllers.virtual.race_decide import Racers
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor
from scheduler import gang_ranks, pod_group
from scheduler.group_actions import BindToPool, SetPlaces
from scheduler.nodes.occupancy import Occupancy
from scheduler.places import place_decide, place_view
from tests import builders
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.fakes.memory_hub import virtual_node
from tests.unit.controllers import test_race_machine
from tests.unit.controllers.test_race_machine import NETWORK, SITES, TIMEOUT, WAIT, Network, Script, SitePool

SIZE = 2
GATHER = 60.0
SLURM = "n1"


class Api(test_race_machine.Api):
    """The API server with the pods of the group."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.objects.clear()
        self.made = itertools.count(1)
        self.cpus = "22"
        """Requests by slot."""

    def create_member(self, slot: int) -> None:
        number = next(self.made)
        annotations = {names.POOLS: "a,b,local", names.PLACEMENT: names.RACE}
        resources = {"resources": {"requests": {"cpu": self.cpus[slot]}}}
        spec = {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "i", "command": ["true"], **resources}],
            "tolerations": [{"key": key, "operator": "Exists"} for key in (names.POOL_TAINT, names.VIRTUAL_TAINT)],
        }
        annotations |= builders.group(SIZE, kind="podgroup", slot=slot)
        metadata = {"name": f"p{slot}-{number}", "creationTimestamp": self.stamp(number)}
        made = builders.pod(f"u{number}", annotations=annotations, metadata=metadata, **spec)
        self.put(PODS.path_of(made), made)

    def by_uid(self, uid: str) -> Any:
        return next((pod for pod in self.pods() if pods.uid(pod) == uid), None)


class Launcher(Script):
    """A run of the launcher of a group's job, and of the scripts of its pods, which end together."""

    def __init__(self, site: Site, job_id: str, gang: str) -> None:
        self.site, self.job_id, self.gang = site, job_id, gang
        self.state = "waits"
        self.began = self.excused = False
        self.grant_counts = True
        at = site.folder.job(gang).path
        meta = json.loads((at / "job.sh").read_text().split("\n")[1].split(" ", 3)[3])
        self.plain, self.size = meta["grant_wait"] is None, meta["gang"]["size"]
        os.mkdir(at / "started")
        self.folder = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
        self.at = Path(f"/proc/self/fd/{self.folder}")
        self.until = site.clock.monotonic() + WAIT
        self.ticket = self.first_ticket = "" if self.plain else f"ticket-{next(site.tickets)}"
        self.pods: list[str] = []
        self._write("started/job", f"{job_id}\n")
        if self.plain:
            self._begin()
        else:
            self._record("Asking")

    def _begin(self) -> None:
        self._record("Running")
        self.state, self.until = "gathers", self.site.clock.monotonic() + GATHER
        self._gather()

    def _gather(self) -> None:
        """Start all pods, once each rank has one that may start."""
        uids = [(self.at / "ranks" / str(rank)).read_text().partition("\n")[0] for rank in range(self.size)]
        folders = [self.site.folder.job(uid).path for uid in uids]
        if all((folder / "job.sh").exists() and not (folder / "started").is_symlink() for folder in folders):
            for folder in folders:
                os.mkdir(folder / "started")
            self.pods, self.state, self.began = uids, "runs", True
            for uid in uids:
                self._write_of(uid, '{"phase":"Running","startedAt":7,"ticket":""}')
                self.site.ran.append(uid)
        elif self.site.clock.monotonic() >= self.until:
            self._give_back("GangIncomplete")

    def step(self) -> None:
        if self.state == "gathers":
            if (self.at / "control" / "stop").exists():
                self._give_back("Deleted")
            else:
                self._gather()
        elif self.state == "runs":
            for rank, uid in enumerate(self.pods):
                ended = '{"exitCode":0,"startedAt":7,"finishedAt":9}'
                self._write_of(uid, f'{{"state":"terminated","ended":{ended}}}', "main")
                self._write_of(uid, '{"phase":"Succeeded","startedAt":7,"finishedAt":9,"ticket":""}')
                self._write(f"ended/{rank}.{uid}", "0\n")
                self.site.folder.touch(uid)
            self._record("Succeeded")
            self._over(code=0)
        else:
            super().step()

    def _write_of(self, uid: str, text: str, name: str = "pod") -> None:
        with contextlib.suppress(FileNotFoundError):
            path = self.site.folder.job(uid).path / "state" / f"{name}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            self.site.folder.touch(uid)

    def _write(self, name: str, text: str) -> None:
        path = self.at / name
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            self.site.folder.touch(self.gang)


class Site(test_race_machine.Site):
    """A site whose batch system starts launchers; ``ran``: UIDs of the pods that have started."""

    def __init__(self, *args: Any) -> None:
        self.ran: list[str] = []
        super().__init__(*args)
        self.batch.heterogeneous = True

    def start(self) -> None:
        for job in [job for job in self.batch.table.values() if job.phase == "queued" and not self.full]:
            self.batch.run(job.id)
            try:
                self.scripts.append(Launcher(self, job.id, job.uid))
            except OSError:
                self.batch.end(job.id, code=1)


class Hub:
    """Scheduler and controllers of one process: its caches, its views of the sites, its entries."""

    def __init__(self, api: Api, sites: dict[str, Site], clock: FakeClock) -> None:
        self.api, self.sites, self.clock = api, sites, clock
        self.again()

    def again(self) -> None:
        self.pools = {name: SitePool(site) for name, site in self.sites.items()}
        self.entries: dict[tuple[str, str], Entry] = {}
        self.racers = Racers(lambda *_: None)
        self.pods: dict[str, Any] = {}
        reader = ReferenceReader(self.api, Config(), self.clock)  # type: ignore[arg-type]
        self.actor = PodActor(self.api, self, reader, self.clock, lambda: None, "10.0.0.1", TIMEOUT, WAIT)  # type: ignore[arg-type]
        self.since = self.clock.monotonic()
        self.refresh()

    def event(self, *_: Any, **__: Any) -> None: ...

    def apply(self, found: Any) -> None: ...

    def refresh(self) -> None:
        before, self.pods = self.pods, {pods.uid(pod): copy.deepcopy(pod) for pod in self.api.pods()}
        for uid in {*before, *self.pods}:
            pod = self.pods.get(uid)
            waits = pod is not None and pods.is_open(pod)
            new = race_decide.prune(pod) if waits and pod is not None else None
            self.racers.changed("update" if waits else "delete", before.get(uid), new)

    # --- the scheduler ------------------------------------------------------------------------------------------------
    def schedule(self, writes: int = 99) -> None:
        """Decide once, and carry out so many writes of it before the process stops."""
        if (group := self.group()) is None:
            return
        nodes = [virtual_node(name) for name in SITES]
        pools = {node["metadata"]["name"]: place_view.pool_view(node, eligibility.view(node)) for node in nodes}
        slurm = (eligibility.view(builders.node(SLURM, allocatable={"cpu": "64", "pods": "9"})),) * SIZE
        view = place_view.PlaceView([group], pools, slurm, Occupancy(""), {}, "order", {}, 0.0, most_places=3)
        for action in place_decide.decide(view).actions:
            with contextlib.suppress(KubeConflictError, KubeNotFoundError):
                for pod, place in action.members if isinstance(action, BindToPool | SetPlaces) else ():
                    writes -= 1
                    if writes < 0:
                        return
                    if isinstance(action, SetPlaces):
                        patch = places.places_patch(pod, action.places, place)
                        self.api.patch(PODS.path_of(pod), pods.conditional(patch, pod))
                    elif isinstance(action, BindToPool) and place is not None:  # else another one has succeeded
                        grant = {names.GRANT: action.grant} if action.grant else {}
                        self.bind(pod, action.pool, {names.PLACE_IN_JOB: place.text, **grant})

    def bind(self, pod: Any, node: str, annotations: dict[str, str]) -> None:
        body = pods.binding(pod, node, annotations)
        body["metadata"]["resourceVersion"] = pod["metadata"]["resourceVersion"]
        self.api.create(PODS.path_of(pod, "binding"), body)

    def bind_at_slurm(self, writes: int) -> None:
        """Bind the members as ``BindTogether`` does: the job of the group in the colocated Slurm has started."""
        group = self.group()
        if group is None or gang_ranks.present(group) is not None or len(group.waiting + group.running) < SIZE:
            return
        racing = gang_ranks.racing(group)
        with contextlib.suppress(KubeConflictError, KubeNotFoundError):
            for pod in (group.waiting if racing is None else racing if len(racing) == SIZE else ())[:writes]:
                self.bind(pod, SLURM, {names.PLACE_IN_JOB: ""})

    def group(self) -> pod_group.Group | None:
        members = [(pod, links.membership(pod)) for pod in self.pods.values()]
        return pod_group.make([(pod, member) for pod, member in members if member is not None]) if members else None

    # --- the controllers ----------------------------------------------------------------------------------------------
    def act(self, name: str, uid: str, network: Network = "works", api: Network = "works") -> None:
        pool, now, key = self.pools[name], self.clock.monotonic(), (name, uid)
        pod = self.pods.get(uid)
        bound = prune(copy.deepcopy(pod)) if pod is not None and pod["spec"].get("nodeName") == name else None
        racer = self.racers.get(name, uid) if bound is None else None
        job = pool.job(uid) if pool.view.complete_at is not None else None
        if bound is None and racer is None and job is None:
            self.entries.pop(key, None)
            return
        entry = self.entries.setdefault(key, Entry())
        entry.see(bound, now)
        if job is not None:
            entry.listed(job, now)
        view = PoolView(name, True, pool.view.complete_at, True, self.since, "10.0.0.1")
        action = virtual_pod_decide.decide(PodView(bound, job, entry, view, now, now, racer=racer))
        if action is None or isinstance(action, virtual_pod_decide.Wait):
            return
        pool.network, self.api.network = network, api
        try:
            self.actor.act(action, pool, entry, self)  # type: ignore[arg-type]
        except BridgeError:
            pass
        finally:
            pool.network = self.api.network = "works"


NUMBER = st.integers(0, 5)
HUBS = st.integers(0, 1)


class GangRace(RuleBasedStateMachine):
    """What may happen to a group that races at two sites."""

    @initialize(full=st.sampled_from(["", "", "a", "b"]), steps=st.integers(0, 6), cpus=st.sampled_from(["22", "12"]))
    def begin(self, full: str, steps: int, cpus: str) -> None:
        """``full``: a site that starts no job at first; ``steps``: begin where the places ask, for example."""
        self.at = Path(tempfile.mkdtemp())
        self.clock = FakeClock(1_000.0)
        self.api = Api(self.clock)
        self.api.cpus = cpus
        tickets = itertools.count(1)
        self.sites = {name: Site(name, self.at, self.clock, tickets) for name in SITES}
        for slot in range(SIZE):
            self.api.create_member(slot)
        self.hubs = [Hub(self.api, self.sites, self.clock) for _ in range(2)]
        self.disturbed = False
        self.won: dict[str, str] = {}
        if full:
            self.sites[full].full = True
        for step in range(steps):
            self.go_on(step % 2, SITES[step // 2 % 2], "works", runs=False)

    def uids(self) -> list[str]:
        known = {uid for hub in self.hubs for uid in hub.pods} | {pods.uid(pod) for pod in self.api.pods()}
        return sorted({*known, *(uid for hub in self.hubs for pool in hub.pools.values() for uid in pool.jobs())})

    # --- hubs ---------------------------------------------------------------------------------------------------------
    @rule(hub=HUBS, site=st.sampled_from(SITES), number=NUMBER, network=NETWORK, api=NETWORK)
    def hub_acts(self, hub: int, site: str, number: int, network: Network, api: Network) -> None:
        if uids := self.uids():
            self.hubs[hub].act(site, uids[number % len(uids)], network, api)

    @rule(hub=HUBS, writes=st.sampled_from([1, 1, 2, 99]))
    def scheduler_acts(self, hub: int, writes: int) -> None:
        self.hubs[hub].schedule(writes)

    @rule(hub=HUBS, writes=st.integers(1, SIZE), now=st.integers(0, 3))
    def slurm_starts_the_job(self, hub: int, writes: int, now: int) -> None:
        if now == 3:
            self.hubs[hub].bind_at_slurm(writes)

    @rule()
    def kubelets_run_the_pods(self) -> None:
        """Those of a whole group, to its end."""
        here = [pod for pod in self.api.pods() if pod["spec"].get("nodeName") == SLURM]
        for pod in here if len(here) >= SIZE else ():
            self.api.put(PODS.path_of(pod), {**pod, "status": {"phase": "Succeeded"}})

    @rule(hub=HUBS)
    def hub_sees_the_pods(self, hub: int) -> None:
        self.hubs[hub].refresh()

    @rule(hub=HUBS, site=st.sampled_from(SITES), lose=st.booleans())
    def hub_receives_an_event(self, hub: int, site: str, lose: bool) -> None:
        self.hubs[hub].pools[site].receive(lose=lose)

    @rule(hub=HUBS)
    def hub_is_killed(self, hub: int) -> None:
        self.hubs[hub].again()

    @rule(hub=HUBS, site=st.sampled_from(SITES), network=NETWORK, runs=st.booleans())
    def go_on(self, hub: int, site: str, network: Network, runs: bool) -> None:
        """The usual order, so that most runs come far."""
        where, this = self.sites[site], self.hubs[hub]
        where.start()
        where.look()
        this.pools[site].snapshot()
        this.refresh()
        this.schedule()
        this.refresh()
        for uid in self.uids():
            this.act(site, uid, network)
        if runs:
            where.step()

    # --- sites --------------------------------------------------------------------------------------------------------
    @rule(site=st.sampled_from(SITES), full=st.booleans())
    def a_site_is_full_or_has_room(self, site: str, full: bool) -> None:
        self.sites[site].full = full

    @rule(site=st.sampled_from(SITES))
    def submitter_is_killed(self, site: str) -> None:
        self.sites[site].again()

    @rule(site=st.sampled_from(SITES))
    def jobs_start(self, site: str) -> None:
        self.sites[site].start()

    @rule(site=st.sampled_from(SITES))
    def launchers_go_on(self, site: str) -> None:
        self.sites[site].step()

    @rule(site=st.sampled_from(SITES))
    def the_other_submitter_answers(self, site: str) -> None:
        where = self.sites[site]
        where.answers = where.second[2] if where.answers is where.submitter else where.submitter

    @rule(site=st.sampled_from(SITES))
    def a_late_request_arrives(self, site: str) -> None:
        if late := self.sites[site].late:
            deadline, call = late.pop(0)
            if self.clock.monotonic() <= deadline:
                with contextlib.suppress(BridgeError):
                    call()

    @rule(site=st.sampled_from(SITES), now=st.integers(0, 3))
    def a_node_is_lost(self, site: str, now: int) -> None:
        for script in self.sites[site].scripts if now == 3 else ():
            if script.state != "dead" and self.sites[site].is_listed(script.job_id):
                script.lose_node()
                self.disturbed = True
                self.sites[site].batch.end(script.job_id, "NodeFail")

    # --- the rest -----------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.api.pods() and not any(site.ran for site in self.sites.values()))
    @rule(number=NUMBER, now=st.integers(0, 3))
    def a_pod_is_deleted(self, number: int, now: int) -> None:
        """Before the start: a pod that comes when another has succeeded gets a job of its own."""
        if now == 3:
            self.disturbed = True
            everyone = self.api.pods()
            self.api.request_deletion(PODS.path_of(everyone[number % len(everyone)]), 5)

    @rule()
    def the_owner_looks(self) -> None:
        """Delete what has failed, and create what is missing."""
        for pod in self.api.pods():
            if pod["status"].get("phase") == "Failed" and not pods.is_deleted(pod):
                self.api.request_deletion(PODS.path_of(pod), 5)
        present = {pod["metadata"]["name"][1] for pod in self.api.pods()}
        for slot in range(SIZE):
            if str(slot) not in present:
                self.api.create_member(slot)

    # --- what must hold -----------------------------------------------------------------------------------------------
    def scripts(self) -> list[Any]:
        return [script for site in self.sites.values() for script in site.scripts] if hasattr(self, "sites") else []

    @invariant()
    def each_pod_runs_once_where_it_is_bound(self) -> None:
        ran = [(uid, site.name) for site in (self.sites.values() if hasattr(self, "sites") else ()) for uid in site.ran]
        assert len({uid for uid, _ in ran}) == len(ran), ran
        for uid, site in ran:
            pod = self.api.by_uid(uid)
            assert pod is None or pods.is_deleted(pod) or pod["spec"].get("nodeName") == site, (uid, site, pod)

    @invariant()
    def a_gang_is_granted_at_one_place_ever(self) -> None:
        for script in self.scripts():
            if script.has_grant():
                assert self.won.setdefault(script.gang, script.site.name) == script.site.name, self.won

    @invariant()
    def the_pods_of_a_gang_are_bound_to_one_place(self) -> None:
        bound: dict[str, set[str]] = {}
        for pod in self.api.pods() if hasattr(self, "sites") else ():
            if pods.is_bound(pod):
                bound.setdefault(remote_gangs.gang_of(pod), set()).add(pod["spec"]["nodeName"])
        assert all(len(nodes) == 1 for nodes in bound.values()), bound

    @invariant()
    def the_group_runs_at_one_place(self) -> None:
        living = [pod for pod in self.api.pods() if not pods.is_deleted(pod)] if hasattr(self, "sites") else []
        nodes = {pod["spec"]["nodeName"] for pod in living if pods.is_bound(pod) and not pods.is_finished(pod)}
        assert len(nodes) <= 1, self.story()

    @invariant()
    def no_pod_fails_by_itself(self) -> None:
        if hasattr(self, "sites") and not self.disturbed:
            assert all(pod["status"].get("phase") != "Failed" for pod in self.api.pods()), self.story()

    def teardown(self) -> None:
        if not hasattr(self, "sites"):
            return
        try:
            self.settle()
        finally:
            for script in self.scripts():
                os.close(script.folder)
            for site in self.sites.values():
                site.watcher.release_leadership()
                site.second[1].release_leadership()
            shutil.rmtree(self.at, ignore_errors=True)

    def settle(self) -> None:
        """With all connections back, the group runs at one site, and no job of it is left at the other."""
        for site in self.sites.values():
            site.late.clear()
            site.full = False
        for turn in range(60):
            for name in SITES:
                self.sites[name].look(1)
                self.go_on(0, name, "works", runs=True)
                self.each_pod_runs_once_where_it_is_bound()
                self.a_gang_is_granted_at_one_place_ever()
                self.no_pod_fails_by_itself()
                self.the_group_runs_at_one_place()
            self.hubs[0].bind_at_slurm(SIZE if turn > 20 else 0)
            self.kubelets_run_the_pods()
            self.the_owner_looks()
            self.clock.advance(15)
        phases = [pod["status"].get("phase") for pod in self.api.pods() if not pods.is_deleted(pod)]
        if not self.disturbed:
            assert phases == ["Succeeded"] * SIZE, self.story()
            assert len({pod["spec"]["nodeName"] for pod in self.api.pods()}) == 1, self.story()
        for site in self.sites.values():
            alive = [job for job in site.batch.table.values() if job.phase != "ended"]
            assert self.disturbed or not alive, (site.name, alive, self.story())

    def story(self) -> str:
        lines = [
            f"{pod['metadata']['name']} {pods.uid(pod)} at {pod['spec'].get('nodeName')} {pod['status'].get('phase')} "
            f"{pod['status'].get('reason')} {pod['metadata']['annotations']}"
            for pod in self.api.pods()
        ]
        for site in self.sites.values():
            lines += [f"{site.name}: {site.submitter._folder.job(uid).read()}" for uid in site.folder.uids()]
        return "\n".join(lines)


GangRace.TestCase.settings = settings(
    max_examples=examples(10, 80),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)
TestGangRace = GangRace.TestCase
