"""Logs of peers: connections that are closed, and readers that leave."""

import contextlib
import os
import socket
import time

import pytest

from bridge.config.nunet import NunetSection
from bridge.errors import SiteRefusedError
from bridge.pools.nunet import dms_logs
from bridge.pools.nunet.dms_logs import Log
from bridge.protocol.model.requests import LogOptions
from tests.fakes.raw_server import RawServer

SECTION = NunetSection(name="n", url="http://127.0.0.1:1", log_hosts=["127.0.0.1"])


@pytest.fixture
def peer(monkeypatch):
    """Return a function that sets the beginning of an answer, and returns its URL; the rest of it never comes."""
    monkeypatch.setattr(dms_logs, "TIMEOUT", 5.0)
    with RawServer() as server:

        def start(begin):
            server.answer = lambda connection: connection.sendall(begin)
            return f"{server.url}/log"

        yield start


def test_the_beginning_of_a_log_does_not_wait_for_its_end(peer):
    url = peer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\none\n")
    began = time.monotonic()
    assert next(dms_logs.read(url, SECTION)) == b"one\n"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("tail", [None, 1])
def test_a_log_that_was_closed_reads_no_more(tail):
    read = []

    def fetch(skip):
        for number in range(100):
            read.append(number)
            if number == 2:
                log.close()
            yield b"x"

    log = Log(fetch, lambda: True, LogOptions(container="main", tail=tail))
    list(log)
    assert read == [0, 1, 2]


@pytest.mark.parametrize("begin", [b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\none\n"])
def test_an_answer_that_is_not_read_to_its_end_leaves_no_connection(peer, begin):
    url = peer(begin)
    kept = []

    def read():
        try:
            kept.append(next(dms_logs.read(url, SECTION)))
        except SiteRefusedError as error:
            kept.append(error)

    read()
    before = connections_to(url)
    for _ in range(3):
        read()
    assert connections_to(url) == before == 0


def connections_to(url):
    """Return the number of open sockets of this process that a client of this server holds."""
    port = int(url.split(":")[2].split("/")[0])
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(number)))
        except OSError:
            continue
        with sock:
            if sock.family == socket.AF_INET:
                with contextlib.suppress(OSError):
                    found += sock.getpeername()[1] == port
    return found
