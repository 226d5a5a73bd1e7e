import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.interlink.log_options import received_options, sent_options
from bridge.interlink.messages import LogStruct
from bridge.protocol.model.requests import LogOptions

POD = {"metadata": {"namespace": "ns", "name": "p", "uid": "7b1f0c1e-3c9a-4a0e-9d5b-0f6a3f0a2b11"}}
NOW = 1_790_000_000.0


def told(**opts):
    return LogStruct.model_validate(
        {"Namespace": "ns", "PodUID": POD["metadata"]["uid"], "PodName": "p", "ContainerName": "c", "Opts": opts}
    )


@given(
    follow=st.booleans(),
    timestamps=st.booleans(),
    previous=st.booleans(),
    tail=st.none() | st.integers(1, 10**9),
    limit=st.none() | st.integers(1, 10**9),
    since=st.none() | st.integers(1, 2**31),
)
def test_options_survive_the_wire(follow, timestamps, previous, tail, limit, since):
    options = LogOptions(
        container="c",
        follow=follow,
        timestamps=timestamps,
        previous=previous,
        tail=tail,
        limit_bytes=None if tail else limit,
        since=since,
    )
    wire = sent_options(POD, options, NOW).model_dump_json(by_alias=True)
    assert received_options(LogStruct.model_validate_json(wire), NOW) == options


def test_a_limit_of_bytes_is_not_sent_with_a_tail():
    sent = sent_options(POD, LogOptions(container="c", tail=3, limit_bytes=9), NOW)
    assert (sent.opts.tail, sent.opts.limit_bytes) == (3, 0)


def test_a_tail_of_no_lines_is_sent_as_a_time():
    sent = sent_options(POD, LogOptions(container="c", tail=0), NOW)
    assert (sent.opts.tail, received_options(sent, NOW).since) == (0, NOW)


def test_unset_options():
    assert received_options(told(), NOW) == LogOptions(container="c")
    assert received_options(told(SinceTime="0001-01-01T00:00:00Z", Tail=0, Bytes=0), NOW) == LogOptions(container="c")
    assert received_options(told(Tail=None, Follow=None, SinceTime=None), NOW) == LogOptions(container="c")


def test_seconds_are_relative_to_now():
    assert received_options(told(SinceSeconds=60), NOW).since == NOW - 60


@pytest.mark.parametrize(
    ("opts", "field"),
    [
        ({"Tail": 1, "Bytes": 1}, "Opts.Tail"),
        ({"SinceSeconds": 1, "SinceTime": "2026-01-01T00:00:00Z"}, "Opts.SinceSeconds"),
        ({"SinceTime": "yesterday"}, "Opts.SinceTime"),
    ],
)
def test_options_that_are_refused_by_name(opts, field):
    with pytest.raises(ValueError, match=field):
        received_options(told(**opts), NOW)
