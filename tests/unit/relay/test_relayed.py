"""One connection of a stream, whose other end sends what it wants."""

from __future__ import annotations

import sys
import threading

import pytest

from bridge.errors import SiteRefusedError
from bridge.relay import relayed
from bridge.relay.multiplexer import CREDIT, DATA, END, NUMBER, WINDOW
from bridge.relay.relayed import RelayedConnection


class Stream:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.sent.append((kind, payload))

    def forget(self, number: int) -> None: ...


def test_what_waits_takes_no_more_memory_than_the_window() -> None:
    connection = RelayedConnection(Stream(), 1)
    assert all(connection.handle(DATA, b"ab") for _ in range(WINDOW // 2))
    assert sys.getsizeof(connection._arrived) < 2 * WINDOW
    assert not connection.handle(DATA, b"a")


def test_a_frame_without_data_violates_the_protocol() -> None:
    assert not RelayedConnection(Stream(), 1).handle(DATA, b"")


def test_data_are_credited_when_they_are_received() -> None:
    stream = Stream()
    connection = RelayedConnection(stream, 1)
    for piece in (b"a", b"b"):
        connection.handle(DATA, piece)
    assert connection.receive() == b"ab"
    threading.Timer(0.05, connection.handle, (DATA, b"c")).start()
    assert connection.receive() == b"c"
    connection.handle(END, b"")
    assert connection.receive() == b""
    assert stream.sent == [(CREDIT, NUMBER.pack(2)), (CREDIT, NUMBER.pack(1))]


def test_a_program_that_does_not_answer_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed, "OPEN_TIMEOUT", 0.05)
    with pytest.raises(SiteRefusedError, match="no answer"):
        RelayedConnection(Stream(), 1).wait_until_open()
