"""Clients that send and read slowly occupy no thread, and their connections have deadlines."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import flask
import pytest

from bridge.serving import http_connection, selector
from bridge.serving.certificates import Certificates, make_pair
from bridge.serving.http_connection import Connection
from bridge.serving.https import Server
from bridge.serving.selector import Connections
from cluster.polling import eventually

PAIR = make_pair(["127.0.0.1"], 86400.0, now=time.time())
CLIENTS = 200
LONG = 8 * 2**20
"""Bytes: more than the kernel's buffers."""


def app() -> flask.Flask:
    made = flask.Flask("slow")

    @made.post("/echo")
    def echo() -> flask.Response:
        return flask.Response(flask.request.get_data(), content_type="application/json")

    @made.get("/fails")
    def fails() -> flask.Response:
        raise RuntimeError("a defect")

    @made.get("/long")
    def long() -> flask.Response:
        return flask.Response(b"x" * LONG, content_type="text/plain")

    return made


@pytest.fixture
def serve(run_server: Callable[[Server], Server]) -> Callable[..., Server]:
    defaults = {"threads": 2, "drain": 0.02, "body_limit": 2**20}
    return lambda **options: run_server(Server(app(), "127.0.0.1", 0, **{**defaults, **options}))


UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE


def client_hello() -> bytes:
    begin, end = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        UNVERIFIED.wrap_bio(begin, end).do_handshake()
    return end.read()


def opened(port: int, tls: bool, first: bytes) -> socket.socket:
    """Return a connection that has sent ``first``, with a small buffer for the answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(5)
    sock.connect(("127.0.0.1", port))
    if tls:
        sock = UNVERIFIED.wrap_socket(sock)
    if first:
        sock.sendall(first)
    return sock


class VirtualTime:
    """The time of deadlines, which only the test changes."""

    sleep = staticmethod(time.sleep)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self._checked = 1000.0
        for module in (http_connection, selector):
            monkeypatch.setattr(module, "time", self)
        expire = Connections._expire

        def record(connections: Connections, now: float) -> None:
            expire(connections, now)
            self._checked = now

        monkeypatch.setattr(Connections, "_expire", record)

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time, and wait until the server has checked the deadlines."""
        self.now += seconds
        eventually(lambda: self._checked >= self.now, "a check of the deadlines", every=0.01)


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    return VirtualTime(monkeypatch)


class Drip:
    """``count`` clients of one kind; each sends a byte of ``text`` every 50 ms, after ``first``."""

    def __init__(self, port: int, tls: bool, first: bytes, text: bytes, count: int) -> None:
        self.sockets: list[socket.socket] = []
        self._text = text
        self._stop = threading.Event()
        for _ in range(count):
            self.sockets.append(opened(port, tls, first))
        self._thread = threading.Thread(target=self._drip, daemon=True)
        self._thread.start()

    def _drip(self) -> None:
        for byte in self._text:
            for sock in self.sockets:
                with suppress(OSError):
                    sock.send(bytes([byte]))
            if self._stop.wait(0.05):
                return

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for sock in self.sockets:
            sock.close()


KINDS = {
    "handshake": (False, b"", client_hello()),
    "headers": (True, b"POST /echo HTTP/1.1\r\n", b"X-Header: " + b"x" * 1000),
    "body": (True, b"POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", b"x" * 900),
    "answer": (True, b"GET /long HTTP/1.1\r\n\r\n", b""),
}


def answer_time(port: int) -> float:
    """Return the seconds of one request on a new connection."""
    begin = time.monotonic()
    client = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=UNVERIFIED)
    client.request("POST", "/echo", b"{}")
    assert client.getresponse().read() == b"{}"
    client.close()
    return time.monotonic() - begin


@pytest.mark.parametrize("kind", KINDS)
def test_200_slow_clients_delay_nobody(serve: Callable[..., Server], kind: str) -> None:
    tls, first, text = KINDS[kind]
    server = serve(certificates=Certificates(PAIR))
    alone = sorted(answer_time(server.port) for _ in range(20))
    threads = threading.active_count()
    # 40 answers of this length exceed the limit on memory, and 200 exceed the memory of a small machine
    slow = Drip(server.port, tls, first, text, 20 if kind == "answer" else CLIENTS)
    try:
        times = sorted(answer_time(server.port) for _ in range(20))
        assert threading.active_count() <= threads + 1  # the thread of Drip
    finally:
        slow.close()
    assert times[-1] < 2
    assert times[10] < max(1, 5 * alone[10])  # a client that waits for a deadline of others waits 5 s


@pytest.mark.parametrize(("kind", "timeout"), [("handshake", "HANDSHAKE"), ("headers", "REQUEST"), ("body", "REQUEST")])
def test_a_stage_has_one_deadline_for_all_its_bytes(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, kind: str, timeout: str
) -> None:
    monkeypatch.setattr(http_connection, f"{timeout}_TIMEOUT", 0.3)
    tls, first, text = KINDS[kind]
    server = serve(certificates=Certificates(PAIR))
    begin = time.monotonic()
    answer = b""
    # sends and reads in one thread: an SSL connection must not be used by two at once
    with opened(server.port, tls, first) as sock, suppress(OSError):
        sock.settimeout(0.05)
        for byte in text:
            with suppress(OSError):  # the server may have closed; its answer is read nevertheless
                sock.send(bytes([byte]))
            with suppress(TimeoutError):
                data = sock.recv(4096)
                if not data:
                    break
                answer += data
    assert 0.2 < time.monotonic() - begin < 5
    assert answer.startswith(b"HTTP/1.1 408") == tls


def connect(port: int, tls: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    return UNVERIFIED.wrap_socket(sock) if tls else sock


@pytest.mark.parametrize("tls", [True, False])
def test_a_client_that_still_sends_gets_its_408(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT", 0.1)
    server = serve(certificates=Certificates(PAIR) if tls else None)
    with connect(server.port, tls) as sock:
        sock.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(20):  # a reset would fail one of these
            sock.sendall(b"x" * 1000)
            time.sleep(0.02)
        assert sock.recv(4096).startswith(b"HTTP/1.1 408")
        assert sock.recv(4096) == b""


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(("rate", "burst", "status"), [(1000, 0, b"200"), (50_000, 0, b"408"), (1000, 20_000, b"408")])
def test_a_request_that_takes_long_must_arrive_at_a_rate_without_a_stop(
    serve: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    virtual_time: VirtualTime,
    tls: bool,
    rate: int,
    burst: int,
    status: bytes,
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT", 1.0)
    monkeypatch.setattr(http_connection, "LEAST_RATE", rate)
    server = serve(certificates=Certificates(PAIR) if tls else None)
    head = b"POST /echo HTTP/1.1\r\nContent-Length: 21000\r\n\r\n"
    with connect(server.port, tls) as sock:
        sock.sendall(head + b"x" * burst)
        await_received(server, len(head) + burst)
        if burst:
            virtual_time.advance(2)  # the bytes before do not pay for a client that stops
        for number in range(21 if not burst else 1):
            sock.sendall(b"x" * 1000)
            if number < 20:
                await_received(server, len(head) + burst + 1000 * (number + 1))
                virtual_time.advance(0.1)
        assert sock.recv(4096).startswith(b"HTTP/1.1 " + status)


def await_received(server: Server, size: int) -> None:
    """Wait until the server has ``size`` bytes of the request, or discards them."""
    waiting = server._server._connections._waiting
    eventually(
        lambda: any(each.held == size or each.discarding for each in list(waiting.values())),
        f"{size} bytes",
        every=0.01,
    )


def test_a_body_above_the_limit_is_discarded_until_its_client_reads_the_413(serve: Callable[..., Server]) -> None:
    server = serve(body_limit=2**16)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    client.request("POST", "/echo", b"x" * 8 * 2**20)  # more than the kernel's buffers
    assert client.getresponse().status == 413


@pytest.mark.parametrize(("seconds", "size"), [(0.3, 2**60), (60, 2**20)])
def test_what_is_sent_after_the_answer_is_discarded_within_bounds(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, seconds: float, size: int
) -> None:
    monkeypatch.setattr(http_connection, "DISCARD_TIMEOUT", seconds)
    monkeypatch.setattr(http_connection, "DISCARD_LIMIT", size)
    server = serve(body_limit=2**16)
    other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    begin = time.monotonic()
    with connect(server.port, False) as sock:
        sock.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        sock.send(b"x" * 2**14)
        other.request("POST", "/echo", b"{}")
        assert other.getresponse().read() == b"{}"
        other.close()
        with pytest.raises(ConnectionError):
            while time.monotonic() - begin < 10:
                sock.send(b"x" * 2**14)
    assert time.monotonic() - begin < 5
    eventually_none = time.monotonic() + 2
    while len(server._server._connections) and time.monotonic() < eventually_none:
        time.sleep(0.01)
    assert len(server._server._connections) == 0


def test_an_answer_that_is_not_read_is_given_up(serve: Callable[..., Server], virtual_time: VirtualTime) -> None:
    server = serve(certificates=Certificates(PAIR))
    slow = Drip(server.port, *KINDS["answer"], 1)
    try:
        connections = server._server._connections
        eventually(lambda: any(each.sending for each in list(connections._waiting.values())), "a part of the answer")
        virtual_time.advance(http_connection.ANSWER_TIMEOUT - 1)
        assert len(connections) == 1
        virtual_time.advance(1)
        assert len(connections) == 0
        got = 0
        with suppress(OSError):
            while data := slow.sockets[0].recv(2**20):
                got += len(data)
        assert 0 < got < LONG
    finally:
        slow.close()


def test_a_long_answer_arrives_whole(serve: Callable[..., Server]) -> None:
    server = serve(certificates=Certificates(PAIR))
    client = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=UNVERIFIED)
    for _ in range(2):  # the connection is kept
        client.request("GET", "/long")
        response = client.getresponse()
        time.sleep(0.2)
        assert response.read() == b"x" * LONG


def test_a_request_that_fails_does_not_end_the_server(serve: Callable[..., Server]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", serve().port, timeout=10)
    for path, status in (("/fails", 500), ("/long", 200), ("/fails", 500), ("/none", 404)):
        client.request("GET", path)
        response = client.getresponse()
        response.read()
        assert response.status == status


@pytest.mark.parametrize("tls", [True, False])
def test_requests_in_one_piece_are_answered_in_turn(serve: Callable[..., Server], tls: bool) -> None:
    server = serve(certificates=Certificates(PAIR) if tls else None)
    requests = b"".join(b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\n%03d" % number for number in range(50))
    slow = Drip(server.port, tls, requests, b"", 1)
    try:
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 50 or not answers.endswith(b"049"):
            answers += slow.sockets[0].recv(2**16)
    finally:
        slow.close()
    bodies = [int(part.split(b"\r\n\r\n")[1]) for part in answers.split(b"HTTP/1.1 200")[1:]]
    assert bodies == list(range(50))


def test_too_many_connections_close_the_slowest(serve: Callable[..., Server]) -> None:
    server = serve(certificates=Certificates(PAIR))
    server._server._connections._limit = 20
    slow = Drip(server.port, *KINDS["body"], 40)
    try:
        times = [answer_time(server.port) for _ in range(5)]
        assert max(times) < 2
        assert len(server._server._connections) <= 20
    finally:
        slow.close()


def test_requests_that_fill_the_memory_close_the_slowest(serve: Callable[..., Server]) -> None:
    server = serve()
    connections = server._server._connections
    connections._held_limit = 2**20
    first = b"POST /echo HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + b"x" * 300_000
    slow = Drip(server.port, False, first, b"", 12)
    try:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        client.request("POST", "/echo", b"y" * 500_000)
        assert client.getresponse().read() == b"y" * 500_000
        assert connections._held <= 2**20
    finally:
        slow.close()


def test_a_body_waits_for_its_100_continue(serve: Callable[..., Server]) -> None:
    server = serve()
    head = b"POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    slow = Drip(server.port, False, head, b"", 1)
    try:
        sock = slow.sockets[0]
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"{}")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    finally:
        slow.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"411"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b"400"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}", b"400"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: -2\r\n\r\n{}", b"400"),
        (b"GET /long HTTP/1.1\n\n", b"400"),
        (b"\n\n", b"400"),
        (b"GET //a[ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000, b"414"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b"413"),
    ],
)
def test_a_request_without_a_clear_end_is_refused(
    serve: Callable[..., Server], request_bytes: bytes, status: bytes
) -> None:
    server = serve()
    slow = Drip(server.port, False, request_bytes, b"", 1)
    try:
        assert slow.sockets[0].recv(1000).split()[1] == status
    finally:
        slow.close()


class Returning:
    """A connection during whose comparison a worker returns another one to the selector."""

    remote_addr = remote_port = None
    counted = held = 2**10
    deadline = 0.0

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.socket, self.peer = socket.socketpair()

    @property
    def idle(self) -> bool:
        waiting = self._connections._waiting
        waiting[-len(waiting)] = cast(Connection, self)
        return False

    def close(self) -> None:
        self.socket.close()
        self.peer.close()


def test_workers_may_return_connections_while_the_selector_chooses_the_slowest(serve: Callable[..., Server]) -> None:
    connections = serve()._server._connections
    made = [Returning(connections) for _ in range(3)]
    for each in made:
        connections._waiting[-1000 - len(connections)] = each
    assert connections._evict("too many connections")
    for each in made:
        each.close()
    connections._waiting.clear()
