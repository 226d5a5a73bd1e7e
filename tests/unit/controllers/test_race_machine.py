"""A pod that races, with all that may happen: hubs and submitters are killed, messages are lost, late or doubled.

The decisions and actions of the hub, the views of jobs and the sites (submitter, watcher, folder) are the real ones.
The API server, the network, the batch systems and the scripts are in memory; a script follows ``lib/grant.bash`` step
by step. Two hubs act at once, without a lease: the safety of a race must not depend on one.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge import names
from bridge.config.hub import Config
from bridge.errors import BridgeError, KubeConflictError, KubeUnavailableError, SiteDownError, SiteUnknownOutcomeError
from bridge.pools.submitter.job_view import JobView, Part
from bridge.protocol.model.announcement import READY, Readiness
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import CancelMessage, Empty, Event, Grant, Snapshot, SubmitMessage
from bridge.script import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.config.site_config import parse
from bridge.site.files.atomic_files import read_line
from bridge.workload import places, pods
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_state import Entry, PodView, PoolView
from controllers.virtual.prune_nodes import prune
from controllers.virtual.race_decide import Racers
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor
from tests import builders
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import MemoryKube, Writes
from tests.fakes.pool import uid_of
from tests.unit.site.conftest import World as SiteWorld

OWNER, UID, WAIT, TIMEOUT = "c1", "u1", 60.0, 30.0
POD = "/api/v1/namespaces/ns/pods/p"
SITES = ("a", "b")
CONFIG = BuildConfig.model_validate({"runtime": {"kind": "none"}, "limits": {"allow_race": True}})
Network = Literal["works", "request lost", "answer lost", "late", "down"]
NETWORK = st.sampled_from(["works", "works", "works", "request lost", "answer lost", "late", "down"])


class Api(MemoryKube):
    """The API server with one pod, over a network that may fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Writes(), clock)
        self.network: Network = "works"
        annotations = {names.POOLS: "a,b,local", names.PLACEMENT: names.RACE, names.PLACES: "a,b,local"}
        spec = {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "i", "command": ["true"]}],
            "tolerations": [{"key": names.POOL_TAINT, "operator": "Exists"}],
        }
        self.put(POD, builders.pod(UID, annotations=annotations, metadata={"name": "p"}, **spec))

    @property
    def pod(self) -> dict[str, Any] | None:
        return self.objects.get(POD)

    def fenced(self, _: Any) -> Any:
        return self

    def get(self, path: str, params: Any = None, *, metadata_only: bool = False) -> dict[str, Any]:
        return self._do(lambda: MemoryKube.get(self, path, params))

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._do(lambda: MemoryKube.create(self, path, body))

    def patch(self, path: str, patch: dict[str, Any], kind: str = "merge") -> dict[str, Any]:
        return self._do(lambda: MemoryKube.patch(self, path, patch))

    def delete(self, path: str, options: Any = None) -> Any:
        """Delete the pod at once, whatever its phase: the hub asks for no grace period."""

        def remove() -> dict[str, Any]:
            self._of(path)
            return self.objects.pop(path)

        return self._do(remove)

    def annotate(self, values: dict[str, str | None]) -> None:
        """Let the scheduler or a user change annotations; ``None`` removes one."""
        if self.pod is not None:
            MemoryKube.patch(self, POD, {"metadata": {"annotations": values}})

    def _do(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.network in ("down", "request lost"):
            raise KubeUnavailableError("the API server does not answer")
        answer = call()
        if self.network in ("answer lost", "late"):
            raise KubeUnavailableError("no answer")
        return answer


class Script:
    """A run of the script of one job, in the directory in which it started: ``lib/grant.bash`` and what follows it."""

    def __init__(self, site: Site, job_id: str) -> None:
        self.site, self.job_id = site, job_id
        self.state = "waits"
        self.began = self.excused = False
        self.grant_counts = True
        at = site.folder.job(UID).path
        self.plain = json.loads((at / "job.sh").read_text().split("\n")[1].split(" ", 3)[3])["grant_wait"] is None
        os.mkdir(at / "started")  # fails for a second run in one directory
        self.folder = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
        self.at = Path(f"/proc/self/fd/{self.folder}")
        self.until = site.clock.monotonic() + WAIT
        self.ticket = self.first_ticket = "" if self.plain else f"ticket-{next(site.tickets)}"
        self._write("started/job", f"{job_id}\n")
        if self.plain:
            self._begin()
        else:
            self._record("Asking")

    def step(self) -> None:
        if self.state == "waits":
            if (self.at / "control" / "stop").exists():
                self._give_back("Deleted")
            elif read_line(self.at / "control" / "grant") == self.ticket:
                self.ticket = ""
                self._begin()
            elif self.site.clock.monotonic() >= self.until:
                self._give_back("NoGrant")
        elif self.state == "runs":
            stopped = (self.at / "control" / "stop").exists()
            ended = {"exitCode": int(stopped), "startedAt": 7, "finishedAt": 9}
            self._write("state/main.json", json.dumps({"state": "terminated", "ended": ended}))
            self._record("Failed" if stopped else "Succeeded", "Deleted" if stopped else "")
            self._over(code=int(stopped))

    def kill(self) -> None:
        """Kill the job: the script records nothing more."""
        self.state = "dead"

    def lose_node(self) -> None:
        """Lose its node. Its pod may fail, if the script has begun or has a grant that came before this is known."""
        self.excused = self.state != "dead"
        self.kill()

    def has_grant(self) -> bool:
        return not self.plain and read_line(self.at / "control" / "grant") == self.first_ticket

    def fails_its_pod(self) -> bool:
        """Whether its pod fails, as that of any job whose node was lost."""
        return self.excused and (self.began or (self.grant_counts and (self.at / "control" / "grant").exists()))

    def end_is_known(self) -> None:
        """Let the site know of the lost node: no grant may come from now on."""
        if self.excused and self.job_id not in self.site.lost:
            self.grant_counts = self.grant_counts and (self.at / "control" / "grant").exists()

    def _begin(self) -> None:
        self._record("Running")
        self.state, self.began = "runs", True

    def _give_back(self, reason: str) -> None:
        self._record("Failed", reason)
        self._over(code=1)

    def _over(self, code: int) -> None:
        self.state = "dead"
        if self.site.is_listed(self.job_id):
            self.site.batch.end(self.job_id, code=code)

    def _record(self, phase: str, reason: str = "") -> None:
        ended = 9 if phase in ("Succeeded", "Failed") else None
        record = {"phase": phase, "reason": reason, "startedAt": 7, "finishedAt": ended, "ticket": self.ticket}
        self._write("state/pod.json", json.dumps(record))

    def _write(self, name: str, text: str) -> None:
        path = self.at / name
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        except FileNotFoundError:
            return  # the directory was removed
        self.site.folder.touch(UID)


class Site(SiteWorld):
    """A site with the real submitter. ``late`` requests are carried out later, unless their deadline is over."""

    def __init__(self, name: str, path: Path, clock: FakeClock, tickets: Any) -> None:
        self.name, self.tickets, self.messages = name, tickets, []
        self.late: list[tuple[float, Callable[[], Any]]] = []
        self.scripts: list[Script] = []
        self.lost: set[str] = set()
        self.full = False
        super().__init__(path / name)
        self.clock = clock
        self.config = parse(f'pool = "{name}"\n[limits]\nallow_race = true\n')
        self.again()

    def start_submitter(self) -> Any:
        found = super().start_submitter()
        watcher, name = found[1], f"{self.name}{next(self.tickets)}"
        watcher.name = name

        def publish(number: int, status: JobStatus) -> None:
            self.messages.append(Event(pool=self.name, submitter=name, sequence=number, status=status))

        watcher.index._publish = publish
        return found

    def again(self) -> None:
        super().again()
        self.second = self.start_submitter()
        self.answers = self.submitter

    def hand_over(self) -> None:
        """Let the second submitter become the leader, while the first one goes on."""
        first = self.folder, self.watcher, self.submitter
        self.watcher.release_leadership()
        (self.folder, self.watcher, self.submitter), self.second = self.second, first
        assert self.watcher.take_leadership()

    def is_listed(self, job_id: str) -> bool:
        """Return whether the batch system lists the job, and not as ended."""
        return job_id in self.batch.table and self.batch.table[job_id].phase != "ended"

    def start(self) -> None:
        """Start what waits in the queue of the batch system."""
        for job in [job for job in self.batch.table.values() if job.phase == "queued" and not self.full]:
            self.batch.run(job.id)
            try:
                self.scripts.append(Script(self, job.id))
            except OSError:  # the directory was removed, or another job has started in it
                self.batch.end(job.id, code=1)

    def look(self, seconds: float = 0.0) -> None:
        super().look(seconds)
        for script in self.scripts:
            script.end_is_known()

    def step(self) -> None:
        for script in self.scripts:
            if script.state != "dead" and script.job_id not in self.lost and not self.is_listed(script.job_id):
                script.kill()  # the batch system has cancelled its job
            script.step()


class SitePool:
    """A pool as one hub sees it: its view of jobs, and requests over a network."""

    follows = folders = refreshes = logs = None
    late, gangs = 5.0, True

    def __init__(self, site: Site) -> None:
        self.lists = self.holds = self
        self.site, self.name, self.view, self.cursor = site, site.name, JobView(), len(site.messages)
        self.network: Network = "works"
        self.pages: list[Part] = []

    def ready(self) -> Readiness:
        return READY

    def allows_race(self) -> bool:
        return True

    def allows_gang_race(self) -> bool:
        return True

    def prepare(self, pod: Any) -> Any:
        return pod

    def submit(self, pod: Any, objects: Objects) -> JobStatus:
        return self._send(pod, objects, None)

    def offer(self, pod: Any, objects: Objects, wait: float) -> JobStatus:
        return self._send(pod, objects, wait)

    def _send(self, pod: Any, objects: Objects, wait: float | None) -> JobStatus:
        assert pod["spec"]["containers"][0].get("command"), "the cache keeps only a part of this pod"
        made = build.build(pod, CONFIG, objects, self.name, wait)
        body = SubmitMessage.of(made, "true\n")
        status = self._ask(lambda: self.site.answers.submit(OWNER, uid_of(pod), body).status)
        self.view.submitted(status, self.site.clock.monotonic())
        return status

    def grant(self, pod: Any, ticket: str) -> JobStatus | None:
        return self._ask(lambda: self.site.answers.grant(OWNER, uid_of(pod), Grant(ticket=ticket)).status)

    def cancel(self, pod: Any, grace: float, *, forget: bool = False) -> JobStatus | None:
        return self._known(
            lambda: self.site.answers.cancel(OWNER, uid_of(pod), CancelMessage(grace=grace, forget=forget)).status, pod
        )

    def withdraw(self, pod: Any) -> JobStatus | None:
        body = CancelMessage(grace=0, withdrawn=True)
        return self._known(lambda: self.site.answers.cancel(OWNER, uid_of(pod), body).status, pod)

    def status(self, pod: Any) -> JobStatus | None:
        return self._known(lambda: self.site.answers.status(OWNER, uid_of(pod), Empty()).status, pod)

    def announced(self) -> Any: ...
    def subscribe(self, changed: Any) -> None: ...
    def missing(self) -> frozenset[str]: ...  # type: ignore[empty-body]
    def complete_at(self) -> float | None: ...

    folder = ""

    def jobs(self) -> dict[str, JobStatus]:
        return self.view.jobs

    def job(self, job: str) -> JobStatus | None:
        return self.view.jobs.get(job)

    def _known(self, call: Callable[[], JobStatus | None], pod: Any) -> JobStatus | None:
        asked = self.site.clock.monotonic()
        status: JobStatus | None = self._ask(call)
        if status is None:
            self.view.gone(uid_of(pod), asked, self.site.clock.monotonic())
        return status

    def _ask(self, call: Callable[[], Any]) -> Any:
        if self.network == "down":
            raise SiteDownError("no connection")
        if self.network == "late":
            self.site.late.append((self.site.clock.monotonic() + TIMEOUT + self.late, call))
        if self.network in ("late", "request lost"):
            raise SiteUnknownOutcomeError("no answer")
        answer = call()
        if self.network == "answer lost":
            raise SiteUnknownOutcomeError("no answer")
        return answer

    def receive(self, *, lose: bool = False) -> None:
        """Receive the next event, or lose it."""
        if self.cursor < len(self.site.messages):
            if not lose:
                self.view.event(self.site.messages[self.cursor], self.site.clock.monotonic())
            self.cursor += 1

    def snapshot(self, *, late: bool = False) -> None:
        """Request a snapshot; ``late``: its answer waits for :meth:`answer`."""
        page = self.site.answers.snapshot(OWNER, "", Snapshot())
        self.pages.append(Part(page.submitter, page.sequence, list(page.jobs), set(), self.site.clock.monotonic()))
        if not late:
            self.answer(-1)

    def answer(self, number: int) -> None:
        self.view.snapshot([self.pages.pop(number)], self.site.clock.monotonic())


class Hub:
    """The controllers of one process: its cache of the pod, its views of the sites, its entries."""

    def __init__(self, api: Api, sites: dict[str, Site], clock: FakeClock) -> None:
        self.api, self.sites, self.clock = api, sites, clock
        self.again()

    def again(self) -> None:
        """Start, as after kill -9."""
        self.pools = {name: SitePool(site) for name, site in self.sites.items()}
        self.entries = {name: Entry() for name in self.sites}
        self.racers, self.pod = Racers(lambda *_: None), None
        reader = ReferenceReader(self.api, Config(), self.clock)  # type: ignore[arg-type]
        self.actor = PodActor(self.api, self, reader, self.clock, lambda: None, "10.0.0.1", TIMEOUT, WAIT)  # type: ignore[arg-type]
        self.since = self.clock.monotonic()
        self.refresh()

    def event(self, *_: Any, **__: Any) -> None: ...

    def apply(self, found: Any) -> None: ...

    def refresh(self) -> None:
        """Let the caches see the pod as it is."""
        before, self.pod = self.pod, copy.deepcopy(self.api.pod)
        waits = self.pod is not None and not pods.is_bound(self.pod)
        if self.pod is not None:
            self.pod = race_decide.prune(self.pod) if waits else prune(self.pod)
        self.racers.changed("update" if waits else "delete", before, self.pod if waits else None)

    def act(self, name: str, network: Network, api: Network = "works") -> None:
        """Decide for the pod or the place at one pool, and carry out the action."""
        pool, entry, now = self.pools[name], self.entries[name], self.clock.monotonic()
        bound = self.pod if self.pod is not None and self.pod["spec"].get("nodeName") == name else None
        racer = self.racers.get(name, UID) if bound is None else None
        job = pool.job(UID) if pool.view.complete_at is not None else None
        if bound is None and racer is None and job is None:
            self.entries[name] = Entry()
            return
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


class Race(RuleBasedStateMachine):
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
        self.at = Path(tempfile.mkdtemp())
        self.clock = FakeClock(1_000.0)
        self.api = Api(self.clock)
        tickets = itertools.count(1)
        self.sites = {name: Site(name, self.at, self.clock, tickets) for name in SITES}
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
    @rule(hub=st.integers(0, 1), site=st.sampled_from(SITES), network=NETWORK, api=NETWORK)
    def hub_acts(self, hub: int, site: str, network: Network, api: Network) -> None:
        self.hubs[hub].act(site, network, api)

    @rule(hub=st.integers(0, 1))
    def hub_sees_the_pod(self, hub: int) -> None:
        self.hubs[hub].refresh()

    @rule(hub=st.integers(0, 1), site=st.sampled_from(SITES), lose=st.booleans())
    def hub_receives_an_event(self, hub: int, site: str, lose: bool) -> None:
        self.hubs[hub].pools[site].receive(lose=lose)

    @rule(hub=st.integers(0, 1), site=st.sampled_from(SITES), late=st.booleans())
    def hub_requests_a_snapshot(self, hub: int, site: str, late: bool) -> None:
        self.hubs[hub].pools[site].snapshot(late=late)

    @rule(hub=st.integers(0, 1), site=st.sampled_from(SITES))
    def a_late_snapshot_arrives(self, hub: int, site: str) -> None:
        if self.hubs[hub].pools[site].pages:
            self.hubs[hub].pools[site].answer(0)

    @rule(hub=st.integers(0, 1))
    def hub_is_killed(self, hub: int) -> None:
        self.hubs[hub].again()

    @rule(hub=st.integers(0, 1), sites=st.sampled_from([*SITES, "ab", "ba"]), network=NETWORK, times=st.integers(1, 4))
    def hub_and_sites_go_on(self, hub: int, sites: str, network: Network, times: int) -> None:
        """The usual order of things, so that most runs come far; only the last action meets the network."""
        for turn in range(times):
            for name in sites:
                self.advance(hub, name, network if turn == times - 1 else "works")

    @rule(hub=st.integers(0, 1), site=st.sampled_from(SITES), network=NETWORK)
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
        self.hubs[hub].act(name, network)
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
    def the_other_submitter_answers(self, site: str) -> None:
        where = self.sites[site]
        where.answers = where.second[2] if where.answers is where.submitter else where.submitter

    @rule(site=st.sampled_from(SITES))
    def the_other_submitter_leads(self, site: str) -> None:
        self.sites[site].hand_over()

    @rule(site=st.sampled_from(SITES))
    def a_late_request_arrives(self, site: str) -> None:
        late = self.sites[site].late
        if late:
            deadline, call = late.pop(0)
            if self.clock.monotonic() <= deadline:
                with contextlib.suppress(BridgeError):
                    call()

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
    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

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
    def scripts(self) -> list[Script]:
        return [script for site in self.sites.values() for script in site.scripts]

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

    def teardown(self) -> None:
        """With all connections back, no job of a withdrawn place is left, and a pod that was not deleted runs."""
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
                hub.act(name, "works")
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
