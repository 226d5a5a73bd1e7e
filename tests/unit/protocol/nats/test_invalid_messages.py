"""Messages of a hostile site: a few kB that become millions of values must cost the hub little."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from bridge.protocol.model.jobs import MOST_CONTAINERS, MOST_OCCURRENCES, JobStatus, JobUsage
from bridge.protocol.nats import envelope
from bridge.protocol.nats.envelope import MOST_PROBLEMS, GarbledError, parse, parse_body
from bridge.protocol.nats.messages import Announce, Event, Reply, SnapshotPage, UsageAnswer

JOB = {"job": "u", "namespace": "n", "name": "p", "phase": "queued"}
PAGE: dict[str, Any] = {"submitter": "s", "sequence": 1}
MANY = 20_000


def event(**status: Any) -> dict[str, Any]:
    return {"pool": "a", "submitter": "s", "sequence": 1, "status": {**JOB, **status}}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (SnapshotPage, lambda: {**PAGE, "jobs": [{}] * MANY}),
        (SnapshotPage, lambda: {**PAGE, "jobs": [{"job": "u", "containers": [{}] * MANY}, 0]}),
        (Event, lambda: event(containers=[{}] * MANY)),
        (Event, lambda: event(init_containers=[0] * MANY)),
        (Event, lambda: event(containers=[{"name": "c", "occurrences": [{}] * MANY}])),
        (UsageAnswer, lambda: {"jobs": [{}] * MANY}),
        (UsageAnswer, lambda: {"jobs": [{"job": "u", "at": 0, "containers": [{}] * MANY}]}),
    ],
)
def test_the_first_invalid_element_of_a_list_ends_its_validation(
    kind: Any, body: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    explain = envelope.explain
    monkeypatch.setattr(envelope, "explain", lambda error: counts.append(error.error_count()) or explain(error))
    with pytest.raises(GarbledError):
        parse_body(kind, body())
    assert counts[0] < 10


def test_the_invalid_fields_of_a_message_are_not_listed_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = b",".join(b'"%d":0' % number for number in range(MOST_PROBLEMS + 1))
    with pytest.raises(GarbledError, match=f"Announce: {MOST_PROBLEMS + 6} invalid fields"):
        parse(Announce, zlib.compress(b'{"labels":{' + labels + b"}}"))


@pytest.mark.parametrize("length", [4999, 5000, 5001])
def test_a_page_has_a_limited_number_of_jobs(length: int) -> None:
    body = {**PAGE, "jobs": [JOB] * length}
    if length <= 5000:
        assert len(parse_body(SnapshotPage, body).jobs) == length
        return
    with pytest.raises(GarbledError, match="at most 5000"):
        parse_body(SnapshotPage, body)


def test_what_is_cut_off_is_not_validated() -> None:
    occurrences = [{"reason": "Unhealthy"}] * MOST_OCCURRENCES + [{}] * 9
    containers = [{"name": "c", "occurrences": occurrences}] * MOST_CONTAINERS + [{}] * 9
    job = {**JOB, "containers": containers, "init_containers": containers}
    text = b'{"body":{"status":' + TypeAdapter(Any).dump_json(job) + b"}}"
    for status in (TypeAdapter(JobStatus).validate_python(parse(Reply, text).body["status"]),):
        assert len(status.containers) == len(status.init_containers) == MOST_CONTAINERS
        assert len(status.containers[0].occurrences) == MOST_OCCURRENCES
    use = {"name": "c", "restarts": 0, "cpu": 1, "memory": 1}
    usage = TypeAdapter(JobUsage).validate_python({"job": "u", "at": 1, "containers": [use] * MOST_CONTAINERS + [{}]})
    assert len(usage.containers) == MOST_CONTAINERS
    parsed = TypeAdapter(JobStatus).validate_json(TypeAdapter(Any).dump_json(job))
    assert parsed == status
