"""The conversation of a client that runs a command over a WebSocket: ``v4.channel.k8s.io`` and ``v5``."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from werkzeug.datastructures import Headers

from bridge.protocol.model.sessions import STDERR, STDOUT, Exit, Output
from bridge.serving.http_error import AnswerError
from bridge.serving.spdy import Data, Open
from bridge.serving.upgrade import Duplex, ProtocolViolationError
from bridge.serving.websocket_connection import V4, V5, command_connection, handshake
from cluster.polling import eventually
from tests.fakes.command_conversation import CommandConversation
from tests.fakes.websocket_client import WebSocketClient

ALL = frozenset({"error", "stdin", "stdout", "stderr"})
TERMINAL = frozenset({"error", "stdin", "stdout", "resize"})
ASKED = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}


class Conversation(CommandConversation[WebSocketClient]):
    def __init__(self, streams: frozenset[str], protocol: str) -> None:
        super().__init__(WebSocketClient, lambda duplex: command_connection(duplex, streams, protocol), streams)


@pytest.fixture
def converse() -> Iterator[Callable[..., Conversation]]:
    made: list[Conversation] = []

    def start(streams: frozenset[str] = ALL, protocol: str = V4) -> Conversation:
        made.append(Conversation(streams, protocol))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_output_and_the_exit_code_arrive_before_the_end(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    large = bytes(range(256)) * 1000
    for news in (Output(STDOUT, b"out"), Output(STDERR, b"err"), Output(STDOUT, large), Exit(3)):
        talk.session.news.put(news)
    assert talk.client.status(3)["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert (talk.client.content[1], talk.client.content[2]) == (b"out" + large, b"err")
    assert talk.client.closed == 1000
    assert talk.thread.is_alive(), "the client closes: it may not have received all yet"
    talk.client.send_frame(Opcode.CLOSE, (1000).to_bytes(2, "big"))
    talk.thread.join(10)
    assert talk.end == "3"


def test_input_as_bytes_text_and_fragments(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    talk.client.send(0, b"bytes,")
    talk.client.send_frame(Opcode.TEXT, b"\0text,")
    talk.client.send_frame(Opcode.BINARY, b"\0fr", fin=False)
    talk.client.send_frame(Opcode.CONT, b"ag", fin=False)
    talk.client.ping(1)
    talk.client.send_frame(Opcode.CONT, b"ments")
    talk.client.send_frame(Opcode.BINARY, b"")
    talk.client.send(9, b"a stream that does not exist")
    talk.client.send(1, b"output is not input")
    eventually(lambda: talk.session.input == b"bytes,text,fragments")
    talk.client.read_until(lambda: talk.client.pongs == [1])


@pytest.mark.parametrize("protocol", [V4, V5])
def test_only_v5_can_end_the_input(converse: Callable[..., Conversation], protocol: str) -> None:
    talk = converse(protocol=protocol)
    talk.client.send(0, b"all", end=True)
    talk.client.send(0, b"!")
    eventually(lambda: talk.session.input == b"all!")
    assert talk.session.input_ended == (protocol == V5)


def test_sizes_of_the_terminal(converse: Callable[..., Conversation]) -> None:
    talk = converse(TERMINAL)
    talk.client.send(4, b'{"Width":80,"Height":24}\n')
    eventually(lambda: talk.session.sizes == [(80, 24)])
    talk.session.news.put(Output(STDERR, b"a terminal has none"))
    talk.session.news.put(Exit(0))
    assert talk.client.status(3)["status"] == "Success"
    assert set(talk.client.content) == {1, 3}


@pytest.mark.parametrize("how", ["disconnects", "closes"])
def test_a_client_that_leaves_ends_the_session(converse: Callable[..., Conversation], how: str) -> None:
    talk = converse()
    talk.client.open("stdout")
    talk.client.sock.close() if how == "disconnects" else talk.client.send_frame(Opcode.CLOSE, b"")
    talk.thread.join(10)
    assert talk.end.startswith("the client disconnected")


def test_an_input_that_was_not_masked_or_is_too_large_ends_the_session(converse: Callable[..., Conversation]) -> None:
    talk = converse()
    talk.client.sock.sendall(Frame(Opcode.BINARY, b"\0x").serialize(mask=False))
    talk.client.read_until(lambda: talk.client.closed == 1002)
    talk.thread.join(10)
    assert talk.end == "the client violated the protocol: incorrect masking"
    talk = converse()
    with suppress(OSError):
        talk.client.send(0, bytes(2**20))
    talk.client.read_until(lambda: talk.client.closed == 1009)
    talk.thread.join(10)
    assert talk.session.input == b""


def test_the_handshake() -> None:
    assert handshake(Headers(ASKED), (V5, V4)) == {
        "Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",  # RFC 6455, section 1.3
        "Sec-WebSocket-Protocol": V4,
    }
    both = Headers([*ASKED.items(), ("Sec-WebSocket-Protocol", "x, v5.channel.k8s.io")])
    assert handshake(both, (V5, V4))["Sec-WebSocket-Protocol"] == V5


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"Sec-WebSocket-Version": "8"}, 400, "must be 13"),
        ({"Sec-WebSocket-Key": ""}, 400, "16 bytes"),
        ({"Sec-WebSocket-Key": base64.b64encode(bytes(15)).decode()}, 400, "16 bytes"),
        ({"Sec-WebSocket-Key": "é"}, 400, "16 bytes"),
        ({"Sec-WebSocket-Protocol": "channel.k8s.io"}, 403, "client supports channel.k8s.io, server accepts v5"),
        ({"Sec-WebSocket-Protocol": ""}, 403, "client supports none"),
    ],
)
def test_other_handshakes_are_refused(changes: dict[str, str], status: int, words: str) -> None:
    with pytest.raises(AnswerError, match=words) as error:
        handshake(Headers({**ASKED, **changes}), (V5, V4))
    assert error.value.status == status


def frames_of(sent: bytes, protocol: str = V5) -> list[object]:
    """Return what a connection yields for bytes that its client sends before it disconnects."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        return list(command_connection(Duplex(ours, b"", 5.0), ALL, protocol).frames())


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(sent: bytes) -> None:
    with suppress(ProtocolViolationError):
        assert all(isinstance(frame, Open | Data) for frame in frames_of(sent))


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=8))
def test_messages_arrive_whole_and_in_their_order(messages: list[tuple[int, bytes]]) -> None:
    sent = b"".join(Frame(Opcode.BINARY, bytes([n]) + data).serialize(mask=True) for n, data in messages)
    found = [frame for frame in frames_of(sent, V4) if isinstance(frame, Data)]
    assert found == [Data(number, data, end=False) for number, data in messages if number < 4 and data]
