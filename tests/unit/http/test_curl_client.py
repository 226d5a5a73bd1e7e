"""Calls by libcurl: what is sent again, what the fence prevents, what is too long or too late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bridge.errors import LostLeadershipError
from bridge.http.curl_client import Address, CallError, CurlClient, HttpLimits
from bridge.http.fencing import fence
from tests.fakes.socket_server import SocketServer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server(SocketServer):
    """Answers the first request of each connection, and closes the connection when the second one has arrived."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connected = threading.Semaphore(0)
        super().__init__(self._answer)

    def _answer(self, connection: socket.socket) -> None:
        self.connected.release()
        if first := connection.recv(65536):
            self.requests.append(first)
            connection.sendall(ANSWER)
        if more := connection.recv(65536):
            self.requests.append(more)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[CurlClient]:
    made = CurlClient(Address(f"http://127.0.0.1:{server.port}"), pool_size=1)
    yield made
    made.close()


def call(client: CurlClient, method: str, body: bytes | None = None, most: int = 1000) -> tuple[int, bytes]:
    answer = client.call(method, "/x", {"A": "b"}, body, HttpLimits(3, 5, 10, most))
    assert answer.headers == {"content-length": "2"}
    return answer.status, answer.body


def test_a_request_is_sent_once_although_the_server_closes_the_connection(server: Server, client: CurlClient) -> None:
    assert call(client, "POST", b"1") == (200, b"{}")
    for method, body in (("POST", b"2"), ("DELETE", None), ("GET", None)):
        with pytest.raises(CallError, match="the connection was closed") as told:
            call(client, method, body)
        assert told.value.sent
        assert call(client, "POST", b"3") == (200, b"{}")
    sent = [request.partition(b" ")[0] + request[-1:] for request in server.requests]
    assert sent == [b"POST1", b"POST2", b"POST3", b"DELETE\n", b"POST3", b"GET\n", b"POST3"]


@pytest.mark.parametrize("name", [".", ".."])
def test_the_name_of_an_object_stays_a_step_of_the_path(server: Server, client: CurlClient, name: str) -> None:
    """Users name ConfigMaps and owners freely, and peers of NuNet jobs: DELETE /jobs/.. must not reach the jobs."""
    client.call("DELETE", f"/jobs/{name}", {}, None, HttpLimits(3, 5, 10, 1000))
    assert server.requests[0].startswith(f"DELETE /jobs/{name} HTTP".encode())


def test_a_connection_that_the_server_has_closed_is_replaced(server: Server, client: CurlClient) -> None:
    for _ in range(2):
        assert call(client, "POST", b"1")[0] == 200
        server.accepted[-1].shutdown(socket.SHUT_RDWR)
    assert server.requests[0] == server.requests[1]


def test_a_process_that_has_lost_its_lease_sends_nothing(server: Server, client: CurlClient) -> None:

    def lost() -> None:
        assert server.connected.acquire(timeout=5), "the connection is ready before the check"
        raise LostLeadershipError("lost")

    for _ in range(2):  # on a new connection, and on one that has been used
        with fence(lost), pytest.raises(LostLeadershipError):
            call(client, "POST", b"1")
        call(client, "GET")
    assert all(request.startswith(b"GET") for request in server.requests)


def test_a_request_that_was_not_sent_is_known_as_such() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        client = CurlClient(Address(f"http://127.0.0.1:{taken.getsockname()[1]}"), pool_size=1)
        with pytest.raises(CallError, match="Connection refused") as told:
            call(client, "POST", b"1")
    assert not told.value.sent


def test_an_answer_that_is_too_long_is_cut_off(client: CurlClient) -> None:
    with pytest.raises(CallError, match="more than 1 bytes"):
        call(client, "GET", most=1)


def test_a_header_cannot_end_its_line(server: Server, client: CurlClient) -> None:
    for value in ("a\r\nB: c", "a\nB: c", "a\0"):
        with pytest.raises(ValueError, match="A"):
            client.call("GET", "/", {"A": value}, None, HttpLimits(3, 5, 10, 10))
    with pytest.raises(ValueError, match="path"):
        client.call("GET", "/ HTTP/1.1\r\nB: c", {}, None, HttpLimits(3, 5, 10, 10))
    assert server.requests == []
