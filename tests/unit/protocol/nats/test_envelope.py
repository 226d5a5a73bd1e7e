import contextlib
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.nats import envelope
from bridge.protocol.nats.envelope import GarbledError, pack, pack_chunk, parse, parse_body, parse_chunk, unpack
from bridge.protocol.nats.messages import (
    Announce,
    Event,
    Reply,
    Request,
    SnapshotPage,
    Status,
    StreamHead,
    SubmitMessage,
)
from tests.examples import json_values

KINDS = (Request, Reply, Announce, Event, SnapshotPage, StreamHead)
JSON = json_values(st.sampled_from(["v", "pool", "job", "body", "jobs"]) | st.text(), st.text())


def test_small_messages_are_json_and_large_ones_compressed() -> None:
    small = pack(Request(pool="alpha", owner="c1", deadline=1.0))
    assert json.loads(small)["pool"] == "alpha"
    large = Request(pool="alpha", owner="c1", deadline=1.0, body={"script": "x" * 100_000})
    data = pack(large)
    assert data[0] == 0x78
    assert len(data) < 1000
    assert parse(Request, data) == large


@given(st.binary(max_size=2000))
def test_garbage_is_nothing_but_garbled(data: bytes) -> None:
    for raw in (data, b"{" + data, b"\x78\x9c" + data, zlib.compress(data), zlib.compress(b"{" + data)):
        for kind in KINDS:
            with contextlib.suppress(GarbledError):
                parse(kind, raw)
        with contextlib.suppress(GarbledError):
            parse_chunk(StreamHead, raw)


@given(JSON)
def test_json_of_any_shape_is_a_message_or_garbled(value: object) -> None:
    data = json.dumps(value).encode()
    for kind in KINDS:
        with contextlib.suppress(GarbledError):
            parse(kind, data)
        with contextlib.suppress(GarbledError):
            parse_body(kind, value)


def test_a_bomb_is_refused_without_being_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MOST", 100_000)
    assert len(unpack(zlib.compress(b"{" + b" " * 99_999))) == 100_000
    for size in (100_000, 50_000_000):
        with pytest.raises(GarbledError, match="more than"):
            unpack(zlib.compress(b"{" + b" " * size))
    with pytest.raises(GarbledError):
        pack(SubmitMessage(namespace="n", name="p", script="x" * 200_000))


def test_what_is_cut_off_is_garbled() -> None:
    data = zlib.compress(b'{"v":1}')
    for length in range(len(data)):
        with pytest.raises(GarbledError):
            unpack(data[:length])


def test_deep_nesting_is_garbled() -> None:
    for data in (
        b'{"body":' * 100_000,
        b'{"pool":"a","deadline":1,"body":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ):
        with pytest.raises(GarbledError):
            parse(Request, data)


def test_text_that_is_no_unicode_is_refused_when_written() -> None:
    with pytest.raises(GarbledError):
        pack(SubmitMessage(namespace="n", name="p", script="\ud800"))
    with pytest.raises(GarbledError):
        pack(Request(pool="a", owner="c1", deadline=1, body={"x": "\udfff"}))


def test_the_error_names_fields_but_no_values() -> None:
    with pytest.raises(GarbledError) as caught:
        parse_body(SubmitMessage, {"namespace": "hunter2", "name": ["hunter2"], "cpus": "hunter2"})
    text = str(caught.value)
    assert "name:" in text
    assert "cpus:" in text
    assert "script: Field required" in text
    assert "hunter2" not in text


def test_many_errors_are_told_in_short() -> None:
    with pytest.raises(GarbledError) as caught:
        parse_body(SnapshotPage, {"submitter": "s", "sequence": 1, "jobs": [{}] * 1000})
    assert len(str(caught.value)) < 300


def test_another_version_is_named() -> None:
    with pytest.raises(GarbledError, match="unsupported version"):
        parse(Reply, b'{"v":2}')


def test_unknown_keys_are_ignored() -> None:
    assert parse(Reply, b'{"v":1,"body":{},"new":{"x":1}}') == Reply()


@given(st.binary(max_size=500), st.integers(0, 10**6), st.booleans(), st.text(alphabet='ab\n\r"\\é', max_size=20))
def test_chunks_come_back(data: bytes, number: int, end: bool, error: str) -> None:
    head = StreamHead(number=number, end=end, error=error)
    assert parse_chunk(StreamHead, pack_chunk(head, data)) == (head, data)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("", "p"), ("ns", ""), ("../x", "p"), ("n/s", "p"), ("ns", "p/../q"), ("Ns", "p"), ("ns", "a" * 254)],
)
def test_a_status_names_a_pod_as_kubernetes_does(namespace: str, name: str) -> None:
    told = {"job": "u-1", "namespace": namespace, "name": name, "phase": "running"}
    with pytest.raises(GarbledError, match=r"namespace|name"):
        parse_body(Status, {"status": told})
    fine = parse_body(Status, {"status": {**told, "namespace": "ns", "name": "a.pod-1"}}).status
    assert fine is not None and fine.name == "a.pod-1"


def test_a_sender_may_have_a_lower_limit() -> None:
    reply = Reply(body={"x": "y" * 1000})
    size = len(reply.model_dump_json())
    assert parse(Reply, pack(reply, size)) == reply
    with pytest.raises(GarbledError, match=f"the limit is {size - 1}"):
        pack(reply, size - 1)
