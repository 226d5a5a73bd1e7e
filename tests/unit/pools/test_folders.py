"""A pool whose submitters have different folders: the hub uses one folder and sends no requests to the others."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from bridge.errors import SiteError, SiteRefusedError
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import JobSubmission
from bridge.protocol.nats.envelope import pack, parse
from bridge.protocol.nats.messages import Announce, Event, Request
from bridge.protocol.nats.request_client import TRIES
from bridge.protocol.nats.subjects import Subjects
from tests.builders import job_status
from tests.builders import site_pod as pod
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

OWNER = "c1"
SUBJECTS = Subjects("bridge.v1", "alpha", OWNER)
SUBMIT = JobSubmission(namespace="n", name="p", script="x")


def job(uid: str, phase: str = "running") -> JobStatus:
    return job_status(uid, phase, owner=OWNER)


class Sites:
    """Submitters with folders of their own; ``turns`` says which of them gets the next requests."""

    def __init__(self, *folders: str) -> None:
        self.link, self.clock = FakeLink(), FakeClock()
        self.pools = NatsPools(self.link, "bridge.v1", OWNER, self.clock)  # type: ignore[arg-type]
        self.link.after = self.pools.drain
        self.jobs: dict[str, list[str]] = {folder: [] for folder in folders}
        self.turns: list[str] = []
        self.refusals = 0
        self.careless = ""
        for kind, pattern in SUBJECTS.requests().items():
            self.link.subscribe(pattern, lambda _s, data, respond, kind=kind: respond(self._answer(kind, data)))

    def _answer(self, kind: str, data: bytes) -> bytes:
        request = parse(Request, data)
        if self.careless:
            return json.dumps({"v": 1, "folder": self.careless, "body": {"status": None}}).encode()
        folder = self.turns.pop(0) if self.turns else next(iter(self.jobs))
        if request.folder and request.folder != folder:
            self.refusals += 1
            problem = {"reason": "WrongFolder", "message": f"not {folder}", "retryable": True}
            return json.dumps({"v": 1, "folder": folder, "error": problem}).encode()
        known = self.jobs[folder]
        if kind == "submit":
            known.append(request.job)
        found = asdict(job(request.job)) if request.job in known else None
        body = {"status": found} if kind != "snapshot" else {"submitter": folder, "sequence": 0}
        if kind == "snapshot":
            body["jobs"] = [asdict(job(uid)) for uid in known]
        return json.dumps({"v": 1, "folder": folder, "body": body}).encode()

    def announce(self, folder: str) -> None:
        about = {"pool": "alpha", "submitter": f"host-{folder}", "folder": folder, "time": 0, "period": 5}
        self.link.publish(SUBJECTS.announce, pack(Announce.model_validate({**about, "version": "1"})))

    @property
    def pool(self) -> Any:
        return self.pools.pools()["alpha"]

    def work(self) -> None:
        if self.pool.due(self.clock.monotonic()):
            self.pool.ask()


def test_what_another_folder_says_is_not_believed() -> None:
    sites = Sites("f1", "f2")
    sites.jobs["f1"].append("uid-1")
    sites.announce("f1")
    sites.work()
    assert set(sites.pool.jobs()) == {"uid-1"}
    sites.announce("f2")
    assert sites.pool.announced()[0].folder == "f1"
    submitters = {folder: announce.submitter for folder, (announce, _) in sites.pool.announcements().items()}
    assert submitters == {"f1": "host-f1", "f2": "host-f2"}
    ended = job("uid-1", "ended")
    event = Event(pool="alpha", submitter="host-f2", folder="f2", sequence=1, status=ended)
    sites.link.publish(SUBJECTS.event, pack(event))
    assert sites.pool.jobs()["uid-1"].phase == "running"


def test_a_request_that_another_folder_refuses_is_sent_again() -> None:
    sites = Sites("f1", "f2")
    sites.announce("f1")
    sites.turns = ["f2", "f2", "f1"]
    sites.pool.send("uid-1", SUBMIT)
    assert (sites.jobs, sites.refusals) == ({"f1": ["uid-1"], "f2": []}, 2)
    sites.turns = ["f2"] * TRIES
    with pytest.raises(SiteRefusedError) as refused:
        sites.pool.status(pod("uid-1"))
    assert (refused.value.reason, refused.value.retryable) == ("WrongFolder", True)
    sites.turns = ["f2", "f1"]
    assert sites.pool.status(pod("uid-1")) is not None


def test_nobody_says_nothing_for_another_folder() -> None:
    """A submitter of a version that ignores the request's folder answers from its own."""
    sites = Sites("f1")
    sites.announce("f1")
    sites.pool.send("uid-1", SUBMIT)
    sites.careless = "f2"
    for call in (lambda: sites.pool.status(pod("uid-1")), lambda: sites.pool.cancel(pod("uid-1"), 0)):
        with pytest.raises(SiteError):
            call()
    sites.clock.advance(70)
    sites.work()
    assert set(sites.pool.jobs()) == set()  # no complete list has come
    assert sites.pool.complete_at() is None


def test_another_folder_that_is_chosen_begins_with_nothing() -> None:
    sites = Sites("f2", "f1")
    sites.jobs["f1"].append("uid-1")
    sites.jobs["f2"].append("uid-2")
    sites.announce("f2")
    sites.work()
    assert set(sites.pool.jobs()) == {"uid-2"}
    sites.announce("f1")
    sites.pool.choose("f1")
    assert sites.pool.jobs() == {}
    assert sites.pool.complete_at() is None
    assert sites.pool.announced()[0].folder == "f1"
    sites.clock.advance(2)
    sites.turns = ["f1"]
    sites.work()
    assert set(sites.pool.jobs()) == {"uid-1"}
    sites.pool.choose("f3")
    assert sites.pool.announced() is None
    sites.clock.advance(100)
    assert not sites.pool.due(sites.clock.monotonic())


def test_an_answer_from_before_another_folder_was_chosen_does_not_count() -> None:
    sites = Sites("f1", "f2")
    sites.jobs["f1"].append("uid-1")
    sites.announce("f1")
    sites.announce("f2")
    real = sites.pool._client.call

    def call(*args: Any) -> Any:
        page = real(*args)
        sites.pool.choose("f2")
        return page

    sites.pool._client.call = call
    sites.work()
    assert sites.pool.complete_at() is None


@pytest.mark.parametrize(("request_of", "stays"), [("cancel", False), ("status", True)])
def test_an_event_may_be_newer_than_an_answer_but_not_than_that_to_a_cancellation(request_of: str, stays: bool) -> None:
    """A site refuses later submissions of a job that it does not know when it is cancelled."""
    sites = Sites("f1")
    sites.jobs["f1"].append("uid-1")
    sites.announce("f1")
    sites.work()
    answer = sites._answer

    def after_an_event(kind: str, data: bytes) -> bytes:
        sites.clock.advance(1)
        event = Event(pool="alpha", submitter="host-f1", folder="f1", sequence=1, status=job("uid-1", "ended"))
        sites.link.publish(SUBJECTS.event, pack(event))
        sites.clock.advance(1)
        sites.jobs["f1"].clear()
        return answer(kind, data)

    sites._answer = after_an_event  # type: ignore[method-assign]
    ask = (
        (lambda: sites.pool.cancel(pod("uid-1"), 0))
        if request_of == "cancel"
        else lambda: sites.pool.status(pod("uid-1"))
    )
    assert ask() is None
    assert ("uid-1" in sites.pool.jobs()) is stays
