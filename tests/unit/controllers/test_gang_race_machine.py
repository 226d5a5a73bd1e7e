"""A group of two pods that races at two sites: hubs and submitters are killed, messages are lost, late or doubled.

The world is that of ``race_world.py``; here the decisions about places are the scheduler's, too. Two hubs decide and
act at once from caches of their own. The colocated Slurm is a place whose job has started when a hub says so:
``tests/unit/scheduler/test_places_machine.py`` has its jobs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge import names
from bridge.errors import KubeConflictError, KubeNotFoundError
from bridge.kube.resources import PODS
from bridge.workload import eligibility, links, places, pods, remote_gangs
from scheduler import gang_ranks, pod_group
from scheduler.group_actions import BindToPool, SetPlaces
from scheduler.nodes.occupancy import Occupancy
from scheduler.places import place_decide, place_view
from tests import builders
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.fakes.memory_hub import virtual_node
from tests.unit.controllers import race_machine, race_world
from tests.unit.controllers.race_machine import RaceMachine
from tests.unit.controllers.race_world import HUBS, NETWORK, SITES, Network, Script

SIZE = 2
GATHER = 60.0
SLURM = "n1"


class Api(race_world.Api):
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
        self.gang, self.pods = gang, []
        super().__init__(site, job_id, gang)

    def _begin(self) -> None:
        self._record("Running")
        self.state, self.until = "gathers", self.site.clock.monotonic() + GATHER
        self._gather()

    def _gather(self) -> None:
        """Start all pods, once each rank has one that may start."""
        ranks = [self.at / "ranks" / str(rank) for rank in range(self.meta["gang"]["size"])]
        uids = [rank.read_text().partition("\n")[0] for rank in ranks]
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


class Site(race_world.Site):
    """A site whose batch system starts launchers; ``ran``: UIDs of the pods that have started."""

    script = Launcher

    def __init__(self, *args: Any) -> None:
        self.ran: list[str] = []
        super().__init__(*args)
        self.batch.heterogeneous = True


class Hub(race_machine.Hub):
    """Scheduler and controllers of one process."""

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


NUMBER = st.integers(0, 5)


class GangRace(RaceMachine):
    """What may happen to a group that races at two sites."""

    site, api_server = Site, Api

    @initialize(full=st.sampled_from(["", "", "a", "b"]), steps=st.integers(0, 6), cpus=st.sampled_from(["22", "12"]))
    def begin(self, full: str, steps: int, cpus: str) -> None:
        """``full``: a site that starts no job at first; ``steps``: begin where the places ask, for example."""
        self.build()
        self.api.cpus = cpus
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
    @rule(site=st.sampled_from(SITES), now=st.integers(0, 3))
    def a_node_is_lost(self, site: str, now: int) -> None:
        for script in self.sites[site].scripts if now == 3 else ():
            if script.state != "dead" and self.sites[site].is_listed(script.job_id):
                script.lose_node()
                self.disturbed = True
                self.sites[site].batch.end(script.job_id, "NodeFail")

    # --- the rest -----------------------------------------------------------------------------------------------------
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
