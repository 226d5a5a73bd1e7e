"""The hub's side of the protocol, with arbitrary answers of a site."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.pools.submitter import site_requests
from bridge.pools.submitter.job_view import Part
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import CancelMessage, Empty, Files, Grant, Snapshot, SubmitMessage
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, FILES, GRANT, SNAPSHOT, STATUS, SUBMIT
from bridge.protocol.nats.subjects import Subjects
from tests.builders import job_status
from tests.examples import json_values
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

OWNER = "c1"
KEYS = ["v", "body", "error", "reason", "message", "status", "jobs", "job", "submitter", "sequence", "more", "announce"]
JSON = json_values(st.sampled_from(KEYS), st.text(max_size=10) | st.sampled_from(["queued", "uid-1"]))
ANSWERS = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps({"v": 1, "body": value}).encode()),
    st.lists(JSON, max_size=4).map(
        lambda jobs: json.dumps(
            {"v": 1, "body": {"submitter": "s", "sequence": 1, "jobs": jobs, "more": True}}
        ).encode()
    ),
)


def answering(data: bytes) -> FakeLink:
    link = FakeLink()
    for pattern in Subjects("bridge.v1", "alpha", OWNER).requests().values():
        link.subscribe(pattern, lambda _s, _d, respond: respond(data))
    return link


@given(ANSWERS)
def test_whatever_is_answered_only_site_errors_are_raised(data: bytes) -> None:
    link: Any = answering(data)
    client = PoolClient(link, "bridge.v1", "alpha", OWNER, FakeClock())
    calls = [
        lambda: client.call(SUBMIT, "u", SubmitMessage(namespace="n", name="p", script="x")),
        lambda: client.call(CANCEL, "u", CancelMessage()),
        lambda: client.call(STATUS, "u", Empty()),
        lambda: client.call(GRANT, "u", Grant(ticket="t")),
        lambda: client.call(FILES, "u", Files(files=[])),
        lambda: client.logs("u", LogOptions(container="c")).close(),
        lambda: client.call(DESCRIBE, "", Empty()),
        lambda: client.call(SNAPSHOT, "", Snapshot()),
    ]
    for call in calls:
        try:
            call()
        except SiteError as error:
            assert str(error)
    SubmitterPool(
        "alpha", OWNER, lambda folder: PoolClient(link, "bridge.v1", "alpha", OWNER, folder=folder), FakeClock()
    ).ask()


def client(data: bytes) -> PoolClient:
    return PoolClient(answering(data), "bridge.v1", "alpha", OWNER)  # type: ignore[arg-type]


def test_nats_9_1_one_job_that_makes_no_sense_does_not_spoil_a_snapshot() -> None:
    def snapshot(*jobs: Any) -> Part:
        body = {"submitter": "s", "sequence": 4, "more": False, "jobs": jobs}
        asked = client(json.dumps({"v": 1, "body": body}).encode())
        assert [job.job for job in asked.call(SNAPSHOT, "", Snapshot()).jobs] == [job["job"] for job in jobs]
        [part] = site_requests.request_snapshot("alpha", OWNER, asked, FakeClock())
        return part

    valid, foreign = asdict(job_status("a", owner=OWNER)), asdict(job_status("d", owner="c2"))
    part = snapshot(valid, {**valid, "job": "b", "phase": "odd"}, asdict(job_status("c", owner=OWNER)), foreign)
    assert ([job.job for job in part.jobs], part.unreadable) == (["a", "c"], {"b"})
    for job in ({"no": "uid"}, {"job": ""}, None, "a"):
        with pytest.raises(SiteError, match="the answer of pool alpha is invalid"):
            snapshot(valid, job)


def test_an_answer_that_can_not_be_read_is_an_unknown_outcome() -> None:
    with pytest.raises(SiteUnknownOutcomeError):
        client(b"what?").call(SUBMIT, "u", SubmitMessage(namespace="n", name="p", script="x"))


def test_a_reason_that_is_none_does_not_come_through() -> None:
    bad = {"reason": "rm -rf\n/", "message": "m" * 10_000, "hint": "h" * 10_000}
    with pytest.raises(SiteRefusedError) as caught:
        client(json.dumps({"v": 1, "error": bad}).encode()).call(DESCRIBE, "", Empty())
    assert caught.value.reason == "SiteRefused"
    assert len(str(caught.value)) == len(caught.value.hint) == 4096


def recording(request: str) -> tuple[FakeLink, list[dict[str, Any]]]:
    """Return a link with a site that answers this request, and the requests that it gets."""
    link, asked = FakeLink(), list[dict[str, Any]]()

    def handle(_subject: str, data: bytes, respond: Any) -> None:
        asked.append(json.loads(data))
        respond(b'{"v":1}')

    link.subscribe(f"bridge.v1.alpha.{request}.c1.*", handle)
    return link, asked


def test_the_deadline_is_the_time_until_which_the_answer_is_waited_for() -> None:
    link, asked = recording("status")
    clock = FakeClock(1000.0)
    client: Any = PoolClient(link, "bridge.v1", "alpha", OWNER, clock)  # type: ignore[arg-type]
    client.call(STATUS, "uid-1", Empty(), timeout=7)
    assert math.isclose(asked[0]["deadline"], 1007.0)
    assert (asked[0]["v"], asked[0]["pool"], asked[0]["job"]) == (1, "alpha", "uid-1")


def test_a_log_that_is_refused_leaves_nothing_behind() -> None:
    link = answering(b'{"v":1,"error":{"reason":"NotFound","message":"no"}}')
    before = len(link.subscriptions)
    with pytest.raises(SiteRefusedError):
        PoolClient(link, "bridge.v1", "alpha", OWNER).logs("u", LogOptions(container="c"))  # type: ignore[arg-type]
    assert len(link.subscriptions) == before


def test_each_log_has_a_stream_of_its_own() -> None:
    link, asked = recording("logs")
    for _ in range(2):
        PoolClient(link, "bridge.v1", "alpha", OWNER).logs("u", LogOptions(container="c", tail=3)).close()  # type: ignore[arg-type]
    one, two = (request["body"] for request in asked)
    assert one["stream"] != two["stream"]
    assert (one["container"], one["tail"]) == ("c", 3)
