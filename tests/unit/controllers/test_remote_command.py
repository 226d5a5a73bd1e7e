"""The conversation of one ``kubectl exec``: a client of SPDY on one side, a session in memory on the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SiteUnknownOutcomeError
from bridge.protocol.model.sessions import STDERR, STDOUT, Exit, Output
from bridge.serving.spdy_connection import SpdyConnection
from cluster.polling import eventually
from controllers.kubelet import remote_command
from controllers.kubelet.remote_command import terminal_sizes
from tests.fakes.command_conversation import CommandConversation
from tests.fakes.spdy_client import SpdyClient

ALL = frozenset({"error", "stdin", "stdout", "stderr"})
TERMINAL = frozenset({"error", "stdin", "stdout", "resize"})


class Conversation(CommandConversation[SpdyClient]):
    def __init__(self, streams: frozenset[str] = ALL) -> None:
        super().__init__(SpdyClient, SpdyConnection, streams)


@pytest.fixture
def converse() -> Iterator[Callable[..., Conversation]]:
    made: list[Conversation] = []

    def start(*args: Any) -> Conversation:
        made.append(Conversation(*args))
        return made[-1]

    yield start
    for each in made:
        each.close()


def opened(talk: Conversation, *kinds: str) -> list[int]:
    return [talk.client.open(kind) for kind in kinds]


def test_output_and_success(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, stdin, stdout, stderr = opened(talk, "error", "stdin", "stdout", "stderr")
    large = bytes(range(256)) * 1000
    for news in (Output(STDOUT, b"out"), Output(STDERR, b"err"), Output(STDOUT, large), Exit(0)):
        talk.session.news.put(news)
    assert talk.client.status(error) == {"metadata": {}, "status": "Success"}
    assert talk.client.content[stdout] == b"out" + large
    assert talk.client.content[stderr] == b"err"
    assert {stdin, stdout, stderr} <= talk.client.ended
    assert talk.client.read_frame() and talk.client.went_away == 0
    assert not talk.client.read_frame()
    # closing first would reset the connection of a client that has not received all yet
    talk.client.ping(1)
    talk.client.send(stdin, b"late", end=True)
    eventually(lambda: talk.session.input_ended)
    assert talk.thread.is_alive()
    talk.client.sock.close()
    talk.thread.join(10)
    assert (talk.end, talk.bytes_out) == ("0", 6 + len(large))


@pytest.mark.parametrize(("code", "shown"), [(3, "3"), (143, "143"), (256, "255"), (-1, "255")])
def test_an_exit_code_is_a_cause_of_the_status(converse: Callable[..., Conversation], code: int, shown: str) -> None:
    talk = converse()
    error, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.news.put(Exit(code))
    status = talk.client.status(error)
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": shown}]


def test_input_and_its_end(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, stdin, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.client.send(stdin, b"abc")
    talk.client.send(stdin, b"def", end=True)
    eventually(lambda: talk.session.input_ended)
    assert (talk.session.input, talk.bytes_in) == (b"abcdef", 6)
    talk.session.news.put(Exit(0))
    assert talk.client.status(error)["status"] == "Success"


def test_pings_are_answered(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    talk.client.ping(7)
    talk.client.read_until(lambda: talk.client.pongs == [7])


def test_sizes_of_the_terminal(converse: Callable[..., Conversation]) -> None:
    talk = converse(TERMINAL)
    *_, resize = opened(talk, "error", "stdin", "stdout", "resize")
    talk.client.send(resize, b'{"Width":80,"Hei')
    talk.client.send(resize, b'ght":24}\n{"Width":0,"Height":1}\nnonsense\n[]\n{"Width":132,"Height":50}\n')
    eventually(lambda: talk.session.sizes == [(80, 24), (132, 50)])


@given(st.binary(max_size=2000))
def test_any_sizes_are_read_or_ignored(text: bytes) -> None:
    sizes, rest = terminal_sizes(text)
    assert all(0 < number < 2**16 for size in sizes for number in size)
    assert len(rest) <= 1024


def test_streams_that_were_not_asked_for_are_refused(converse: Callable[..., Conversation]) -> None:
    talk = converse(frozenset({"error", "stdout"}))
    error, stdin, stdout, again = opened(talk, "error", "stdin", "stdout", "stdout")
    assert talk.client.reset == {stdin, again}
    for news in (Output(STDERR, b"nobody asked"), Output(STDOUT, b"out"), Exit(0)):
        talk.session.news.put(news)
    assert talk.client.status(error)["status"] == "Success"
    assert talk.client.content[stdout] == b"out"


def test_an_error_of_the_site_is_told(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.news.put(Output(STDOUT, b"begin"))
    talk.session.news.put(SiteUnknownOutcomeError("the site is silent"))
    status = talk.client.status(error)
    assert (status["status"], status["reason"], status["code"]) == ("Failure", "InternalError", 500)
    assert "the site is silent" in status["message"]


def test_input_that_the_site_does_not_take_ends_the_session(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, stdin, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.problem = SiteUnknownOutcomeError("the site is silent")
    talk.client.send(stdin, b"abc")
    assert talk.client.status(error)["status"] == "Failure"


def test_a_client_that_disconnects_ends_the_session(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    opened(talk, "error", "stdin", "stdout", "stderr")
    talk.client.sock.close()
    eventually(lambda: talk.session.closed)
    talk.thread.join(10)
    assert talk.end.startswith("the client disconnected")


def test_a_client_that_violates_the_protocol_is_told_and_ends_the_session(
    converse: Callable[..., Conversation],
) -> None:
    talk = converse()
    opened(talk, "error", "stdin", "stdout", "stderr")
    talk.client.send(99, b"x")
    talk.client.read_until(lambda: talk.client.went_away == 1)
    talk.thread.join(10)
    assert talk.end == "the client violated the protocol: data for stream 99, which is not open"


def test_a_client_that_opens_no_streams(converse: Callable[..., Conversation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_command, "OPEN_TIMEOUT", 0.1)
    talk = converse()
    opened(talk, "error", "stdin")
    talk.thread.join(10)
    assert talk.end == "the client opened no streams"


def test_the_exit_code_arrives_although_the_client_still_sends(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, stdin, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.news.put(Output(STDOUT, bytes(300_000)))
    talk.session.news.put(Exit(7))
    for _ in range(20):
        talk.client.send(stdin, bytes(10_000))
    assert talk.client.status(error)["details"]["causes"][0]["message"] == "7"


def test_a_client_that_does_not_receive_can_send(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    error, stdin, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.news.put(Output(STDOUT, bytes(4 * 2**20)))  # more than the buffers of the socket
    for number in (1, 3, 5):
        talk.client.ping(number)
        time.sleep(0.02)
        talk.client.send(stdin, b"\x03")
    eventually(lambda: talk.session.input == b"\x03" * 3)
    talk.session.news.put(Exit(0))
    assert talk.client.status(error)["status"] == "Success"
    assert talk.client.pongs == [1, 3, 5]


def test_too_many_pings_without_receiving_an_answer(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    _, stdin, *_ = opened(talk, "error", "stdin", "stdout", "stderr")
    talk.session.news.put(Output(STDOUT, bytes(4 * 2**20)))
    talk.client.send(stdin, b"x")
    eventually(lambda: talk.session.input == b"x")
    for number in range(1, 2000, 2):  # at first, the output still fits into the socket
        if not talk.thread.is_alive():
            break
        with suppress(OSError):
            talk.client.ping(number)
        talk.thread.join(0.01)
    assert talk.end == "the client violated the protocol: too many pings"
