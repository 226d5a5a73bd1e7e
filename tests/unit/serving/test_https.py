from __future__ import annotations

import errno
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable

import flask
import pytest

from bridge.errors import BridgeError
from bridge.serving import http_connection
from bridge.serving.certificates import Certificates, Pair, make_pair
from bridge.serving.https import Server

DAY = 86400.0


def new_pair() -> Pair:
    return make_pair(["127.0.0.1"], DAY, now=time.time())


def echo_app() -> flask.Flask:
    app = flask.Flask("echo")

    @app.post("/echo")
    def echo() -> flask.Response:
        return flask.Response(flask.request.get_data(), content_type="application/json")

    return app


@pytest.fixture
def serve(run_server: Callable[[Server], Server]) -> Callable[..., Server]:
    defaults = {"threads": 2, "drain": 0.02, "body_limit": 2**20}
    return lambda app=None, **options: run_server(Server(app or echo_app(), "127.0.0.1", 0, **{**defaults, **options}))


def trusting(ca: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca.decode())


def post(connection: http.client.HTTPConnection, body: bytes = b"{}") -> http.client.HTTPResponse:
    connection.request("POST", "/echo", body)
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    return response


def secure(server: Server, ca: bytes) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=trusting(ca))


def test_plain_http_without_certificates(serve: Callable[..., Server]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", serve().port, timeout=5)
    for number in range(3):
        assert post(connection, b"%d" % number).body == b"%d" % number


def test_https_keeps_the_connection(serve: Callable[..., Server]) -> None:
    pair = new_pair()
    connection = secure(serve(certificates=Certificates(pair)), pair.ca)
    post(connection)
    first = connection.sock
    post(connection, b"x" * 300_000)
    assert connection.sock is first


def test_old_tls_is_refused(serve: Callable[..., Server]) -> None:
    pair = new_pair()
    server = serve(certificates=Certificates(pair))
    context = trusting(pair.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_a_new_certificate_serves_new_connections_and_old_ones_go_on(serve: Callable[..., Server]) -> None:
    old, new = new_pair(), new_pair()
    kept = Certificates(old)
    server = serve(certificates=kept)
    open_before = secure(server, old.ca)
    post(open_before)
    kept.replace(new)
    assert post(secure(server, new.ca)).status == 200
    assert post(open_before).status == 200
    with pytest.raises(ssl.SSLError):
        post(secure(server, old.ca))


def test_no_request_fails_while_certificates_change(serve: Callable[..., Server]) -> None:
    pairs = [new_pair() for _ in range(4)]
    kept = Certificates(pairs[0])
    server = serve(certificates=kept, threads=4)
    everything = b"".join(pair.ca for pair in pairs)
    stop, failures, done = threading.Event(), [], []

    def load() -> None:
        while not stop.is_set():
            try:
                connection = secure(server, everything)
                for _ in range(3):
                    done.append(post(connection).status)
                connection.close()
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        kept.replace(pairs[number % 4])
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert set(done) == {200}


def test_silent_clients_stop_nobody(serve: Callable[..., Server]) -> None:
    pair = new_pair()
    server = serve(certificates=Certificates(pair), threads=2)
    times = []
    for _ in range(3):
        begin = time.monotonic()
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        assert post(secure(server, pair.ca)).status == 200
        times.append(time.monotonic() - begin)
        for each in silent:
            each.close()
        if times[-1] < 0.9:
            break
    assert min(times) < 0.9, "TCP retries a connection after a second if the queue is full; the machine may be busy"


def test_the_client_is_the_one_to_close_an_idle_connection() -> None:
    assert http_connection.IDLE_TIMEOUT > 90


def test_rubbish_instead_of_a_handshake_harms_nobody(serve: Callable[..., Server]) -> None:
    pair = new_pair()
    server = serve(certificates=Certificates(pair), threads=1)
    for rubbish in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00", b"\x00" * 600):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.settimeout(5)
            raw.sendall(rubbish)
            try:
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
            except OSError as error:
                assert error.errno in (errno.ENOTCONN, errno.ECONNRESET)
    assert post(secure(server, pair.ca)).status == 200


def test_a_body_that_is_too_big_is_refused_unread(serve: Callable[..., Server]) -> None:
    server = serve(body_limit=1000)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.putrequest("POST", "/echo")
    connection.putheader("Content-Length", "1001")
    connection.endheaders()
    assert connection.getresponse().status == 413


def test_a_port_that_is_taken_is_told(serve: Callable[..., Server]) -> None:
    server = serve()
    with pytest.raises(BridgeError, match=str(server.port)):
        Server(echo_app(), "127.0.0.1", server.port).start()


def test_stopping_answers_what_is_under_way() -> None:
    entered, release = threading.Event(), threading.Event()
    app = flask.Flask("slow")

    @app.post("/echo")
    def slow() -> str:
        entered.set()
        release.wait(5)
        return "done"

    server = Server(app, "127.0.0.1", 0, threads=2, drain=0.02)
    server.start()
    stop = threading.Event()
    running = threading.Thread(target=server.run, args=(stop,))
    running.start()
    answers: list[http.client.HTTPResponse] = []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    client = threading.Thread(target=lambda: answers.append(post(connection)))
    client.start()
    assert entered.wait(5)
    stop.set()
    threading.Timer(0.2, release.set).start()
    client.join(5)
    running.join(10)
    assert not running.is_alive()
    assert answers[0].body == b"done"
    assert answers[0].getheader("Connection") == "close"
    with pytest.raises(OSError):
        post(http.client.HTTPConnection("127.0.0.1", server.port, timeout=1))


def test_a_server_that_ends_by_itself_is_told() -> None:
    server = Server(echo_app(), "127.0.0.1", 0, drain=0)
    server.start()
    thread = threading.Timer(0.05, lambda: server._server.stop())
    thread.start()
    with pytest.raises(BridgeError, match="ended"):
        server.run(threading.Event())
