"""Listeners for exposed ports, and what happens to their connections."""

import errno
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from bridge.errors import SiteDownError, SiteRefusedError
from bridge.relay.multiplexer import close_with_reset
from cluster.polling import eventually
from cluster.ports import free_block
from controllers import forwarded_socket
from controllers.expose import exposed_connection, listeners
from controllers.expose.exposed_connection import ExposedConnections
from controllers.expose.listeners import Listeners
from tests.fakes.clock import FakeClock
from tests.fakes.local_connection import LocalConnections
from tests.fakes.socket_server import SocketServer

SIZE = 2**20


def pod(uid="u1", namespace="ns"):
    return {"metadata": {"namespace": namespace, "name": f"p-{uid}", "uid": uid}}


@contextmanager
def exposing(find, wanted, count=4, clock=None):
    """Run listeners; yield them."""
    first = free_block(count)
    options = {} if clock is None else {"clock": clock}
    made = Listeners("10.0.0.1", range(first, first + count), ExposedConnections(find).accept, **options)
    with exposing_with(made, wanted):
        yield made


@contextmanager
def exposing_with(made, wanted):
    """Run these listeners."""
    stopping = threading.Event()
    thread = threading.Thread(target=made.run, args=(stopping,), daemon=True)
    thread.start()
    assert made.update(wanted) == []
    yield
    made.close()
    stopping.set()
    thread.join(5)
    assert not thread.is_alive()


def echo(client):
    data = b""
    while piece := client.recv(2**16):
        data += piece
    client.sendall(data)


@pytest.fixture
def site():
    """A pool that connects to this machine, and a server there that sends back what it gets."""
    connections = LocalConnections()
    pool = SimpleNamespace(name="site-a", connections=connections)
    with SocketServer(echo) as server:
        yield SimpleNamespace(pool=pool, port=server.port, find=lambda *_: (pod(), pool), connections=connections)
    eventually(lambda: all(each.is_closed for each in connections.opened), "all connections are closed")
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("expose")], "no thread is left")


def exchange(port, data):
    """Send data, end this direction, and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client.recv(2**16):
            answer += piece
        return answer


def is_reset(port):
    """Whether a connection is reset, and does not just end."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            return client.recv(1) is None
    except ConnectionResetError:
        return True


def test_many_connections_at_once(site, caplog):
    key = ("u1", site.port)
    with caplog.at_level(logging.INFO), exposing(site.find, [(key, pod())]) as made:
        port = made.ports()[key]
        texts = [str(number).encode() * 1000 for number in range(50)]
        with ThreadPoolExecutor(50) as threads:
            assert list(threads.map(lambda text: exchange(port, text), texts)) == texts
        large = bytes(range(256)) * (SIZE // 256)
        assert exchange(port, large) == large
        ended = lambda: [vars(one) for one in caplog.records if one.msg == "exposed connection ended"]  # noqa: E731
        eventually(lambda: len(ended()) == 51)
        for part in ("ns/p-u1", "site-a", "127.0.0.1", str(SIZE), "closed by both sides"):
            assert part in str(ended()[-1])


@pytest.mark.parametrize("problem", [SiteDownError("silent"), SiteRefusedError("not allowed", reason="NotAllowed")])
def test_a_refusal_resets_the_connection(site, problem):
    site.connections.problem = problem
    with exposing(site.find, [(("u1", site.port), pod())]) as made:
        assert is_reset(made.ports()["u1", site.port])


def test_a_closed_port_resets_the_connection(site):
    closed = free_block(1)
    with exposing(site.find, [(("u1", closed), pod())]) as made:
        assert is_reset(made.ports()["u1", closed])


def test_a_site_that_is_lost_resets_the_connection(site):
    with (
        exposing(site.find, [(("u1", site.port), pod())]) as made,
        socket.create_connection(("127.0.0.1", made.ports()["u1", site.port]), timeout=20) as client,
    ):
        client.sendall(b"x")
        eventually(lambda: site.connections.opened)
        site.connections.opened[0].fail(SiteDownError("silent"))
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_client_that_resets_ends_the_connection(site):
    with exposing(site.find, [(("u1", site.port), pod())]) as made:
        client = socket.create_connection(("127.0.0.1", made.ports()["u1", site.port]), timeout=20)
        client.sendall(b"x")
        eventually(lambda: site.connections.opened)
        close_with_reset(client)
        eventually(lambda: site.connections.opened[0].is_closed)


@pytest.mark.parametrize("uid", ["u2", None])
def test_another_pod_of_the_same_name_is_not_reached(site, uid):
    found = None if uid is None else (pod(uid), site.pool)
    with exposing(lambda *_: found, [(("u1", site.port), pod())]) as made:
        assert is_reset(made.ports()["u1", site.port])
    assert site.connections.opened == []


def test_a_client_that_never_ends_is_closed_after_the_port(site, monkeypatch):
    monkeypatch.setattr(forwarded_socket, "HALF_OPEN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            exposing(site.find, [(("u1", port), pod())]) as made,
            socket.create_connection(("127.0.0.1", made.ports()["u1", port]), timeout=20) as client,
        ):
            served = server.accept()[0]
            served.sendall(b"bye")
            served.shutdown(socket.SHUT_WR)
            assert client.recv(10) == b"bye"
            eventually(lambda: site.connections.opened[0].is_closed)
            served.close()


def test_a_client_that_takes_nothing_holds_no_place_after_the_end_of_the_pod(monkeypatch):
    monkeypatch.setattr(forwarded_socket, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, pool = server.getsockname()[1], SimpleNamespace(name="site", connections=LocalConnections())
        connections, first = ExposedConnections(lambda *_: (pod(), pool)), free_block(1)
        made = Listeners("10.0.0.1", range(first, first + 1), connections.accept)
        with exposing_with(made, [(("u1", port), pod())]), socket.create_connection(("127.0.0.1", first), timeout=20):
            served = server.accept()[0]
            threading.Thread(target=lambda: suppressed(served.sendall, bytes(2**26)), daemon=True).start()
            time.sleep(1)  # it waits as long as the pod is there
            assert connections._shares.used == 1
            pool.connections.opened[0].close()
            eventually(lambda: not connections._shares.used)


def suppressed(call, *arguments):
    with suppress(OSError):
        call(*arguments)


@pytest.mark.parametrize(("quiet", "seconds", "goes_on"), [(0.5, 20, True), (0.5, 0.7, False)])
def test_a_drain_serves_old_and_new_connections_until_none_is_left(site, monkeypatch, quiet, seconds, goes_on):
    monkeypatch.setattr(exposed_connection, "QUIET", quiet)
    connections, first = ExposedConnections(site.find), free_block(1)
    made = Listeners("10.0.0.1", range(first, first + 1), connections.accept)
    with exposing_with(made, [(("u1", site.port), pod())]), ThreadPoolExecutor(1) as threads:
        with socket.create_connection(("127.0.0.1", first), timeout=20) as old:
            old.sendall(b"x")
            eventually(lambda: connections._shares.used)
            named = [True]
            drain = threads.submit(connections.drain, seconds, lambda: named[0])
            if not goes_on:
                drain.result(5)
                return
            with pytest.raises(TimeoutError):
                drain.result(2 * quiet)
            assert exchange(first, b"new") == b"new"
            old.shutdown(socket.SHUT_WR)
            assert old.recv(2) == b"x"
        with pytest.raises(TimeoutError):
            drain.result(2 * quiet)
        named[0] = False
        drain.result(5)


def test_a_pod_has_a_share_of_the_connections(site, monkeypatch):
    monkeypatch.setattr(exposed_connection, "MOST_CONNECTIONS", 16)
    with exposing(site.find, [(("u1", site.port), pod())]) as made:
        port = made.ports()["u1", site.port]
        held = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(2)]
        eventually(lambda: len(site.connections.opened) == 2)
        assert is_reset(port)
        for client in held:
            client.close()
        eventually(lambda: all(each.is_closed for each in site.connections.opened))
        eventually(lambda: exchange_or_none(port) == b"again", "its places are free again")


def exchange_or_none(port):
    try:
        return exchange(port, b"again")
    except OSError:
        return None


def test_a_closed_port_rests_and_a_taken_one_is_left_out(site):
    clock = FakeClock()
    with exposing(site.find, [(("u1", 80), pod())], clock=clock) as made:
        first = made.ports()["u1", 80]
        assert made.update([]) == [] and made.ports() == {}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first), timeout=20)
        numbers = []
        for number in range(3):
            key = (f"v{number}", 80)
            assert made.update([(key, pod(key[0]))]) == []
            numbers.append(made.ports()[key])
        assert sorted(numbers) == [first + 1, first + 2, first + 3]
        ((_, text),) = made.update([(("w", 80), pod("w"))])
        assert "all ports of pools.expose.ports are in use" in text
        clock.advance(listeners.REST)
        assert len(made.update([(("w", 80), pod("w"))], frozenset(range(first, first + 4)))) == 1
        assert made.update([(("w", 80), pod("w"))], frozenset({first})) == []
        assert made.ports()["w", 80] != first


def test_a_namespace_has_a_share_of_the_ports(site):
    wanted = [((f"u{number}", 80), pod(f"u{number}")) for number in range(3)]
    with exposing(site.find, wanted[:2]) as made:
        ((refused, text),) = made.update(wanted)
        assert refused["metadata"]["uid"] == "u2" and "exposed ports of namespace 'ns'" in text
        assert made.update([*wanted[:2], (("x", 80), pod("x", "other"))]) == []


def test_a_port_in_use_is_left_out(site):
    first = free_block(2)
    with socket.create_server(("", first)):
        made = Listeners("10.0.0.1", range(first, first + 2), ExposedConnections(site.find).accept)
        assert made.update([(("u1", 80), pod())]) == []
        assert made.ports()["u1", 80] == first + 1
        made.close()


def test_no_file_descriptor_pauses_the_thread(site, monkeypatch):
    """Otherwise the thread would use a whole core: the connection that it can't accept still waits."""
    with exposing(site.find, [(("u1", site.port), pod())]) as made:
        paused = threading.Event()
        crowded = SimpleNamespace(accept=raising(OSError(errno.EMFILE, "too many")))
        made._accept(crowded, listeners.Target("ns", "p", "u1", 80), SimpleNamespace(wait=lambda _: paused.set()))
        assert paused.is_set()


def raising(error):
    def call():
        raise error

    return call
