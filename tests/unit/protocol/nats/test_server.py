"""The site's side of the protocol, over a link without a network: every request gets an answer."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BatchError, SiteRefusedError, SiteTooLargeError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats import envelope
from bridge.protocol.nats.envelope import LIMITS, GarbledError, parse_body
from bridge.protocol.nats.messages import (
    CancelMessage,
    Empty,
    Grant,
    Reply,
    Snapshot,
    SnapshotPage,
    Status,
    SubmitMessage,
    SubmittedMessage,
)
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Server, refusal
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, GRANT, LOGS, REQUESTS, SNAPSHOT, STATUS, SUBMIT
from bridge.protocol.nats.subjects import Subjects, encode
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

OWNER = "c1"
SUBJECTS = Subjects("bridge.v1", "alpha", OWNER)
SUBMISSION = SubmitMessage(namespace="ns", name="pod", script="x")


class Handlers:
    """Every request is carried out, and counted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None

    def _call(self, kind: str) -> None:
        self.calls.append(kind)
        if self.error is not None:
            raise self.error

    def submit(self, owner: str, job: str, submit: SubmitMessage) -> SubmittedMessage:
        self._call("submit")
        return SubmittedMessage(status=JobStatus(job=job, owner=OWNER, namespace="ns", name="pod", phase="queued"))

    def snapshot(self, owner: str, job: str, snapshot: Snapshot) -> SnapshotPage:
        self._call("snapshot")
        jobs = [JobStatus(job=f"u{n:04}", owner=OWNER, namespace="ns", name="p", phase="queued") for n in range(40)]
        return SnapshotPage(submitter="s", sequence=1, jobs=[j for j in jobs if j.job > snapshot.after])

    def __getattr__(self, name: str) -> Any:
        def handle(owner: str, job: str, *_: Any) -> Empty:
            assert (owner, bool(job)) == (OWNER, REQUESTS[name].of_job)
            self._call(name)
            return Empty()

        return handle


def served(handlers: Handlers, clock: FakeClock | None = None) -> FakeLink:
    link = FakeLink()
    Server(link, "bridge.v1", "alpha", handlers, clock or FakeClock())  # type: ignore[arg-type]
    return link


@given(
    st.sampled_from(sorted(SUBJECTS.requests())),
    st.text(max_size=20),
    st.binary(max_size=300) | st.text(max_size=300).map(lambda text: b"{" + text.encode()),
)
def test_garbage_on_any_subject_is_answered_with_an_error_and_reaches_no_handler(
    kind: str, token: str, data: bytes
) -> None:
    handlers = Handlers()
    link = served(handlers)
    subject = SUBJECTS.requests()[kind].replace("*", encode(token))
    answer = json.loads(link.request(subject, data, 1))
    assert answer["error"]["reason"] == "GarbledMessage"
    assert handlers.calls == []


def test_a_request_without_a_reply_subject_is_not_carried_out() -> None:
    handlers = Handlers()
    link = served(handlers)
    link.publish(SUBJECTS.request(SNAPSHOT), b'{"v":1,"pool":"alpha","owner":"c1","deadline":1e12}')
    link.publish(SUBJECTS.request(LOGS, "u"), b"{}")
    assert handlers.calls == []


def request(**changes: Any) -> bytes:
    return json.dumps({"v": 1, "pool": "alpha", "owner": OWNER, "job": "u", "deadline": 1e12, **changes}).encode()


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"v": 7}, "GarbledMessage", "version"),
        ({"job": "../etc"}, "GarbledMessage", ""),
        ({"pool": "beta"}, "WrongPool", ""),
        ({"job": "uid-2"}, "WrongJob", ""),
        ({"job": ""}, "WrongJob", ""),
        ({"owner": "c2"}, "WrongOwner", ""),
        ({"owner": "*"}, "GarbledMessage", ""),
        ({"folder": "another"}, "WrongFolder", ""),
        ({"deadline": math.nan}, "Late", ""),
        ({"body": {"namespace": "ns"}}, "GarbledMessage", ""),
        ({"body": {"namespace": "ns", "name": ["hunter2"], "script": {"x": "hunter2"}}}, "GarbledMessage", ""),
    ],
)
def test_an_invalid_request_is_answered_with_an_error_that_repeats_nothing_of_its_body(
    changes: dict[str, Any], reason: str, message: str
) -> None:
    handlers = Handlers()
    answer = served(handlers).request(SUBJECTS.request(SUBMIT, "ns-pod", "u"), request(**changes), 1)
    error = json.loads(answer)["error"]
    assert (error["reason"], handlers.calls) == (reason, [])
    assert message in error["message"]
    assert b"hunter2" not in answer


@pytest.mark.parametrize(("ago", "done"), [(-60, True), (0, True), (4.9, True), (5.1, False), (3600, False)])
def test_the_deadline_has_five_seconds_of_allowance(ago: float, done: bool) -> None:
    handlers, clock = Handlers(), FakeClock()
    answer = json.loads(
        served(handlers, clock).request(SUBJECTS.request(CANCEL, "u"), request(deadline=clock.now - ago), 1)
    )
    assert handlers.calls == (["cancel"] if done else [])
    assert (answer["error"] or {}).get("reason") == (None if done else "Late")


def test_nats_9_1_whatever_a_handler_raises_is_answered() -> None:
    handlers = Handlers()
    client = PoolClient(served(handlers), "bridge.v1", "alpha", OWNER, FakeClock())  # type: ignore[arg-type]
    for error, reason in (
        (BatchError("full", retryable=True), "BatchSystemRefused"),
        (ValueError("x"), "InternalError"),
    ):
        handlers.error = error
        for call in (
            lambda: client.call(SUBMIT, "u", SUBMISSION),
            lambda: client.call(CANCEL, "u", CancelMessage()),
            lambda: client.call(STATUS, "u", Empty()),
            lambda: client.call(SNAPSHOT, "", Snapshot()),
            lambda: client.call(DESCRIBE, "", Empty()),
        ):
            with pytest.raises(Exception) as caught:
                call()
            assert (caught.value.reason, caught.value.retryable) == (reason, True)  # type: ignore[attr-defined]


def test_an_answer_that_is_too_large_says_so() -> None:
    link = served(Handlers())
    sizes: list[int] = []

    def small(data: bytes) -> None:
        sizes.append(len(data))
        if len(data) > 3000:
            raise SiteTooLargeError("too large")

    handler = link._handlers(SUBJECTS.request(SNAPSHOT))[0]
    handler(SUBJECTS.request(SNAPSHOT), b'{"v":1,"pool":"alpha","owner":"c1","deadline":1e12}', small)
    assert len(sizes) > 1
    assert sizes[-1] <= 3000


def test_an_unexpected_error_tells_its_kind_and_not_its_words() -> None:
    problem = refusal(KeyError("hunter2"), "submit")
    assert "hunter2" not in problem.message
    assert "KeyError" in problem.message


def test_a_grant_reaches_the_handler_with_its_owner_job_and_ticket() -> None:
    seen: list[tuple[str, str, str]] = []

    class Granting(Handlers):
        def grant(self, owner: str, job: str, grant: Grant) -> Status:
            seen.append((owner, job, grant.ticket))
            return Status(status=JobStatus(job=job, owner=OWNER, namespace="ns", name="p", phase="queued"))

    client = PoolClient(served(Granting()), "bridge.v1", "alpha", OWNER, FakeClock())  # type: ignore[arg-type]
    answer = client.call(GRANT, "u1", Grant(ticket="t-1"))
    assert answer.status is not None
    assert (answer.status.job, seen) == ("u1", [(OWNER, "u1", "t-1")])


@pytest.mark.parametrize("ticket", ["", "a b", "x" * 65, "a\n", "../a"])
def test_a_ticket_of_a_grant_is_checked(ticket: str) -> None:
    with pytest.raises(GarbledError):
        parse_body(Grant, {"ticket": ticket})


class Reporting(Handlers):
    """Reports these jobs."""

    def __init__(self, jobs: list[JobStatus]) -> None:
        super().__init__()
        self.jobs = jobs

    def snapshot(self, owner: str, job: str, snapshot: Snapshot) -> SnapshotPage:
        return SnapshotPage(submitter="s", sequence=1, jobs=[each for each in self.jobs if each.job > snapshot.after])

    def status(self, owner: str, job: str, body: Empty) -> Status:
        return Status(status=next(each for each in self.jobs if each.job == job))

    def cancel(self, owner: str, job: str, cancel: CancelMessage) -> Status:
        return self.status(owner, job, Empty())

    def submit(self, owner: str, job: str, submit: SubmitMessage) -> SubmittedMessage:
        return SubmittedMessage(status=next(each for each in self.jobs if each.job == job))


def reporting(messages: list[str]) -> PoolClient:
    jobs = [
        JobStatus(job=f"u{number}", owner=OWNER, namespace="ns", name="p", phase="queued", message=message)
        for number, message in enumerate(messages)
    ]
    return PoolClient(served(Reporting(jobs)), "bridge.v1", "alpha", OWNER, FakeClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 9])
def test_a_page_that_the_hub_would_not_unpack_is_shortened(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Control characters take six bytes each in JSON, and next to nothing when compressed."""
    monkeypatch.setitem(LIMITS, Reply, 32 * 1024)
    monkeypatch.setattr(envelope, "MOST", 128 * 1024)
    client = reporting(["\x01" * 4096] * count)
    found, after, more = [], "", True
    while more:
        page = client.call(SNAPSHOT, "", Snapshot(after=after))
        found += [job.job for job in page.jobs]
        after, more = page.jobs[-1].job, page.more
    assert found == [f"u{number}" for number in range(count)]


def test_an_answer_without_a_json_form_is_a_refusal_and_not_silence() -> None:
    client = reporting(["fine", "\ud800"])
    assert [job.job for job in client.call(SNAPSHOT, "", Snapshot()).jobs] == ["u0"]
    for call in (
        lambda: client.call(SNAPSHOT, "", Snapshot(after="u0")),
        lambda: client.call(STATUS, "u1", Empty()),
        lambda: client.call(CANCEL, "u1", CancelMessage()),
    ):
        with pytest.raises(SiteRefusedError) as caught:
            call()
        assert caught.value.reason == "GarbledMessage"


def test_a_submission_whose_answer_can_not_be_sent_is_not_refused() -> None:
    with pytest.raises(SiteUnknownOutcomeError):
        reporting(["\ud800"]).call(SUBMIT, "u0", SUBMISSION)
