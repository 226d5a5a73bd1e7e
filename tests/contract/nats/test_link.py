"""The link on a real nats-server that is killed, stopped and started again."""

import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.config.pools import NatsSection
from bridge.errors import ConfigError, SiteDownError, SiteTooLargeError, SiteUnknownOutcomeError
from bridge.protocol.nats import nats_session
from bridge.protocol.nats.nats_link import Link
from cluster.polling import eventually
from tests.contract.nats.servers import NatsServer, World, free_port
from tests.fakes.blackhole_proxy import BlackholeProxy

pytestmark = pytest.mark.real


def echo(link: Link, seen: list[bytes], subject: str = "t.echo") -> None:
    def handle(_subject: str, data: bytes, respond: Any) -> None:
        seen.append(data)
        if respond is not None:
            respond(data)

    link.subscribe(subject, handle)


def answered(link: Link, subject: str, data: bytes) -> bool:
    try:
        return link.request(subject, data, 2) == data
    except SiteDownError:
        return False


@pytest.mark.parametrize("subject", ["", "two words", "test.a\r\nPUB test.b 0\r\n", "tab\t"])
def test_what_is_no_subject_is_not_sent(server: NatsServer, world: World, subject: str) -> None:
    hub = world.link(server.url)
    eventually(lambda: hub.connected)
    with pytest.raises(ValueError, match="is not a subject"):
        hub.publish(subject, b"")
    with pytest.raises(ValueError, match="is not a subject"):
        hub.request(subject, b"", 1)


def test_starts_without_a_server_and_connects_when_there_is_one(folder: Path, world: World) -> None:
    server = NatsServer(folder)
    begun = time.monotonic()
    link = world.link(server.url, wait=False)
    with pytest.raises(SiteDownError):
        link.publish("t.x", b"")
    assert time.monotonic() - begun < 1
    eventually(lambda: "Connect call failed" in (link.problem() or ""))
    server.start()
    try:
        eventually(lambda: link.connected)
        assert link.problem() is None
    finally:
        server.kill()


def test_several_servers_are_tried_in_turn(server: NatsServer, world: World) -> None:
    link = Link(NatsSection(servers=[f"nats://127.0.0.1:{free_port()}", server.url]), "test")
    link.start(world.supervisor)
    eventually(lambda: link.connected)


def test_nats_11_a_request_made_while_disconnected_fails_at_once_and_never_arrives(
    server: NatsServer, world: World
) -> None:
    site, hub = world.link(server.url), world.link(server.url)
    seen: list[bytes] = []
    echo(site, seen)
    eventually(lambda: answered(hub, "t.echo", b"before"))
    changes: list[bool] = []
    hub.watch(changes.append)
    server.kill()
    failures = 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        begun = time.monotonic()
        try:
            hub.request("t.echo", b"meanwhile", 10)
        except (SiteDownError, SiteUnknownOutcomeError):
            failures += 1
        assert time.monotonic() - begun < 1
        time.sleep(0.01)
    assert failures > 50
    server.start()
    eventually(lambda: hub.connected and site.connected)
    eventually(lambda: answered(hub, "t.echo", b"after"))
    time.sleep(1)
    assert set(seen) == {b"before", b"after"}
    eventually(lambda: changes == [False, True])


def test_kill_and_restart_many_times_under_load_nothing_is_delivered_twice(server: NatsServer, world: World) -> None:
    site, hub = world.link(server.url), world.link(server.url)
    seen: list[bytes] = []
    echo(site, seen)
    outcomes: dict[bytes, str] = {}
    stop = threading.Event()

    def ask(number: int) -> None:
        count = 0
        while not stop.is_set():
            data = b"%d-%d" % (number, count)
            count += 1
            try:
                hub.request("t.echo", data, 5)
                outcomes[data] = "done"
            except SiteDownError:
                outcomes[data] = "down"
                time.sleep(0.002)
            except SiteUnknownOutcomeError:
                outcomes[data] = "unknown"

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        eventually(lambda: hub.connected and site.connected, timeout=20)
        time.sleep(0.5)
        server.kill()
        time.sleep(0.5)
        server.start()
    eventually(lambda: hub.connected and site.connected, timeout=20)
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen))
    assert {data for data, outcome in outcomes.items() if outcome == "done"} <= set(seen)
    assert not {data for data, outcome in outcomes.items() if outcome == "down"} & set(seen)
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("done", "down", "unknown")}
    print(counts)
    assert counts["done"] > 100
    assert counts["down"] > 10


def test_a_stopped_server_means_unknown_outcome_and_a_connection_that_mends(server: NatsServer, world: World) -> None:
    site, hub = world.link(server.url), world.link(server.url)
    seen: list[bytes] = []
    echo(site, seen)
    eventually(lambda: answered(hub, "t.echo", b"before"))
    server.signal(signal.SIGSTOP)
    with pytest.raises(SiteUnknownOutcomeError):
        hub.request("t.echo", b"frozen", 1)
    server.signal(signal.SIGCONT)
    eventually(lambda: answered(hub, "t.echo", b"after"))


def test_a_connection_that_takes_nothing_more_does_not_fill_memory(
    server: NatsServer, world: World, monkeypatch: Any
) -> None:
    monkeypatch.setattr(nats_session, "MOST_BUFFERED", 4 * 1024 * 1024)
    hub = world.link(server.url)
    server.signal(signal.SIGSTOP)
    with pytest.raises(SiteDownError, match="accepts no data"):
        for _ in range(100):
            hub.publish("t.x", b"x" * 1_000_000)
            time.sleep(0.01)
    server.signal(signal.SIGCONT)
    eventually(lambda: hub._session is not None and hub._session._unsent == 0)
    hub.publish("t.x", b"again")


def test_a_process_ends_while_its_connection_takes_nothing_more(
    server: NatsServer, world: World, monkeypatch: Any
) -> None:
    monkeypatch.setattr(nats_session, "_CLOSE_TIMEOUT", 0.3)
    hub = world.link(server.url)
    server.signal(signal.SIGSTOP)
    for _ in range(20):
        hub.publish("t.x", b"x" * 1_000_000)
    world.close()
    server.signal(signal.SIGCONT)


def test_a_message_larger_than_the_server_takes_is_not_sent(server: NatsServer, world: World) -> None:
    hub = world.link(server.url)
    with pytest.raises(SiteTooLargeError, match="1300000"):
        hub.request("t.x", b"x" * 1_300_000, 5)
    with pytest.raises(SiteTooLargeError):
        hub.publish("t.x", b"x" * 1_300_000)
    with pytest.raises(SiteDownError):  # the connection still stands: nobody listens
        hub.request("t.x", b"", 5)


def test_a_handler_that_fails_ends_nothing(server: NatsServer, world: World) -> None:
    site, hub = world.link(server.url), world.link(server.url)
    calls: list[bytes] = []

    def broken(_subject: str, data: bytes, _respond: Any) -> None:
        calls.append(data)
        raise RuntimeError("a bug")

    site.subscribe("t.thread", broken)
    site.subscribe("t.loop", broken, threads=0)
    site.every(0.1, lambda: 1 / 0)
    echo(site, [])
    eventually(lambda: answered(hub, "t.echo", b"x"))
    for _ in range(3):
        hub.publish("t.thread", b"thread")
        hub.publish("t.loop", b"loop")
    eventually(lambda: len(calls) == 6)
    assert answered(hub, "t.echo", b"still there")


def test_malformed_headers_and_subjects_from_another_client_end_nothing(server: NatsServer, world: World) -> None:
    hub = world.link(server.url)
    seen: list[str] = []
    hub.subscribe("t.>", lambda subject, _data, _respond: seen.append(subject))
    eventually(lambda: hub.connected)
    time.sleep(0.2)
    session_before = hub._session
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n')
        time.sleep(0.2)
        for header in (
            b"NATS/1.0",
            b"\xff\xfe",
            b"NATS/1.0 \xff\xff\xff\r\n\r\n",
            b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
            b"x",
        ):
            raw.sendall(b"HPUB t.head %d %d\r\n" % (len(header), len(header) + 2) + header + b"hi\r\n")
        raw.sendall(b"PUB t.\xff\xfe 2\r\nhi\r\nPUB t.end 0\r\n\r\n")
        eventually(lambda: "t.end" in seen)
    assert len(seen) == 7
    assert hub._session is session_before


def test_a_slow_handler_loses_nothing_until_the_limit_and_counts_what_it_loses(
    server: NatsServer, world: World
) -> None:
    site, hub = world.link(server.url), world.link(server.url)
    gate, begun, seen = threading.Event(), threading.Event(), []

    def slow(_subject: str, data: bytes, _respond: Any) -> None:
        begun.set()
        gate.wait(20)
        seen.append(data)

    subscription = site.subscribe("t.slow", slow)
    subscription.most_messages = 50
    echo(site, [], "t.flush")
    eventually(lambda: answered(hub, "t.flush", b""))
    hub.publish("t.slow", b"0")
    assert begun.wait(10)
    for number in range(1, 60):
        hub.publish("t.slow", b"%d" % number)
    eventually(lambda: site.dropped == 9)  # one is with the handler, fifty wait
    gate.set()
    eventually(lambda: len(seen) == 51)
    assert seen == [b"%d" % number for number in range(51)]


def test_half_open_link_is_closed_and_another_made(server: NatsServer, world: World, monkeypatch: Any) -> None:
    """A proxy that drops all data while connections stay open and data waits to be sent."""
    monkeypatch.setattr(nats_session, "PING_INTERVAL", 1)
    proxy = BlackholeProxy(server.port)
    try:
        hub = world.link(f"nats://127.0.0.1:{proxy.port}")
        proxy.cut()
        for _ in range(20):
            hub.publish("t.x", b"x" * 500_000)
        eventually(lambda: not hub.connected, timeout=10)
        proxy.mend()
        eventually(lambda: hub.connected, timeout=20)
    finally:
        proxy.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"servers": ()},
        {"servers": ("http://x",)},
        {"servers": ("nats://me:secret@x",)},
        {"servers": ("nats://x",), "ca_file": Path("ca")},
        {"servers": ("nats://x",), "user": "a"},
        {"servers": ("nats://x",), "user": "a", "password_file": Path("p"), "seed_file": Path("s")},
    ],
)
def test_settings_that_can_not_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Link(NatsSection.model_construct(**bad), "x")
    assert "secret" not in str(caught.value)


def test_a_drained_subscription_hands_over_to_the_next_without_loss(server: NatsServer, world: World) -> None:
    hub, site = world.link(server.url), world.link(server.url)
    seen: set[int] = set()
    entered = threading.Event()

    def slow_at_first(_subject: str, data: bytes, _respond: Any) -> None:
        if not entered.is_set():
            entered.set()
            time.sleep(0.5)  # the server has all messages in its queue for this connection meanwhile
        seen.add(int(data))

    before = hub.subscribe("t.n", slow_at_first, threads=0)
    echo(hub, [])
    eventually(lambda: answered(site, "t.echo", b"x"))
    for number in range(5000):
        site.publish("t.n", b"%d" % number)
    assert entered.wait(5)
    hub.subscribe("t.n", slow_at_first, threads=0)
    before.drain()
    eventually(lambda: len(hub._session._client.routes) == 2)
    site.publish("t.n", b"5000")
    eventually(lambda: 5000 in seen)
    assert len(seen) == 5001
