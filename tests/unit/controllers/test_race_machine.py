"""A pod that races, with all that may happen to its pod, its hubs and its sites."""

from __future__ import annotations

import contextlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from bridge import names
from bridge.errors import KubeConflictError
from bridge.protocol.nats.messages import CancelMessage, Empty, Grant
from bridge.site.batch.batch_interface import BatchJob
from bridge.workload import places, pods
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.unit.controllers.race_machine import Hub, RaceMachine
from tests.unit.controllers.race_world import HUBS, NETWORK, OWNER, POD, SITES, TIMEOUT, UID, Api, Network, SitePool


class Race(RaceMachine):
    """What may happen to one pod that races at two sites and in the colocated Slurm."""

    @initialize(
        asking=st.sampled_from(["", "", "a", "ab"]),
        full=st.sampled_from(["", "ab", "ab", "a"]),
        ending=st.sampled_from(["race", "race at one", *SITES]),
        late=st.integers(0, 3),
    )
    def begin(self, asking: str, full: str, ending: str, late: int) -> None:
        """``full``: sites that start no more jobs. ``ending``: what the scheduler does at last with a waiting pod.

        ``late``: after this many turns of the settling, requests of former leaders arrive.
        """
        self.ending, self.late = ending, late
        self.build()
        self.hubs = [Hub(self.api, self.sites, self.clock) for _ in range(2)]
        self.slurm_ran = self.deleted = False
        self.granted: set[str] = set()
        self.unplaced: dict[str, float] = {}
        for name in asking:  # begin where the places ask
            self.advance(0, name, "works")
            self.sites[name].start()
            self.sites[name].look()
            for hub in self.hubs:
                hub.pools[name].snapshot()
        for name in full:
            self.sites[name].full = True

    # --- hubs ---------------------------------------------------------------------------------------------------------
    @rule(hub=HUBS, site=st.sampled_from(SITES), network=NETWORK, api=NETWORK)
    def hub_acts(self, hub: int, site: str, network: Network, api: Network) -> None:
        self.hubs[hub].act(site, UID, network, api)

    @rule(hub=HUBS, site=st.sampled_from(SITES), late=st.booleans())
    def hub_requests_a_snapshot(self, hub: int, site: str, late: bool) -> None:
        self.hubs[hub].pools[site].snapshot(late=late)

    @rule(hub=HUBS, site=st.sampled_from(SITES))
    def a_late_snapshot_arrives(self, hub: int, site: str) -> None:
        if self.hubs[hub].pools[site].pages:
            self.hubs[hub].pools[site].answer(0)

    @rule(hub=HUBS, sites=st.sampled_from([*SITES, "ab", "ba"]), network=NETWORK, times=st.integers(1, 4))
    def hub_and_sites_go_on(self, hub: int, sites: str, network: Network, times: int) -> None:
        """The usual order of things, so that most runs come far; only the last action meets the network."""
        for turn in range(times):
            for name in sites:
                self.advance(hub, name, network if turn == times - 1 else "works")

    @rule(hub=HUBS, site=st.sampled_from(SITES), network=NETWORK)
    def everything_goes_on(self, hub: int, site: str, network: Network) -> None:
        self.advance(hub, site, network)
        self.sites[site].step()

    def advance(self, hub: int, name: str, network: Network) -> None:
        site = self.sites[name]
        site.start()
        site.look()
        self.hubs[hub].pools[name].snapshot()
        self.hubs[hub].refresh()
        waits = self.api.pod is not None and not pods.is_bound(self.api.pod)
        self.hubs[hub].act(name, UID, network)
        if waits and (ticket := self.granted_ticket()):
            [script] = [script for script in site.scripts if script.first_ticket == ticket]
            # of a lost job, the site learns only later that its script was killed
            is_excused = script.job_id in site.lost
            assert script.state == "waits" or is_excused, f"the pod is bound to {name}, whose script is {script.state}"

    def granted_ticket(self) -> str:
        """Return the ticket in the grant of the pod; empty without one."""
        annotations = self.api.pod["metadata"]["annotations"] if self.api.pod is not None else {}
        return str(annotations.get(names.GRANT, "")).rpartition("/")[2]

    # --- sites --------------------------------------------------------------------------------------------------------
    @rule(site=st.sampled_from(SITES))
    def site_looks(self, site: str) -> None:
        self.sites[site].look()

    @rule(site=st.sampled_from(SITES))
    def a_node_is_lost(self, site: str) -> None:
        for script in self.sites[site].scripts:
            if script.state != "dead" and self.sites[site].is_listed(script.job_id):
                script.lose_node()
                self.sites[site].batch.end(script.job_id, "NodeFail")

    @rule(site=st.sampled_from(SITES), scripts_end=st.booleans(), now=st.integers(0, 4))
    def the_batch_system_loses_its_jobs(self, site: str, scripts_end: bool, now: int) -> None:
        """Only a part of the runs: what follows is about lost jobs alone."""
        if now < 4:
            return
        where = self.sites[site]
        for script in where.scripts:
            if script.state != "dead" and where.is_listed(script.job_id):
                where.lost.add(script.job_id)
                script.excused = True
                if scripts_end:
                    script.kill()
        where.batch.table = {i: job for i, job in where.batch.table.items() if job.phase == "ended"}

    @rule(site=st.sampled_from(SITES))
    def the_other_submitter_leads(self, site: str) -> None:
        self.sites[site].hand_over()

    @rule(site=st.sampled_from(SITES))
    def a_late_withdrawal_arrives(self, site: str) -> None:
        """A former leader has sent it while the pod had neither a node nor a place there."""
        if self.clock.monotonic() <= self.unplaced.get(site, 0.0) + TIMEOUT + SitePool.late:
            self.sites[site].answers.cancel(OWNER, UID, CancelMessage(grace=0, withdrawn=True))

    @rule(site=st.sampled_from(SITES))
    def a_late_grant_arrives(self, site: str) -> None:
        """A former leader has sent it after the pod was bound."""
        if (ticket := self.granted_ticket()) and self.api.pod and self.api.pod["spec"]["nodeName"] == site:
            self.sites[site].answers.grant(OWNER, UID, Grant(ticket=ticket))

    # --- the rest -----------------------------------------------------------------------------------------------------
    @rule(now=st.integers(0, 9))
    def slurm_allocates(self, now: int) -> None:
        """The scheduler binds the pod to a node of its placeholder job: the same write."""
        pod = self.api.pod
        if pod is not None and now == 9:
            try:
                self.api.create(f"{POD}/binding", pods.binding(pod, "n1", {}))
            except KubeConflictError:
                return
            self.slurm_ran = True

    @rule(chosen=st.sampled_from(["", "", "a", "b", "b,a", "a,b,local", "local"]))
    def the_scheduler_changes_the_places(self, chosen: str) -> None:
        self.api.annotate({names.PLACES: chosen or None})

    @rule(site=st.sampled_from(SITES), now=st.integers(0, 4))
    def the_scheduler_binds_the_pod(self, site: str, now: int) -> None:
        """Without a race, as to its only pool; its cache may lack the newest places."""
        if self.api.pod is not None and now == 4:
            with contextlib.suppress(KubeConflictError):
                self.api.create(f"{POD}/binding", pods.binding(self.api.pod, site, {}))

    @rule(races=st.booleans())
    def a_user_ends_or_begins_the_race(self, races: bool) -> None:
        self.api.annotate({names.PLACEMENT: names.RACE if races else None})

    @rule()
    def somebody_writes_the_pod(self) -> None:
        if self.api.pod is not None:
            self.api.patch(POD, {"metadata": {"annotations": {"x": "y"}}})

    @precondition(lambda self: not self.deleted)
    @rule(now=st.integers(0, 9))
    def user_deletes_the_pod(self, now: int) -> None:
        if self.api.pod is None or now < 9:
            return
        self.deleted = True
        self.api.request_deletion(POD, 5)

    @invariant()
    def note_the_places(self) -> None:
        """Note when the pod last had neither a node nor a place at a site."""
        if hasattr(self, "sites") and self.api.pod is not None and places.may_return(self.api.pod):
            missing = set(SITES).difference(places.open_pools(self.api.pod))
            self.unplaced.update(dict.fromkeys(missing, self.clock.monotonic()))

    # --- what must hold -----------------------------------------------------------------------------------------------
    @invariant()
    def at_most_one_place_runs(self) -> None:
        if hasattr(self, "sites"):
            began = [script for script in self.scripts() if script.began]
            assert len(began) + self.slurm_ran <= 1, [(s.site.name, s.job_id, s.plain) for s in began]

    @invariant()
    def at_most_one_offer_is_ever_granted(self) -> None:
        if hasattr(self, "sites"):
            self.granted |= {script.first_ticket for script in self.scripts() if script.has_grant()}
            assert len(self.granted) + self.slurm_ran <= 1, self.granted

    @invariant()
    def only_the_bound_pool_runs(self) -> None:
        if hasattr(self, "sites") and self.api.pod is not None:
            node = self.api.pod["spec"].get("nodeName")
            assert all(script.site.name == node for script in self.scripts() if script.began)

    @invariant()
    def no_living_pod_fails(self) -> None:
        """A node that is lost with the pod's container may end it; nothing else here may."""
        if hasattr(self, "sites") and self.api.pod is not None and not self.deleted:
            failed = self.api.pod["status"].get("phase") == "Failed"
            assert not failed or any(script.fails_its_pod() for script in self.scripts()), self.api.pod["status"]

    def settle(self) -> None:
        """No job of a withdrawn place is left, and a pod that was not deleted runs."""
        for site in self.sites.values():
            site.late.clear()
        self.turns(12)
        for name in SITES:
            unplaced = self.api.pod is None or not places.keeps_job(self.api.pod, name)
            assert not (unplaced and self.alive(name)), f"a withdrawn place at {name} keeps its job"
            self.sites[name].full = False
        if self.ending.startswith("race") or self.api.pod is None:
            self.sites["b"].full = self.ending == "race at one"
            self.api.annotate({names.PLACEMENT: names.RACE, names.PLACES: "a,b"})
        else:
            with contextlib.suppress(KubeConflictError):
                self.api.create(f"{POD}/binding", pods.binding(self.api.pod, self.ending, {}))
        self.turns(60)
        node = (self.api.pod or {"spec": {}})["spec"].get("nodeName")
        if self.sites["b"].full and node == "b":  # it was bound there before, and needs another job
            self.sites["b"].full = False
            self.turns(12)
        ran = self.slurm_ran or any(script.began for script in self.scripts())
        crashed = any(script.fails_its_pod() for script in self.scripts())
        if not self.deleted and not crashed:
            assert ran, "no place runs although hub and sites answer"
        for name in SITES:
            assert not self.alive(name) or node == name, f"a place at {name} was not withdrawn"
            if self.api.pod is not None and node not in (None, name):
                left = self.sites[name].submitter.status(OWNER, UID, Empty()).status
                assert left is None, f"the record of a place at {name} was not removed"

    def alive(self, name: str) -> list[BatchJob]:
        """Return the jobs of the pod that the batch system of a site has."""
        return [job for job in self.sites[name].batch.table.values() if job.phase != "ended"]

    def turns(self, count: int) -> None:
        """Let one hub and the sites work for some minutes, without faults."""
        hub = self.hubs[0]
        for turn in range(count):
            for name in SITES:
                if turn == self.late:
                    self.a_late_withdrawal_arrives(name)
                    self.a_late_grant_arrives(name)
                self.note_the_places()
                site = self.sites[name]
                site.look(1)
                hub.pools[name].snapshot()
                hub.refresh()
                hub.act(name, UID)
                site.step()
                site.start()
                self.at_most_one_place_runs()
                self.at_most_one_offer_is_ever_granted()
                self.no_living_pod_fails()
            self.clock.advance(15)


Race.TestCase.settings = settings(
    max_examples=examples(25, 80), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRace = Race.TestCase


def test_the_places_of_the_machine_are_open() -> None:
    """The machine would prove nothing if the pod had no places."""
    assert places.open_pools(Api(FakeClock()).pod or {}) == SITES
