from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest

from bridge.serving.certificates import Certificates, make_pair
from bridge.serving.https import Server
from bridge.serving.streaming import ON_HANG_UP, Streams
from cluster.polling import eventually

PAIR = make_pair(["127.0.0.1"], 86400.0, now=time.time())


class Source:
    """Pieces that the test releases."""

    def __init__(self) -> None:
        self.news = threading.Condition(threading.RLock())
        self.text = b""
        self.over = False
        self.failure: Exception | None = None
        self.open = 0

    def write(self, text: bytes) -> None:
        with self.news:
            self.text += text
            self.news.notify_all()

    def end(self, failure: Exception | None = None) -> None:
        with self.news:
            self.over, self.failure = True, failure
            self.news.notify_all()

    def wait_open(self, count: int, timeout: float = 10) -> bool:
        with self.news:
            return self.news.wait_for(lambda: self.open == count, timeout)


class Body:
    """Reads the source from the beginning; can be closed while it waits."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen = -1
        self._closed = False
        with source.news:
            source.open += 1
            source.news.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._seen < 0:
            self._seen = 0
            return b""
        source = self._source
        with source.news:
            source.news.wait_for(lambda: len(source.text) > self._seen or source.over or self._closed)
            piece = source.text[self._seen :]
        self._seen += len(piece)
        if piece:
            return piece
        if source.failure is not None:
            raise source.failure
        raise StopIteration

    def close(self) -> None:
        with self._source.news:
            if not self._closed:
                self._closed = True
                self._source.open -= 1
                self._source.news.notify_all()


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.end()


@pytest.fixture
def serve(source: Source, run_server: Callable[[Server], Server]) -> Callable[..., Server]:
    def start(limit: int = 256, certificates: Certificates | None = None) -> Server:
        app = flask.Flask("streams")

        @app.get("/long/<name>")
        def long(name: str) -> flask.Response:
            body = Body(source)
            flask.request.environ[ON_HANG_UP](body.close)
            return flask.Response(body)

        app.add_url_rule("/short", "short", lambda: threading.current_thread().name)
        streams = Streams(lambda path: path.startswith("/long/"), limit=limit, name="long")
        return run_server(
            Server(app, "127.0.0.1", 0, threads=2, drain=0.02, streams=streams, certificates=certificates, name="t")
        )

    return start


def get(server: Server, path: str, tls: bool = False) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    if tls:
        context = ssl.create_default_context(cadata=PAIR.ca.decode())
        connection: Any = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path)
    return connection, connection.getresponse()


@pytest.mark.parametrize("tls", [False, True])
def test_pieces_arrive_as_they_are_made(serve: Callable[..., Server], source: Source, tls: bool) -> None:
    _, response = get(serve(certificates=Certificates(PAIR) if tls else None), "/long/a", tls)
    assert response.status == 200
    assert response.getheader("Transfer-Encoding") == "chunked"
    for text in (b"one\n", b"two\n", b"x" * 300_000):
        begin = time.monotonic()
        source.write(text)
        assert response.read(len(text)) == text
        assert time.monotonic() - begin < 2
    source.end()
    assert response.read() == b""


def test_the_headers_come_before_the_first_byte(serve: Callable[..., Server], source: Source) -> None:
    _, response = get(serve(), "/long/a")
    assert response.status == 200
    assert source.text == b""


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_hangs_up_ends_a_silent_answer(serve: Callable[..., Server], source: Source, tls: bool) -> None:
    server = serve(certificates=Certificates(PAIR) if tls else None)
    connection, response = get(server, "/long/a", tls)
    assert source.wait_open(1)
    response.close()
    connection.close()
    assert source.wait_open(0, timeout=3)


def test_a_client_that_is_reset_ends_the_answer(serve: Callable[..., Server], source: Source) -> None:
    with socket.create_connection(("127.0.0.1", serve().port)) as raw:
        raw.sendall(b"GET /long/a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert source.wait_open(1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    assert source.wait_open(0, timeout=3)


def test_200_at_once_and_a_short_request_beside_them(serve: Callable[..., Server], source: Source) -> None:
    server = serve()
    opened = [get(server, f"/long/{number}") for number in range(200)]
    assert source.wait_open(200)
    begin = time.monotonic()
    _, short = get(server, "/short")
    assert short.read().startswith(b"CP Server")
    assert time.monotonic() - begin < 2
    source.write(b"for all\n")
    assert [response.read(8) for _, response in opened] == [b"for all\n"] * 200
    source.end()
    assert {response.read() for _, response in opened} == {b""}
    assert source.wait_open(0)


def test_beyond_the_limit_is_refused_and_a_place_becomes_free(serve: Callable[..., Server], source: Source) -> None:
    server = serve(limit=2)
    opened = [get(server, "/long/a") for _ in range(2)]
    assert source.wait_open(2)
    _, refused = get(server, "/long/a")
    assert refused.status == 429
    assert b"2 answers" in refused.read()
    for connection, response in opened:
        response.close()
        connection.close()
    assert source.wait_open(0, timeout=3)
    eventually(lambda: get(server, "/long/a")[1].status == 200, timeout=5)


def test_an_answer_that_fails_has_no_proper_end(serve: Callable[..., Server], source: Source) -> None:
    _, response = get(serve(), "/long/a")
    source.write(b"some")
    assert response.read(4) == b"some"
    source.end(RuntimeError("broken"))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    assert source.wait_open(0)


def test_stopping_breaks_answers_off(serve: Callable[..., Server], source: Source) -> None:
    server = serve()
    _, response = get(server, "/long/a")
    assert source.wait_open(1)
    server.stop()
    assert source.wait_open(0, timeout=5)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()


def test_a_client_may_stop_reading_for_longer_than_a_request_may_take(
    serve: Callable[..., Server], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.serving.http_connection.ANSWER_TIMEOUT", 0.1)
    _, response = get(serve(), "/long/a")
    text = b"y" * 20_000_000  # more than the kernel's buffers
    source.write(text)
    time.sleep(0.4)
    source.end()
    assert response.read() == text


def test_the_connection_of_a_long_answer_is_not_used_again(serve: Callable[..., Server], source: Source) -> None:
    source.write(b"a")
    source.end()
    _, response = get(serve(), "/long/a")
    assert response.getheader("Connection") == "close"
    assert response.read() == b"a"
