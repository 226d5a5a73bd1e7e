"""What the hub does with connections of a site: real sockets, and a site in memory that says what it wants."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

import pytest

from bridge import names
from bridge.config.policies import NamespacePolicy, may_reach
from bridge.errors import ServiceRefusedError
from bridge.protocol.model.sessions import STDOUT, Exit, Output
from bridge.relay.multiplexer import CLOSE, CREDIT, DATA, END, HEAD, NUMBER, OPEN, PIECE, WINDOW, frames
from bridge.workload.services import Target
from cluster.polling import eventually
from controllers.reach import reach_connections
from controllers.reach.reach_connections import Client, ReachConnections
from controllers.reach.reach_stream import MOST, ReachStream

CLIENT = Client("team", "pod", "u", "site")


class Site:
    """The session of a site in memory, and what the hub has sent."""

    def __init__(self) -> None:
        self._to_hub: queue.Queue[bytes] = queue.Queue()
        self._from_hub = b""
        self.told: list[tuple[int, int, bytes]] = []
        self.is_closed = False

    def receive(self) -> Output | Exit:
        data = self._to_hub.get(timeout=20)
        return Output(STDOUT, data) if data else Exit(0)

    def send(self, data: bytes) -> None:
        complete, self._from_hub = frames(self._from_hub + data)
        self.told += complete

    def close(self) -> None:
        self.is_closed = True
        self._to_hub.put(b"")

    def end_input(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...

    def say(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._to_hub.put(HEAD.pack(kind, number, len(payload)) + payload)

    def data(self, number: int) -> bytes:
        return b"".join(payload for kind, each, payload in self.told if (kind, each) == (DATA, number))

    def has_closed(self, number: int) -> bool:
        return any((kind, each) == (CLOSE, number) for kind, each, _ in self.told)


class Hub:
    """The hub's end, and the Service ``web``."""

    def __init__(self, reach: str = "web:80") -> None:
        self.site, self.refused, self.targets = Site(), [], []
        self.pod: Any = {"metadata": {"namespace": "team", "annotations": {names.REACH: reach}}}
        self.server = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.connections = ReachConnections(
            lambda client: self.pod, self._check, self._connect, lambda pod, text: self.refused.append(text)
        )
        self.stream = ReachStream(self.site, lambda text, each: self.connections.accept(CLIENT, text, each))
        self.end = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.end = self.stream.run()

    def _check(self, namespace: str, target: Target) -> None:
        if target.namespace != namespace:
            raise ServiceRefusedError("the policy does not allow it")

    def _connect(self, target: Target) -> socket.socket:
        self.targets.append(target)
        return socket.create_connection(self.server.getsockname())

    def accept(self) -> socket.socket:
        self.server.settimeout(20)
        sock = self.server.accept()[0]
        sock.settimeout(20)
        return sock


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach_connections, "PAUSE", 0.05)


def test_a_pod_that_repeats_a_refused_connection_waits() -> None:
    hub = Hub()
    began, count = time.monotonic(), 5
    for number in range(1, count + 1):
        hub.site.say(OPEN, number, b"web.team:81")
        eventually(lambda n=number: hub.site.has_closed(n), "it is refused")
    assert time.monotonic() - began >= count * reach_connections.PAUSE


def test_data_in_both_directions_to_the_end() -> None:
    hub = Hub()
    hub.site.say(OPEN, 1, b"web.team:80")
    with hub.accept() as sock:
        hub.site.say(DATA, 1, b"question")
        assert sock.recv(100) == b"question"
        hub.site.say(END, 1)
        assert sock.recv(100) == b""
        sock.sendall(b"answer")
    eventually(lambda: (END, 1, b"") in hub.site.told, "the end")
    assert (hub.site.data(1), hub.site.has_closed(1), hub.targets[0].port) == (b"answer", False, 80)


@pytest.mark.parametrize("text", ["web.team:81", "db.team:80", "web.other:80", "", "web.team:80 ", "\x00"])
def test_a_site_reaches_only_what_the_pod_names(text: str) -> None:
    hub = Hub()
    hub.site.say(OPEN, 1, text.encode())
    eventually(lambda: hub.site.has_closed(1), "the connection is closed")
    assert hub.targets == [] and "not in the annotation" in hub.refused[0]
    hub.pod["metadata"]["annotations"][names.REACH] = "web.other:80"
    hub.site.say(OPEN, 2, b"web.other:80")
    eventually(lambda: hub.site.has_closed(2), "the connection is closed")
    assert hub.targets == [] and hub.refused[1] == "the policy does not allow it"
    hub.pod = None
    hub.site.say(OPEN, 3, b"web.team:80")
    eventually(lambda: hub.site.has_closed(3), "the connection is closed")


def test_a_slow_reader_holds_up_itself_alone() -> None:
    hub = Hub()
    for number in (1, 2):
        hub.site.say(OPEN, number, b"web.team:80")
    slow, fast = hub.accept(), hub.accept()
    with slow, fast:
        threading.Thread(target=slow.sendall, args=(bytes(10**6),), daemon=True).start()
        eventually(lambda: len(hub.site.data(1)) + len(hub.site.data(2)) == WINDOW, "a window of data")
        first = 1 if hub.site.data(1) else 2
        fast.sendall(b"x" * 100)
        eventually(lambda: len(hub.site.data(3 - first)) == 100, "the other one goes on")
        hub.site.say(CREDIT, first, NUMBER.pack(PIECE))
        eventually(lambda: len(hub.site.data(first)) == WINDOW + PIECE, "one piece more")


def test_a_pod_has_a_share_and_a_site_that_violates_the_protocol_loses_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach_connections, "MOST_CONNECTIONS", 16)
    hub = Hub()
    for number in range(1, 4):
        hub.site.say(OPEN, number, b"web.team:80")
    socks = [hub.accept(), hub.accept()]
    eventually(lambda: sum(map(hub.site.has_closed, range(4))) == 1, "the third one is refused")
    number = next(number for number in (1, 2, 3) if not hub.site.has_closed(number))
    for _ in range(WINDOW // PIECE * 2000):  # more than any socket buffers
        hub.site.say(DATA, number, bytes(PIECE))
    hub.thread.join(20)
    assert (hub.end, hub.site.is_closed) == ("the site violates the protocol", True)
    for sock in socks:
        with sock, pytest.raises(ConnectionResetError):
            while sock.recv(2**16):
                pass


def test_a_site_has_a_limited_number_of_connections() -> None:
    hub = Hub()
    hub.connections.accept = lambda *_: None  # type: ignore[method-assign]
    for number in range(MOST + 1):
        hub.site.say(OPEN, number, b"web.team:80")
    hub.thread.join(20)
    assert hub.end == "the site violates the protocol"


def test_the_policy_of_a_namespace() -> None:
    def made(**keys: Any) -> NamespacePolicy:
        return NamespacePolicy(namespaces=["team"], **keys)

    assert may_reach([], "team", {}, "team") and not may_reach([], "team", {}, "other")
    assert may_reach([made(reach_namespaces=["other"])], "team", {}, "other")
    assert not may_reach([made(reach_namespaces=["other"])], "team", {}, "third")
    assert may_reach([made(reach_namespaces=["*"])], "team", {}, "third")
    assert not may_reach([made(reach=False)], "team", {}, "team")
    # of a pod that a group has created, admission has checked who
    assert may_reach([made(groups=["g"], reach_namespaces=["other"]), made(reach=False)], "team", {}, "other")
    assert not may_reach([made(reach=False), made(groups=["g"], reach_namespaces=["other"])], "team", {}, "other")
