"""The conversation of one ``kubectl port-forward``: a client of SPDY on one side, ports of this machine on the other.

The connections to the ports are those of a pool, without a site.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from bridge.errors import ShareExceededError, SiteUnknownOutcomeError
from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.upgrade import Duplex
from bridge.serving.websocket_connection import port_connection
from cluster.polling import eventually
from controllers.kubelet import port_forward
from controllers.kubelet.port_forward import STREAMS, PortForward
from tests.fakes.local_connection import LocalConnections
from tests.fakes.socket_server import SocketServer
from tests.fakes.spdy_client import SpdyClient
from tests.fakes.websocket_client import WebSocketClient

POD = {"pod": "ns/a", "pool": "one", "user": "jane"}


class Server(SocketServer):
    """A server that echoes; ``silent``: it does not read."""

    silent = False

    def __init__(self) -> None:
        super().__init__(self._echo)

    def _echo(self, sock: socket.socket) -> None:
        if self.silent:
            self.closing.wait(60)
        while data := sock.recv(2**16):
            sock.sendall(data)
        sock.sendall(b".end")


class WebSocketForwarding:
    """A client of ``v4.channel.k8s.io``: the data of its first port is stream 0, that of the second one stream 2."""

    def __init__(self, *ports: int) -> None:
        self.pool, self.end = LocalConnections(), ""
        ours, theirs = socket.socketpair()
        theirs.settimeout(10)
        self.client, self._ours = WebSocketClient(theirs), ours
        connection = port_connection(Duplex(ours, b"", 60.0), ports)
        forward = PortForward(connection, lambda port: self.pool({}, port), lambda: lambda: None, POD, "u", len(ports))
        self.thread = threading.Thread(target=self._run, args=(forward,))
        self.thread.start()
        content = self.client.content
        self.client.read_until(lambda: all(len(content.get(stream, b"")) > 1 for stream in range(2 * len(ports))))
        for stream, port in enumerate(port for port in ports for _ in range(2)):
            assert content[stream][:2] == struct.pack("<H", port)
            content[stream] = content[stream][2:]

    def _run(self, forward: PortForward) -> None:
        self.end = forward.run()
        self._ours.close()

    def close(self) -> None:
        self.client.sock.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        eventually(lambda: all(each.is_closed for each in self.pool.opened), "all connections are closed")


class Forwarding:
    def __init__(self) -> None:
        self.pool = LocalConnections()
        self.end, self.entered = "", 0
        self.problem: ShareExceededError | None = None
        ours, theirs = socket.socketpair()
        theirs.settimeout(10)
        self.client = SpdyClient(theirs)
        self._ours, self._requests = ours, 0
        spdy = SpdyConnection(Duplex(ours, b"", 60.0), STREAMS)
        self.forward = PortForward(spdy, lambda port: self.pool({}, port), self._enter, POD, "uid-a")
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _enter(self) -> Any:
        if self.problem is not None:
            raise self.problem
        self.entered += 1

        def leave() -> None:
            self.entered -= 1

        return leave

    def _run(self) -> None:
        self.end = self.forward.run()
        self._ours.close()

    def pair(self, port: int) -> tuple[int, int]:
        """Open a connection as kubectl does; return its error stream and its data stream."""
        self._requests += 1
        more = {"port": str(port), "requestID": str(self._requests)}
        return self.client.open("error", end=True, **more), self.client.open("data", **more)

    def ended(self, *streams: int) -> list[bytes]:
        self.client.read_until(lambda: self.client.ended | self.client.reset >= set(streams))
        return [self.client.content[stream] for stream in streams]

    def close(self) -> None:
        self.client.sock.close()
        self.thread.join(10)
        assert not self.thread.is_alive()
        eventually(lambda: self.entered == 0, "all shares are free")
        eventually(lambda: all(each.is_closed for each in self.pool.opened), "all connections are closed")
        eventually(lambda: not self.forward._connections, "no connection is left")


@pytest.fixture
def talk() -> Iterator[Forwarding]:
    made = Forwarding()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def test_data_and_the_end_of_each_direction(talk: Forwarding, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    before = REGISTRY.get_sample_value("podbridge_port_bytes_total", {"direction": "in"}) or 0
    content = os.urandom(300_000)
    with caplog.at_level(logging.INFO):
        error, data = talk.pair(server.port)
        talk.client.send(data, content)
        talk.client.send(data, b"", end=True)
        assert talk.ended(error, data) == [b"", content + b".end"]
        eventually(lambda: caplog.records)
    assert REGISTRY.get_sample_value("podbridge_port_bytes_total", {"direction": "in"}) == before + len(content)
    (record,) = caplog.records
    pairs = str(vars(record))
    for part in ("ns/a", "jane", str(server.port), "300000", "300004", "closed by the port"):
        assert part in pairs


def test_connections_are_independent(talk: Forwarding, server: Server) -> None:
    pairs = [talk.pair(server.port) for _ in range(20)]
    for number, (_, data) in enumerate(reversed(pairs)):
        talk.client.send(data, b"%d" % number, end=True)
    assert talk.ended(*(data for _, data in reversed(pairs))) == [b"%d.end" % number for number in range(20)]


def test_what_the_port_does_not_take_is_held_up_to_a_limit(
    talk: Forwarding, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "MOST_INPUT", 2**24)
    server.silent = True
    _, stuck = talk.pair(server.port)
    talk.client.send(stuck, bytes(2**23))
    eventually(lambda: server.accepted)
    server.silent = False
    _, data = talk.pair(server.port)
    talk.client.send(data, b"another", end=True)
    assert talk.ended(data) == [b"another.end"]


def test_a_refusal_is_told_as_a_kubelet_does(talk: Forwarding, server: Server) -> None:
    server.close()
    error, data = talk.pair(server.port)
    text = f"error forwarding port {server.port} to pod ns/a, uid uid-a: connection refused"
    assert talk.ended(error, data) == [text.encode(), b""]
    talk.problem = ShareExceededError("128 connections of this pod are open already: end one of them")
    error, data = talk.pair(server.port)
    assert b"128 connections of this pod" in talk.ended(error, data)[0]


def test_a_reset_of_the_port_and_one_of_the_client(talk: Forwarding, server: Server) -> None:
    error, data = talk.pair(server.port)
    talk.client.send(data, b"x")
    talk.client.read_until(lambda: talk.client.content[data] == b"x")
    server.accepted[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.accepted[0].shutdown(socket.SHUT_RD)  # the server then closes: no end before the reset
    talk.ended(error, data)
    _, data = talk.pair(server.port)
    talk.client.send(data, b"x")
    talk.client.read_until(lambda: talk.client.content[data] == b"x")
    talk.client.cancel(data)
    eventually(lambda: talk.pool.opened[-1].is_closed)


def test_a_site_that_is_lost_is_told(talk: Forwarding, server: Server) -> None:
    error, data = talk.pair(server.port)
    talk.client.send(data, b"x")
    talk.client.read_until(lambda: talk.client.content[data] == b"x")
    talk.pool.opened[0].fail(SiteUnknownOutcomeError("pool one has fallen silent"))
    assert b"pool one has fallen silent" in talk.ended(error, data)[0]


@pytest.mark.parametrize(
    ("kind", "port", "request_id"),
    [
        *(("data", "80", "1"), ("stdin", "80", "1"), ("", "80", "1"), ("error", "80", "")),
        *(("error", port, "1") for port in ("0", "65536", "", "\u0663", "-1", "8 0")),
    ],
)
def test_streams_without_a_meaning_are_refused(talk: Forwarding, kind: str, port: str, request_id: str) -> None:
    stream = talk.client.open(kind, port=port, requestID=request_id)
    assert talk.client.reset == {stream}


def test_a_client_that_opens_error_streams_alone_fills_no_memory(talk: Forwarding) -> None:
    for number in range(STREAMS + 5):
        talk.client.open("error", end=True, port="80", requestID=str(number))
    assert len(talk.client.reset) == 5
    assert len(talk.forward._error_streams) == STREAMS


def test_connections_that_are_cut_at_random_leave_nothing(talk: Forwarding, server: Server) -> None:
    chance = random.Random(7)
    for _ in range(300):
        _, data = talk.pair(server.port)
        if chance.random() < 0.7:
            talk.client.send(data, chance.randbytes(chance.choice((1, 5000))), end=chance.random() < 0.3)
        if chance.random() < 0.8:
            talk.client.cancel(data)
    names = [thread.name for thread in threading.enumerate()]
    assert any(name.startswith("kubelet-forward") for name in names)
    talk.close()
    eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("kubelet-forward")])


def test_a_client_that_disconnects_ends_all(talk: Forwarding, server: Server) -> None:
    for _ in range(5):
        _, data = talk.pair(server.port)
        talk.client.send(data, b"x", end=data % 8 == 3)
    talk.client.sock.close()
    talk.thread.join(10)
    assert talk.end.startswith("the client disconnected")


def test_the_last_port_of_a_websocket_ends_it(server: Server) -> None:
    talk = WebSocketForwarding(server.port, server.port)
    try:
        talk.client.send(0, b"first")
        talk.client.send(2, b"other")
        talk.client.read_until(lambda: (talk.client.content[0], talk.client.content[2]) == (b"first", b"other"))
        one, other = server.accepted
        one.shutdown(socket.SHUT_RDWR)
        eventually(lambda: any(each.is_closed for each in talk.pool.opened), "one is closed")
        other.sendall(b"still")
        talk.client.read_until(lambda: b"still" in talk.client.content[0] + talk.client.content[2])
        assert talk.client.closed is None
        other.shutdown(socket.SHUT_RDWR)
        talk.client.read_until(lambda: talk.client.closed is not None)
        assert talk.client.closed == 1000
    finally:
        talk.close()


def test_a_closed_port_of_a_websocket_is_told(server: Server) -> None:
    talk = WebSocketForwarding(1, server.port)
    try:
        talk.client.read_until(lambda: bool(talk.client.content[1]))
        assert talk.client.content[1].startswith(b"error forwarding port 1 to pod ns/a, uid u: ")
        talk.client.send(2, b"still")
        talk.client.read_until(lambda: talk.client.content[2] == b"still")
    finally:
        talk.close()
    assert talk.end == "the client disconnected"


def test_a_client_that_does_not_close_its_websocket_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "WRITE_TIMEOUT", 0.2)
    talk = WebSocketForwarding(1)
    talk.client.read_until(lambda: talk.client.closed is not None)
    talk.thread.join(10)
    assert not talk.thread.is_alive()
    talk.close()
