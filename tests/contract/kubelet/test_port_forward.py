"""``kubectl port-forward``, through a real API server, to ports of this machine."""

from __future__ import annotations

import http.client
import http.server
import logging
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import kubernetes
import pytest
from kubernetes.stream import portforward

from bridge.errors import SiteUnknownOutcomeError
from cluster.polling import eventually
from cluster.ports import free_block
from tests.contract.kubelet.conftest import NAMESPACE, Site
from tests.fakes.local_connection import LocalConnections
from tests.fakes.web_server import Handler, serving

pytestmark = pytest.mark.real
FORMS = {"websocket": "true", "spdy": "false"}
"""What ``kubectl`` speaks to the API server, which speaks SPDY to a kubelet that declares no WebSockets."""
SIZE = 3 * 2**20


class Echo(Handler):
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(content, headers={"Content-Length": str(len(content))})


@pytest.fixture
def server() -> Iterator[int]:
    with serving(Echo) as made:
        yield made.server_port


@pytest.fixture
def connections(site: Site) -> Iterator[LocalConnections]:
    site.pool.connections = made = LocalConnections()
    yield made
    site.pool.connections = None
    eventually(lambda: all(each.is_closed for each in made.opened), "all connections are closed")
    eventually(lambda: len(site.kubelet._streams) == 0)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", FORMS[request.param])
    return str(request.param)


@contextmanager
def forwarding(site: Site, name: str, port: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run kubectl; yield its local port."""
    command = site.kubectl_command("port-forward", f"pod/{name}", f":{port}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+) ->", line)
        assert found, line + process.stderr.read()
        yield int(found[1]), process
        process.terminate()


def post(port: int, content: bytes) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/", content)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def test_requests_one_after_the_other_and_many_at_once(
    site: Site, connections: LocalConnections, server: int, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = site.pod("forward-" + form)
    large = bytes(range(256)) * (SIZE // 256)

    def told() -> list[dict[str, object]]:
        return [vars(record) for record in caplog.records if record.msg == "forwarded connection ended"]

    with caplog.at_level(logging.INFO):
        with forwarding(site, name, server) as (local, _):
            assert post(local, large) == large
            texts = [str(number).encode() * 10_000 for number in range(50)]
            with ThreadPoolExecutor(50) as threads:
                assert list(threads.map(lambda text: post(local, text), texts)) == texts
        eventually(lambda: "port-forward ended" in caplog.text and len(told()) == 51)
    for part in (f"{NAMESPACE}/{name}", "pool-one", "kube-apiserver", str(server)):
        assert part in str(told()[0])


def test_each_direction_ends_alone(site: Site, connections: LocalConnections, form: str) -> None:
    name = site.pod()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            forwarding(site, name, port) as (local, _),
            socket.create_connection(("127.0.0.1", local), timeout=20) as client,
        ):
            client.sendall(b"all")
            client.shutdown(socket.SHUT_WR)
            listener.settimeout(20)
            server = listener.accept()[0]
            received = b""
            while data := server.recv(100):
                received += data
            assert received == b"all"
            server.sendall(b"answer")
            server.close()
            answer = b""
            while data := client.recv(100):
                answer += data
            assert answer == b"answer"


def test_errors_are_told(site: Site, connections: LocalConnections, form: str) -> None:
    name, port = site.pod(), free_block(1)
    with forwarding(site, name, port) as (local, process):
        with socket.create_connection(("127.0.0.1", local), timeout=20) as client:
            assert client.recv(1) == b""
        assert process.stderr is not None
        text = f"error forwarding port {port} to pod {NAMESPACE}/{name}, uid {site.uid(name)}: connection refused"
        assert text in process.stderr.readline()


def test_a_site_that_is_lost_is_told(site: Site, connections: LocalConnections, server: int, form: str) -> None:
    name = site.pod()
    with (
        forwarding(site, name, server) as (local, process),
        socket.create_connection(("127.0.0.1", local), timeout=20) as client,
    ):
        eventually(lambda: connections.opened)
        connections.opened[0].fail(SiteUnknownOutcomeError("pool pool-one has fallen silent"))
        assert client.recv(1) == b""
        assert process.stderr is not None
        assert "pool pool-one has fallen silent" in process.stderr.readline()


def test_a_client_that_is_killed_closes_its_connections(
    site: Site, connections: LocalConnections, server: int, form: str
) -> None:
    name = site.pod()
    with (
        forwarding(site, name, server) as (local, process),
        socket.create_connection(("127.0.0.1", local)),
        socket.create_connection(("127.0.0.1", local)),
    ):
        eventually(lambda: len(connections.opened) == 2)
        process.kill()
        eventually(lambda: all(each.is_closed for each in connections.opened))


def test_the_python_client(site: Site, connections: LocalConnections, server: int) -> None:
    """Its WebSocket goes through the API server to the kubelet."""
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(site.cluster.kubeconfig)))
    name, closed = site.pod(), free_block(1)
    ports = portforward(api.connect_get_namespaced_pod_portforward, name, NAMESPACE, ports=f"{server},{closed}")
    large = bytes(range(256)) * (SIZE // 256)
    request = f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(large)}\r\n\r\n".encode()
    with closing(ports), closing(ports.socket(server)) as client:
        client.settimeout(30)
        sender = threading.Thread(target=client.sendall, args=(request + large,))
        sender.start()
        answer = b""
        while data := client.recv(2**16):
            answer += data
        sender.join()
    assert answer.partition(b"\r\n\r\n")[2] == large
    text = f"error forwarding port {closed} to pod {NAMESPACE}/{name}, uid {site.uid(name)}: connection refused"
    assert ports.error(closed).startswith(text) and not ports.error(server)
