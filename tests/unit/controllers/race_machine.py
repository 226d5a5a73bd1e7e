"""The hubs of a race, and what may happen to hubs and sites while one goes on."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from bridge.config.hub import Config
from bridge.errors import BridgeError
from bridge.workload import pods
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_state import Entry, PodView, PoolView
from controllers.virtual.prune_nodes import prune
from controllers.virtual.race_decide import Racers
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor
from tests.fakes.clock import FakeClock
from tests.unit.controllers.race_world import (
    HUBS,
    SITES,
    TIMEOUT,
    WAIT,
    Api,
    Network,
    Site,
    SitePool,
)


class Hub:
    """The controllers of one process: its cache of the pods, its views of the sites, its entries."""

    def __init__(self, api: Api, sites: Mapping[str, Site], clock: FakeClock) -> None:
        self.api, self.sites, self.clock = api, sites, clock
        self.again()

    def again(self) -> None:
        """Start, as after kill -9."""
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
        """Let the caches see the pods as they are."""
        before, self.pods = self.pods, {pods.uid(pod): copy.deepcopy(pod) for pod in self.api.pods()}
        for uid in {*before, *self.pods}:
            pod = self.pods.get(uid)
            waits = pod is not None and pods.is_open(pod)
            new = race_decide.prune(pod) if waits and pod is not None else None
            self.racers.changed("update" if waits else "delete", before.get(uid), new)

    def act(self, name: str, uid: str, network: Network = "works", api: Network = "works") -> None:
        """Decide for a pod or its place at one pool, and carry out the action."""
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


class RaceMachine(RuleBasedStateMachine):
    """What may happen to hubs and sites, whatever races there; a subclass begins with :meth:`build`."""

    site, api_server = Site, Api

    def build(self) -> None:
        self.at = Path(tempfile.mkdtemp())
        self.clock = FakeClock(1_000.0)
        self.api = self.api_server(self.clock)
        tickets = itertools.count(1)
        self.sites = {name: self.site(name, self.at, self.clock, tickets) for name in SITES}

    def settle(self) -> None:
        """Check what must hold at the end, with all connections back."""
        raise NotImplementedError

    def scripts(self) -> list[Any]:
        return [script for site in self.sites.values() for script in site.scripts] if hasattr(self, "sites") else []

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

    @rule(hub=HUBS)
    def hub_refreshes(self, hub: int) -> None:
        self.hubs[hub].refresh()

    @rule(hub=HUBS, site=st.sampled_from(SITES), lose=st.booleans())
    def hub_receives_an_event(self, hub: int, site: str, lose: bool) -> None:
        self.hubs[hub].pools[site].receive(lose=lose)

    @rule(hub=HUBS)
    def hub_is_killed(self, hub: int) -> None:
        self.hubs[hub].again()

    @rule(site=st.sampled_from(SITES))
    def submitter_is_killed(self, site: str) -> None:
        self.sites[site].again()

    @rule(site=st.sampled_from(SITES))
    def jobs_start(self, site: str) -> None:
        self.sites[site].start()

    @rule(site=st.sampled_from(SITES), full=st.booleans())
    def a_site_is_full_or_has_room(self, site: str, full: bool) -> None:
        self.sites[site].full = full

    @rule(site=st.sampled_from(SITES))
    def scripts_go_on(self, site: str) -> None:
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

    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
