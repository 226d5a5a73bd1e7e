"""The API server and the sites of a race: hubs and submitters are killed, messages are lost, late or doubled.

The decisions and actions of the hub, the views of jobs and the sites (submitter, watcher, folder) are the real ones.
The API server, the network, the batch systems and the scripts are in memory; a script follows ``lib/grant.bash`` step
by step. Two hubs act at once, without a lease: the safety of a race must not depend on one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from bridge import names
from bridge.errors import KubeUnavailableError, SiteDownError, SiteUnknownOutcomeError
from bridge.pools.submitter.job_view import JobView, Part
from bridge.protocol.model.announcement import READY, Readiness
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import CancelMessage, Empty, Event, Grant, Snapshot, SubmitMessage
from bridge.script import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.site.config.site_config import parse
from bridge.site.files.atomic_files import read_line
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import MemoryKube, Writes
from tests.fakes.pool import uid_of
from tests.unit.site.conftest import World as SiteWorld

OWNER, UID, WAIT, TIMEOUT = "c1", "u1", 60.0, 30.0
POD = "/api/v1/namespaces/ns/pods/p"
SITES = ("a", "b")
CONFIG = BuildConfig.model_validate({"runtime": {"kind": "none"}, "limits": {"allow_race": True}})
Network = Literal["works", "request lost", "answer lost", "late", "down"]
HUBS = st.integers(0, 1)
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

    def __init__(self, site: Site, job_id: str, uid: str) -> None:
        self.site, self.job_id, self.uid = site, job_id, uid
        self.state = "waits"
        self.began = self.excused = False
        self.grant_counts = True
        at = site.folder.job(uid).path
        self.meta = json.loads((at / "job.sh").read_text().split("\n")[1].split(" ", 3)[3])
        self.plain = self.meta["grant_wait"] is None
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
        self.site.folder.touch(self.uid)


class Site(SiteWorld):
    """A site with the real submitter. ``late`` requests are carried out later, unless their deadline is over."""

    script = Script

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
                self.scripts.append(self.script(self, job.id, job.uid))
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

    def prepare(self, pod: Any) -> Any:
        return pod

    def submit(self, pod: Any, objects: Objects) -> JobStatus:
        return self._send(pod, objects, None)

    def offer(self, pod: Any, objects: Objects, wait: float) -> JobStatus:
        return self._send(pod, objects, wait)

    def _send(self, pod: Any, objects: Objects, wait: float | None) -> JobStatus:
        assert pod["spec"]["containers"][0].get("command"), "the cache keeps only a part of this pod"
        made = build.build(pod, CONFIG, objects, self.name, wait)
        body = SubmitMessage.of(made, script="true\n")
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
