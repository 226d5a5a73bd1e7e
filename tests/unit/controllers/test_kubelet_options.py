from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.model.requests import LogOptions
from bridge.serving.http_error import AnswerError
from controllers.kubelet.handlers import log_options

NOW = 1_700_000_000.0


def read(**query: str) -> LogOptions:
    return log_options({name: [value] for name, value in query.items()}, "main", NOW)


def refused(**query: str) -> AnswerError:
    with pytest.raises(AnswerError) as caught:
        read(**query)
    return caught.value


def test_nothing_asked_is_the_whole_log() -> None:
    options = read()
    assert (options.container, options.follow, options.tail, options.since) == ("main", False, None, None)
    assert (options.timestamps, options.limit_bytes, options.previous) == (False, None, False)


def test_all_of_it() -> None:
    options = read(
        follow="true", tailLines="3", sinceSeconds="60", timestamps="true", limitBytes="10", previous="1", stream="All"
    )
    assert (options.follow, options.tail, options.since) == (True, 3, NOW - 60)
    assert (options.timestamps, options.limit_bytes, options.previous) == (True, 10, True)


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("2023-11-14T22:13:20.5Z", NOW + 0.5),
        ("", None),
        ("null", None),
    ],
)
def test_since_time(text: str, since: float | None) -> None:
    assert read(sinceTime=text).since == since


@pytest.mark.parametrize(
    ("text", "meant"), [("", True), ("true", True), ("yes", True), ("false", False), ("False", False), ("0", False)]
)
def test_flags_are_read_as_kubernetes_does(text: str, meant: bool) -> None:
    assert read(follow=text).follow is meant


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ({"tailLines": "-1"}, 422, "tailLines"),
        ({"limitBytes": "0"}, 422, "limitBytes"),
        ({"sinceSeconds": "0"}, 422, "sinceSeconds"),
        ({"sinceSeconds": "1", "sinceTime": "2023-11-14T22:13:20Z"}, 422, "at most one"),
        ({"tailLines": "many"}, 400, "tailLines"),
        ({"tailLines": ""}, 400, "tailLines"),
        ({"limitBytes": "9223372036854775808"}, 400, "limitBytes"),
        ({"sinceTime": "yesterday"}, 400, "sinceTime"),
        ({"sinceTime": "2023-11-14"}, 400, "sinceTime"),
        ({"sinceTime": "2023-11-14T22:13:20"}, 400, "sinceTime"),
        ({"stream": "Stdout"}, 400, "one log"),
        ({"stream": "Stderr"}, 400, "one log"),
        ({"stream": "other"}, 422, "stream"),
    ],
)
def test_what_is_refused_is_named(query: dict[str, str], status: int, word: str) -> None:
    error = refused(**query)
    assert error.status == status
    assert word in error.text


def test_the_old_name_of_tail_lines() -> None:
    assert read(tail="5").tail == 5
    assert read(tail="all").tail is None
    assert read(tail="5", tailLines="2").tail == 2


NAMES = ["follow", "tailLines", "tail", "sinceSeconds", "sinceTime", "timestamps", "limitBytes", "previous", "stream"]


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=30)))
def test_any_query_is_read_or_refused(query: dict[str, str]) -> None:
    try:
        options = read(**query)
    except AnswerError as error:
        assert error.status in (400, 422)
    else:
        assert options.tail is None or options.tail >= 0
        assert options.limit_bytes is None or options.limit_bytes >= 1


@given(st.integers(-(10**20), 10**20))
def test_numbers_are_taken_as_they_are(number: int) -> None:
    try:
        assert read(tailLines=str(number)).tail == number
    except AnswerError as error:
        assert number < 0 or number > 2**63 - 1
        assert error.status == (422 if -(2**63) < number < 0 else 400)
