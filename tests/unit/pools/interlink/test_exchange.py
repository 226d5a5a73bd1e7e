"""Requests over real connections: the time limit of the whole answer, and logs that another thread closes."""

import os
import socket
import threading
import time

import pytest

from bridge.clock import SystemClock
from bridge.config.interlink import InterlinkSection
from bridge.errors import SiteDownError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.pools.interlink.interlink_client import PluginClient
from bridge.pools.interlink.interlink_transport import PluginTransport
from bridge.protocol.model.requests import LogOptions
from tests.builders import site_pod as pod
from tests.fakes.raw_server import RawServer

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
FOLLOW = LogOptions(container="main", follow=True)


@pytest.fixture(params=["tcp", "unix"])
def server(request, tmp_path):
    with RawServer(path=tmp_path / "s" if request.param == "unix" else None) as running:
        yield running


TIMEOUT = 0.4
SHORT = 0.2
"""Seconds: the time limit of an answer, and the one of tests in which it ends."""


def client(server, timeout=TIMEOUT):
    section = InterlinkSection.model_validate({"name": "far", "url": server.url, "timeout": timeout})
    clock = SystemClock()
    return PluginClient(section, PluginTransport(section, clock), clock)


def trickle(*parts, pause=0.1):
    def answer(connection):
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return answer


def slow(text, *after, pause=0.1):
    return trickle(*(bytes([byte]) for byte in text), *after, pause=pause)


@pytest.mark.parametrize(
    "answer",
    [
        lambda connection: None,
        slow(HEADERS + b"X: " + b"x" * 30),
        trickle(HEADERS + b"Content-Length: 30\r\n\r\n", *[b" "] * 30),
        trickle(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\n \r\n"] * 30),
    ],
    ids=["silent", "headers", "body", "chunks"],
)
def test_the_time_limit_is_that_of_the_whole_answer(server, answer):
    server.answer = answer
    began = time.monotonic()
    with pytest.raises(SiteDownError, match=r"no answer from .*(timed out|not complete in time)"):
        client(server, SHORT).ping()
    with pytest.raises(SiteUnknownOutcomeError):
        client(server, SHORT).delete(pod("a"))
    assert time.monotonic() - began < 2


def test_connections_are_used_again(server):
    server.answer = trickle(HEADERS + b"Content-Length: 2\r\n\r\nok", pause=0.01)
    asked = client(server)
    for _ in range(4):
        asked.ping()
        time.sleep(0.3 * TIMEOUT)  # in all, longer than the time limit of one answer
    assert len(server.accepted) == 1


def test_a_log_may_take_longer_than_its_first_line(server):
    server.answer = trickle(HEADERS + b"Content-Length: 9\r\n\r\n", *[b"x"] * 9, pause=TIMEOUT / 7)
    assert b"".join(client(server).logs(pod("a"), LogOptions(container="main"))) == b"x" * 9


def test_the_headers_of_a_log_that_is_not_followed_have_a_time_limit(server):
    with pytest.raises(SiteDownError):
        client(server, SHORT).logs(pod("a"), LogOptions(container="main"))


def test_a_plugin_that_answers_only_with_the_first_line_is_followed(server):
    server.answer = slow(b"HTTP/1.1 200 OK\r\n", b"Content-Length: 4\r\n\r\none\n", pause=TIMEOUT / 10)
    assert list(client(server).logs(pod("a"), FOLLOW)) == [b"one\n"]


def test_a_refusal_without_its_text_is_a_refusal(server):
    server.answer = trickle(b"HTTP/1.1 500 ill\r\nContent-Length: 9\r\n\r\n", pause=1)
    with pytest.raises(SiteRefusedError, match="HTTP 500"):
        client(server, SHORT).logs(pod("a"), LogOptions(container="main"))


def test_a_followed_log_ends_when_it_is_closed_before_its_first_line(server):
    pieces = client(server).logs(pod("a"), FOLLOW)
    found = []
    reader = threading.Thread(target=lambda: found.append(list(pieces)), daemon=True)
    reader.start()
    assert server.asked.wait(5)
    pieces.close()
    reader.join(5)
    assert found == [[]]
    assert server.hung_up.wait(5)


def test_a_log_that_was_closed_is_not_requested(server):
    pieces = client(server).logs(pod("a"), FOLLOW)
    pieces.close()
    assert list(pieces) == []
    assert server.accepted == []


def test_a_log_that_is_closed_while_it_connects_is_not_read(server, monkeypatch):
    pieces = client(server).logs(pod("a"), FOLLOW)
    send = PluginTransport.open

    def close_first(*args, **options):
        pieces.close()
        return send(*args, **options)

    monkeypatch.setattr(PluginTransport, "open", close_first)
    assert list(pieces) == []
    assert server.hung_up.wait(5)


def test_no_connection_is_left_open(server):
    def answer(connection):
        connection.sendall(HEADERS + b"Connection: close\r\n\r\none\n")
        connection.shutdown(socket.SHUT_RDWR)

    server.answer = answer
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert list(client(server).logs(pod("a"), FOLLOW)) == [b"one\n"]
    end = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < end
        time.sleep(0.01)
