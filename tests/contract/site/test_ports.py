"""Connections to ports of running pods (``kubectl port-forward``), over a real nats-server."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteError, SiteRefusedError
from bridge.protocol.nats.request_client import PoolClient
from bridge.relay.pod_processes import acceptors
from cluster.polling import eventually
from cluster.ports import free_block
from tests import processes
from tests.contract.site import jobs
from tests.contract.site.conftest import Site, new_place

pytestmark = pytest.mark.real

LOTS = 5 * 2**20
ECHO = """
import socket, sys, threading
def serve(sock):
    while data := sock.recv(65536):
        sock.sendall(data)
    sock.sendall(b'.end')
    sock.close()
for family, host, port in ((socket.AF_INET, '127.0.0.1', int(sys.argv[1])), (socket.AF_INET6, '::1', int(sys.argv[2]))):
    listener = socket.socket(family)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, 65536)
    listener.bind((host, port))
    listener.listen(200)
    def accept(listener=listener):
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept).start()
print('listening', flush=True)
"""
"""Echoes what it receives, and writes ``.end`` after the end of it. It buffers little, so that its client must wait."""


@pytest.fixture(scope="module")
def site(nats_url: str) -> Any:
    """One site for all tests."""
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n[limits]\nallow_ports = true\n'
    with new_place() as place, Site(place, nats_url, "local", text) as made:
        yield made


@pytest.fixture(scope="module")
def echo(site: Any) -> Iterator[tuple[str, int]]:
    """A pod that serves two ports, the first on 127.0.0.1 and the second on ::1."""
    port = free_block(2)
    uid = jobs.submit_pod(site, f'exec {sys.executable} -c "$0" {port} {port + 1}', args=[ECHO])
    eventually(lambda: acceptors(port + 1, "::1"), "the pod listens")
    yield uid, port
    jobs.cancel(site, uid)


def everything(connection: Any) -> bytes:
    """Return all that the port sends, and close the connection."""
    received = b""
    with contextlib.closing(connection):
        while data := connection.receive():
            received += data
    return received


def talk(site: Any, job: str, port: int, sent: bytes) -> bytes:
    connection = site.client.connect(job, port)
    threading.Thread(target=lambda: (connection.send(sent), connection.end_input()), daemon=True).start()
    return everything(connection)


def connectors(job: str) -> list[int]:
    """Return those of a pod: other tests have some, too."""
    return [pid for pid in processes.with_word("alone") if job in os.readlink(f"/proc/{pid}/cwd")]


def test_data_goes_in_both_directions_and_each_ends_alone(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    assert talk(site, job, port, b"hello") == b"hello.end"
    assert talk(site, job, port + 1, b"IPv6") == b"IPv6.end"
    data = os.urandom(LOTS)
    assert talk(site, job, port, data) == data + b".end"


def test_many_connections_share_one_process(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    texts = [str(number).encode() * 50_000 for number in range(50)]
    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(lambda text: talk(site, job, port, text), texts)) == [text + b".end" for text in texts]
    assert len(connectors(job)) == 1


def test_a_reader_that_pauses_delays_no_other_connection(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    paused = site.client.connect(job, port)
    data = os.urandom(8 * 2**20)  # more than the 4 MiB that the kernel may hold on the way to the pod
    sender = threading.Thread(target=paused.send, args=(data,))
    sender.start()
    assert talk(site, job, port, b"another") == b"another.end"
    assert sender.is_alive()
    received = b""
    while len(received) < len(data):
        received += paused.receive()
    sender.join()
    paused.close()
    assert received == data


def test_only_ports_of_the_pod_are_reached(site: Any, echo: tuple[str, int]) -> None:
    """Neither a service of the machine with the same user, nor another pod's port."""
    job, port = echo
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        own = server.getsockname()[1]
        with pytest.raises(SiteRefusedError, match=f"connection refused: .* listens on port {own}"):
            everything(site.client.connect(job, own))
        with pytest.raises(TimeoutError):
            server.accept()
    with pytest.raises(SiteRefusedError, match="connection refused"):
        everything(site.client.connect(job, free_block(1)))
    other = jobs.submit_pod(site, "sleep 300")
    with pytest.raises(SiteRefusedError, match="connection refused"):
        everything(site.client.connect(other, port))
    jobs.cancel(site, other)


def test_connections_that_are_cut_at_random_leave_none(site: Any, echo: tuple[str, int], long: bool) -> None:
    job, port = echo

    def cut(number: int) -> None:
        chance = random.Random(number)
        try:
            connection = site.client.connect(job, port)
        except SiteError:
            return
        if chance.random() < 0.7:
            connection.send(chance.randbytes(chance.choice((1, 1000, 40_000))))
            if chance.random() < 0.5:
                connection.receive()
        if chance.random() < 0.3:
            connection.end_input()
        connection.close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(cut, range(1000 if long else 200)))
    # that of the pod, of the connector, and of the client
    eventually(lambda: not established(port), "no connection is left")
    assert not site.client._streams._streams
    assert talk(site, job, port, b"still") == b"still.end"
    pid = site.processes[-1].pid
    eventually(lambda: b"session-" not in names(pid), "no thread is left")


def established(port: int) -> list[str]:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if f":{port:04X} " in line and line.split()[3] == "01"]


def names(pid: int) -> bytes:
    """Return the names of the threads of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # the thread has just ended
            found.append(path.read_bytes())
    return b" ".join(found)


def test_the_end_of_the_pod_ends_the_connection(site: Any) -> None:
    port = free_block(2)
    uid = jobs.submit_pod(site, f'exec {sys.executable} -c "$0" {port} {port + 1}', args=[ECHO])
    eventually(lambda: acceptors(port + 1, "::1"), "the pod listens")
    connection = site.client.connect(uid, port)
    connection.send(b"x")
    assert connection.receive() == b"x"
    before = connectors(uid)
    jobs.cancel(site, uid, forget=False)
    with contextlib.suppress(SiteRefusedError):
        assert not everything(connection)
    eventually(lambda: len(connectors(uid)) < len(before), "no connector is left")
    with pytest.raises(SiteRefusedError, match="no container of the pod is running"):
        site.client.connect(uid, port)
    jobs.cancel(site, uid)


def test_a_killed_submitter_leaves_no_connector(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    connection = site.client.connect(job, port)
    connection.send(b"x")
    assert connection.receive() == b"x"
    site.kill(site.processes[-1])
    eventually(lambda: not connectors(job), "no connector is left")
    eventually(lambda: not established(port), "no connection is left")
    connection.close()
    site.start()
    assert talk(site, job, port, b"again") == b"again.end"


def test_a_connector_that_is_killed_or_stopped_is_replaced(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    connection = site.client.connect(job, port)
    connection.send(b"x")
    assert connection.receive() == b"x"
    (pid,) = connectors(job)
    os.kill(pid, 9)
    with pytest.raises(SiteRefusedError, match="the connector has ended"):
        everything(connection)
    assert talk(site, job, port, b"again") == b"again.end"


def test_refusals(site: Any, echo: tuple[str, int]) -> None:
    job, port = echo
    with pytest.raises(SiteRefusedError, match="no job"):
        site.client.connect(jobs.uid(), port)
    stranger = PoolClient(site.link, "bridge.v1", site.pool, "another-cluster")
    with pytest.raises(SiteRefusedError, match="another cluster"):
        stranger.connect(job, port)
    site.config.write_text(site.config.read_text().replace("allow_ports = true", ""))
    eventually(lambda: site.announced and not site.announced[-1].ports, "announced")
    with pytest.raises(SiteRefusedError, match=r"limits\.allow_ports is false"):
        site.client.connect(job, port)
