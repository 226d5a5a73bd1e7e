from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.link import decode, encode
from bridge.slurm.models import JobLink, PodRef

WORD = st.text(min_size=1, max_size=20)
LINKS = st.builds(JobLink, WORD, st.lists(st.builds(PodRef, WORD, WORD, WORD), min_size=1, max_size=4).map(tuple))


@given(LINKS)
def test_what_is_written_is_read(link: JobLink) -> None:
    assert decode(encode(link)) == link
    assert "\n" not in encode(link)


def test_the_form_on_the_wire() -> None:
    text = encode(JobLink("c", (PodRef("ns", "p", "u"),)))
    assert text == '{"cluster":"c","pods":[{"namespace":"ns","name":"p","uid":"u"}]}'


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
        '{"cluster":"c","pods":[]}',
        '{"cluster":"c","pods":["ns/name"]}',
        '{"cluster":"c","pods":{"uid":"u"}}',
        '{"cluster":1,"pods":[{"namespace":"n","name":"p","uid":"u"}]}',
        '{"cluster":"c","pods":[{"namespace":"n","name":"p","uid":""}]}',
        '{"cluster":"c","pods":[{"namespace":"n","name":"p"}]}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_somebody_elses_comment(text: str) -> None:
    assert decode(text) is None


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_any_json_is_survived(value: object) -> None:
    assert decode(json.dumps(value)) is None
