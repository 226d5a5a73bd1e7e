"""Requests to a DMS: what an answer means for a job, and how long an answer may take."""

import json
import threading
import time

import pytest

from bridge.clock import SystemClock
from bridge.config.nunet import NunetSection
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.pools.nunet import dms_client
from bridge.pools.nunet.dms_client import DmsClient
from cluster.polling import eventually
from tests.fakes.raw_server import RawServer


@pytest.fixture
def serve(monkeypatch):
    with RawServer() as server:

        def start(answer, timeout=30.0, cancel_path="/job/{job}"):
            server.answer = answer
            monkeypatch.setattr(dms_client, "TIMEOUT", timeout)
            return DmsClient(NunetSection(name="n", url=server.url, cancel_path=cancel_path), SystemClock()), server

        yield start


def json_answer(status, content):
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Text\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def trickle(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n[")
    while True:
        time.sleep(0.05)
        connection.sendall(b" ")


def trickle_headers(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        time.sleep(0.05)
        connection.sendall(b"a")


@pytest.mark.parametrize("status", [408, 409, 500, 503])
def test_an_answer_to_a_write_that_may_have_been_carried_out_has_an_unknown_outcome(serve, status):
    client, _ = serve(json_answer(status, {"error": "job_id exists already"}))
    with pytest.raises(SiteUnknownOutcomeError, match=f"HTTP {status}"):
        client.submit({}, 5.0)
    with pytest.raises(SiteUnknownOutcomeError):
        client.cancel("j")
    with pytest.raises(SiteError) as caught:
        client.status("j")
    assert not isinstance(caught.value, SiteUnknownOutcomeError)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (422, False), (401, True)])
def test_a_refused_write_was_not_carried_out(serve, status, retryable):
    client, _ = serve(json_answer(status, {"error": "no"}))
    with pytest.raises(SiteRefusedError) as caught:
        client.submit({}, 5.0)
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("answer", [trickle, trickle_headers])
def test_the_whole_answer_has_one_time_limit(serve, answer):
    client, _ = serve(answer, timeout=1.0)
    began = time.monotonic()
    with pytest.raises(SiteDownError):
        client.status("j")
    with pytest.raises(SiteUnknownOutcomeError):
        client.submit({}, 1.0)
    assert time.monotonic() - began < 5


def test_the_list_of_peers_is_requested_once_for_all_threads_which_get_its_error(serve):
    client, server = serve(trickle, timeout=1.0)
    errors = []

    def ask():
        with pytest.raises(SiteDownError) as caught:
            client.peers(60)
        errors.append(caught.value)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(errors), len(server.requests)) == (4, 1)
    assert time.monotonic() - began < 3


def test_a_list_of_peers_that_is_new_enough_waits_for_no_request(serve):
    client, server = serve(json_answer(200, [{"peer_id": "p"}]), timeout=1.0)
    first = client.peers(0)
    server.answer = trickle

    def ask():
        with pytest.raises(SiteDownError):
            client.peers(0)

    slow = threading.Thread(target=ask)
    slow.start()
    eventually(lambda: len(server.requests) == 2)
    began = time.monotonic()
    assert client.peers(60) is first
    assert time.monotonic() - began < 0.5
    slow.join(10)


def test_a_write_has_a_connection_of_its_own_and_a_body_or_an_empty_one(serve):
    client, server = serve(json_answer(200, {"job_id": "j-1"}), cancel_path="POST /job/{job}/stop")
    assert client.submit({"a": 1}, 5.0) == "j-1"
    client.cancel("j-1")
    submitted, cancelled = (request.lower() for request in server.requests)
    assert "content-type: application/json" in submitted
    assert submitted.endswith('{"a": 1}')
    assert cancelled.startswith("post /job/j-1/stop http")
    assert "content-length: 0" in cancelled
    assert "content-type" not in cancelled
