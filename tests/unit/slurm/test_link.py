import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.link import decode, encode
from bridge.slurm.models import GroupRef, JobLink, PodRef

WORD = st.text(min_size=1, max_size=20)
LINKS = st.builds(JobLink, WORD, st.lists(st.builds(PodRef, WORD, WORD, WORD), min_size=1, max_size=4).map(tuple))


GROUP_TEXT = (
    '{"cluster":"c","group":{"kind":"kueue","namespace":"n","name":"g","uid":"","index":""},'
    '"size":2,"together":1,"shape":"s",%s}'
)
GROUPS = st.builds(
    JobLink,
    WORD,
    st.just(()),
    st.builds(GroupRef, WORD, WORD, WORD, st.text(max_size=9), st.text(max_size=9)),
    st.integers(1, 100_000),
    st.text(max_size=9),
    st.integers(0, 5),
    st.integers(6, 9),
)


@given(GROUPS)
def test_the_comment_of_a_component_is_read(link: JobLink) -> None:
    found = decode(encode(link))
    assert found == link
    assert found is not None
    assert (found.shape, found.part, found.parts) == (link.shape, link.part, link.parts)
    counted = replace(link, members=3)
    assert (decode(encode(counted)) or link).members == 3


@given(LINKS)
def test_what_is_written_is_read(link: JobLink) -> None:
    assert decode(encode(link)) == link
    assert "\n" not in encode(link)


def test_the_form_on_the_wire() -> None:
    text = encode(JobLink("c", (PodRef("ns", "p", "u"),), shape="s"))
    assert text == '{"cluster":"c","pods":[{"namespace":"ns","name":"p","uid":"u"}],"shape":"s"}'
    assert decode(GROUP_TEXT % '"part":0,"parts":2,"members":1') is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "{",
        "[]",
        "{}",
        "null",
        '{"pods":["ns/name"]}',
        '{"cluster":"c","pods":[],"shape":"s"}',
        '{"cluster":"c","pods":["ns/name"],"shape":"s"}',
        '{"cluster":"c","pods":{"uid":"u"},"shape":"s"}',
        '{"cluster":1,"pods":[{"namespace":"n","name":"p","uid":"u"}],"shape":"s"}',
        '{"cluster":"c","pods":[{"namespace":"n","name":"p","uid":""}],"shape":"s"}',
        '{"cluster":"c","pods":[{"namespace":"n","name":"p"}],"shape":"s"}',
        GROUP_TEXT % '"part":2,"parts":2,"members":1',
        GROUP_TEXT % '"part":-1,"parts":2,"members":1',
        GROUP_TEXT % '"part":"0","parts":2,"members":1',
        GROUP_TEXT % '"part":0,"parts":true,"members":1',
        GROUP_TEXT % '"part":0,"parts":2,"members":"1"',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_somebody_elses_comment(text: str) -> None:
    assert decode(text) is None


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_any_json_is_survived(value: object) -> None:
    assert decode(json.dumps(value)) is None


@pytest.mark.parametrize("field", [{"completed": 3}, {"shape": "abcd"}])
def test_a_field_that_is_not_the_identity_is_read_back(field: dict[str, Any]) -> None:
    link = JobLink("c", (), GroupRef("job", "ns", "n", "u"), 2)
    found = decode(encode(replace(link, **field)))
    assert found == link
    assert {name: getattr(found, name) for name in field} == field


def test_the_longest_comment_of_a_group_is_below_the_limit_of_slurm() -> None:
    uid = "0" * 36
    link = JobLink(uid, (), GroupRef("podgroup", "n" * 63, "m" * 253, uid, "i" * 63), 100_000, "f" * 16, 100_000)
    assert len(encode(link)) < 1024


@pytest.mark.parametrize(
    "change",
    [
        {"shape": 7},
        {"completed": -1},
        {"completed": "1"},
        {"size": 0},
        {"size": True},
        {"size": "2"},
        {"cluster": ""},
        {"group": {}},
    ],
)
def test_an_invalid_comment_of_a_group_is_not_ours(change: dict[str, object]) -> None:
    fields = {"kind": "job", "namespace": "ns", "name": "n", "uid": "u", "index": ""}
    valid = {"cluster": "c", "group": fields, "size": 2, "together": 1, "shape": "s"}
    assert decode(json.dumps(valid)) is not None
    assert decode(json.dumps(valid | change)) is None


@given(st.one_of(LINKS, GROUPS))
def test_a_trace_context_changes_neither_the_identity_nor_the_other_fields(link: JobLink) -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traced = encode(replace(link, traceparent=context))
    assert decode(traced) == link == replace(link, traceparent=context)
    fields = json.loads(traced)
    assert fields.pop("traceparent") == context
    assert fields == json.loads(encode(link))
