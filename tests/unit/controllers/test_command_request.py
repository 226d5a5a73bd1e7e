from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import Headers

from bridge.serving.http_error import AnswerError
from controllers.kubelet.command_request import command_request, requested_ports, stream_form

SPDY = {
    "Connection": "Upgrade",
    "Upgrade": "SPDY/3.1",
    "X-Stream-Protocol-Version": "v5.channel.k8s.io, v4.channel.k8s.io",
}


def test_the_names_of_the_kubelet_and_of_the_api_server() -> None:
    for query in (
        b"command=sh&command=-c&command=ls+%7C+wc&input=1&output=1&error=1",
        b"command=sh&command=-c&command=ls%20|%20wc&stdin=true&stdout=true&stderr=true",
    ):
        request = command_request(query, "main")
        assert request.options.command == ["sh", "-c", "ls | wc"]
        assert (request.options.container, request.options.stdin, request.options.tty) == ("main", True, False)
        assert request.streams == {"error", "stdin", "stdout", "stderr"}


def test_a_terminal_has_no_standard_error_and_a_size() -> None:
    request = command_request(b"command=sh&input=1&output=1&error=1&tty=1", "main")
    assert (request.options.tty, request.streams) == (True, {"error", "stdin", "stdout", "resize"})


def test_no_input_is_no_stream() -> None:
    request = command_request(b"command=ls&output=1&input=0&error=false", "main")
    assert (request.options.stdin, request.streams) == (False, {"error", "stdout"})


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_arguments_arrive_as_they_are(command: list[str]) -> None:
    query = urlencode([*(("command", each) for each in command), ("output", "1")]).encode()
    assert command_request(query, "main").options.command == command


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (b"output=1", "a command is required"),
        (b"command=ls", "at least 1 of stdin, stdout, stderr"),
        (b"command=sh&error=1&tty=1", "at least 1 of stdin, stdout, stderr"),
        (b"command=%ff&output=1", "UTF-8"),
        (b"command=a%00b&output=1", "null byte"),
    ],
)
def test_commands_that_cannot_run(query: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words) as error:
        command_request(query, "main")
    assert error.value.status == 400


@given(st.binary(max_size=200))
def test_any_query_is_refused_or_read(query: bytes) -> None:
    try:
        command_request(query + b"&output=1", "main")
    except AnswerError as error:
        assert error.status == 400


def test_spdy_with_a_form_that_is_known() -> None:
    assert stream_form("POST", Headers(SPDY)).headers == {"X-Stream-Protocol-Version": "v4.channel.k8s.io"}
    stream_form("POST", Headers({**SPDY, "Connection": "keep-alive, upgrade", "Upgrade": "spdy/3.1"}))


@pytest.mark.parametrize(
    ("method", "changes", "status", "words"),
    [
        ("GET", {}, 405, "POST"),
        ("GET", {"Upgrade": "websocket"}, 400, "Sec-WebSocket-Version"),
        ("POST", {"Upgrade": ""}, 400, "SPDY/3.1"),
        ("POST", {"Connection": "close"}, 400, "SPDY/3.1"),
        ("POST", {"X-Stream-Protocol-Version": ""}, 403, "client supports none"),
        ("POST", {"X-Stream-Protocol-Version": "channel.k8s.io, v2.channel.k8s.io"}, 403, "v2.channel.k8s.io, server"),
    ],
)
def test_other_requests_are_refused(method: str, changes: dict[str, str], status: int, words: str) -> None:
    with pytest.raises(AnswerError, match=words) as error:
        stream_form(method, Headers({**SPDY, **changes}))
    assert error.value.status == status


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        (["80"], (80,)),
        (["80,443", "1"], (80, 443, 1)),
        ([], "has 0 ports; allowed: 1 to 64"),
        (["80,"], "''"),
        (["http"], "'http': must be a number from 1 to 65535"),
        (["65536"], "'65536'"),
        ([",".join(["80"] * 65)], "has 65 ports; allowed: 1 to 64"),
    ],
)
def test_the_ports_of_a_websocket(values: list[str], ports: tuple[int, ...] | str) -> None:
    if isinstance(ports, tuple):
        assert requested_ports(values) == ports
        return
    with pytest.raises(AnswerError, match=ports) as error:
        requested_ports(values)
    assert error.value.status == 400
