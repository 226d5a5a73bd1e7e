from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import flask
import pytest

from bridge.serving import upgrade
from bridge.serving.certificates import Certificates, make_pair
from bridge.serving.https import Server
from bridge.serving.streaming import Streams
from bridge.serving.upgrade import Duplex, switch_protocols
from cluster.polling import eventually

PAIR = make_pair(["127.0.0.1"], 86400.0, now=time.time())
MANY = 5 * 2**20
Serve = Callable[..., tuple[Server, Streams]]


@pytest.fixture
def serve(run_server: Callable[[Server], Server]) -> Serve:
    """Start a server whose ``/up`` calls the function with the connection, and ``/fails`` registers it and fails."""

    def start(converse: Callable[[Duplex], object], *, tls: bool = False) -> tuple[Server, Streams]:
        app = flask.Flask("upgrade")

        @app.post("/<what>")
        def up(what: str) -> flask.Response:
            response = switch_protocols(
                "echo", converse, {"X-Chosen": flask.request.headers["X-Stream-Protocol-Version"]}
            )
            return response if what == "up" else flask.Response("no", status=400)

        streams = Streams(lambda _: True, name="up")
        certificates = Certificates(PAIR) if tls else None
        return run_server(
            Server(app, "127.0.0.1", 0, threads=2, drain=0.02, streams=streams, certificates=certificates, name="t")
        ), streams

    return start


@contextmanager
def connected(server: Server, behind: bytes = b"", path: str = "/up", tls: bool = False) -> Iterator[socket.socket]:
    """Send the request, and ``behind`` with it; yield the connection after the headers of the answer."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    if tls:
        sock = ssl.create_default_context(cadata=PAIR.ca.decode()).wrap_socket(sock, server_hostname="127.0.0.1")
    repeated = "".join(f"X-Stream-Protocol-Version: v{number}\r\n" for number in (2, 1))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n{repeated}\r\n"
    with sock:
        sock.sendall(head.encode() + behind)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += sock.recv(1)
        if path == "/up":
            assert answer.startswith(b"HTTP/1.1 101 ")
            assert b"Upgrade: echo\r\nX-Chosen: v2, v1\r\n" in answer
            assert b"Connection: Upgrade\r\n" in answer
            assert b"Content-" not in answer
        yield sock


def echo(duplex: Duplex) -> None:
    while received := duplex.receive():
        duplex.send(received)
    duplex.end()


@pytest.mark.parametrize("tls", [False, True])
def test_both_sides_send_at_once(serve: Serve, tls: bool) -> None:
    done: list[bytes] = []

    def converse(duplex: Duplex) -> None:
        sender = threading.Thread(target=duplex.send, args=(b"s" * MANY,))
        sender.start()
        received = b"".join(iter(duplex.receive, b""))
        sender.join()
        done.append(received)

    server, streams = serve(converse, tls=tls)
    with connected(server, b"early ", tls=tls) as sock, ThreadPoolExecutor() as threads:
        client = Duplex(sock, b"", 20)
        sent = threads.submit(client.send, b"c" * MANY)
        received = 0
        while received < MANY:
            received += len(client.receive())
        sent.result()
        client.end()
        eventually(lambda: bool(done))
    assert done == [b"early " + b"c" * MANY]
    eventually(lambda: len(streams) == 0)


@pytest.mark.parametrize("tls", [False, True])
def test_a_sender_does_not_wait_for_a_receiver(serve: Serve, tls: bool) -> None:
    server, _ = serve(echo, tls=tls)
    with connected(server, tls=tls) as sock:
        for _ in range(100):  # the server waits in receive() each time
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"


def test_a_client_that_does_not_receive_is_given_up_after_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.serving.streaming.WRITE_TIMEOUT", 0.2)
    errors: list[OSError] = []

    def converse(duplex: Duplex) -> None:
        try:
            duplex.send(bytes(64 * 2**20))
        except OSError as error:
            errors.append(error)

    server, _ = serve(converse)
    with connected(server):
        eventually(lambda: bool(errors))
    assert isinstance(errors[0], TimeoutError)


@pytest.mark.parametrize("tls", [False, True])
def test_a_stop_of_the_server_ends_a_conversation(serve: Serve, tls: bool) -> None:
    server, streams = serve(echo, tls=tls)
    with connected(server, tls=tls) as sock:
        assert len(streams) == 1
        server.stop()
        assert sock.recv(1) == b""
    eventually(lambda: len(streams) == 0)


def test_abort_ends_a_wait_in_another_thread(serve: Serve) -> None:
    waits = threading.Event()

    def converse(duplex: Duplex) -> None:
        receiver = threading.Thread(target=duplex.receive)
        receiver.start()
        waits.set()
        time.sleep(0.05)
        duplex.abort()
        receiver.join()

    server, streams = serve(converse)
    with connected(server) as sock:
        assert waits.wait(5)
        assert sock.recv(1) == b""
    eventually(lambda: len(streams) == 0)


def test_a_refusal_does_not_switch(serve: Serve) -> None:
    called: list[Duplex] = []
    server, _ = serve(called.append)
    with connected(server, path="/fails") as sock:
        assert sock.recv(100) == b"no"
    assert called == []


def test_a_short_answer_cannot_switch() -> None:
    with flask.Flask("x").test_request_context(), pytest.raises(KeyError, match=upgrade.UPGRADE):
        switch_protocols("echo", echo, {})
