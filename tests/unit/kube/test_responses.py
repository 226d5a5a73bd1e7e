"""Answers that users have written a part of: objects that are nested deeper than a parser can follow."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.kube import responses, streams
from bridge.kube.responses import DEEPEST, decode
from tests.fakes.cache_suite import Running
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeApi, Handler, Request

LEVELS = (DEEPEST, 500, 1100, 9990)
"""Python 3.11 reads 1,000 levels less its own frames, the API server accepts 10,000."""


def deep(levels: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    nested = opening * levels + "1" + closing * levels
    metadata = '{"namespace":"ns","name":"deep","uid":"d","resourceVersion":"7"}'
    return f'{{"metadata":{metadata},"spec":{{"parameters":{nested},"after":"}}]\\\\"}}}}'.encode()


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]"), ('{"]\\"}":[', "]}")])
def test_the_rest_of_a_deep_object_is_read(levels: int, opening: str, closing: str) -> None:
    found = decode(deep(levels, opening, closing))
    assert found["metadata"]["name"] == "deep"
    assert found["spec"]["after"] == "}]\\"


def cut(value: Any, levels: int) -> Any:
    if isinstance(value, dict):
        return {key: cut(each, levels - 1) for key, each in value.items()} if levels else None
    if isinstance(value, list):
        return [cut(each, levels - 1) for each in value] if levels else None
    return value


TEXT = st.text(st.sampled_from('a"\\[]{}\n'))
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(JSON)
def test_what_is_too_deep_is_null(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "DEEPEST", 2)
        assert json.loads(responses._without_depths(json.dumps(value).encode())) == cut(value, 2)


@given(st.binary(max_size=50).map(lambda content: content.replace(b"a", b'"').replace(b"b", b"[")))
def test_what_is_no_json_is_a_value_error(content: bytes) -> None:
    try:
        decode(content)
    except ValueError:
        return


@pytest.mark.parametrize("levels", LEVELS)
def test_a_watch_goes_on_after_a_deep_object(levels: int) -> None:
    pieces = [b'{"type":"ADDED","object":' + deep(levels) + b"}\n", b""]
    response: Any = SimpleNamespace(read1=lambda _: pieces.pop(0))
    (event,) = streams.events("WATCH", response, 1.0, FakeClock())
    assert event["object"]["metadata"]["name"] == "deep"


def test_a_deep_object_keeps_no_cache_from_the_objects_of_others(api: FakeApi, client: Any) -> None:
    other = b'{"metadata":{"namespace":"ns","name":"other","uid":"o","resourceVersion":"8"},"spec":{}}'

    def answer(handler: Handler, request: Request) -> bool:
        if request.watch or "limit" not in request.query:
            return False
        handler.answer(200, b'{"metadata":{"resourceVersion":"9"},"items":[' + deep(1100) + b"," + other + b"]}")
        return True

    api.faults.append(answer)
    with Running(client, "ns") as running:
        assert running.cache.wait_synced(5)
        assert {item["metadata"]["name"] for item in running.cache.items()} == {"deep", "other"}
