"""The transports of NATS: TCP, TCP with TLS, WebSocket with TLS, and WebSocket behind an nginx that terminates TLS."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.errors import SiteDownError, SiteError, SiteTooLargeError, SiteUnknownOutcomeError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats import nats_session
from bridge.protocol.nats.messages import SubmitMessage
from bridge.protocol.nats.nats_files import Written, write
from bridge.protocol.nats.nats_server_config import Listeners
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Server
from bridge.protocol.nats.request_table import SUBMIT
from cluster.polling import eventually
from tests.contract.nats.servers import (
    OWNER,
    PREFIX,
    NatsServer,
    Nginx,
    Site,
    World,
    certificate,
    concurrently,
    free_port,
)

pytestmark = pytest.mark.real

SUBMISSION = SubmitMessage(namespace="ns", name="pod", script="x" * 8192)
TRANSPORTS = ("tcp", "tls", "wss", "nginx")


@dataclass
class Transport:
    """How sites reach the server; the hub always takes TCP."""

    kind: str
    server: NatsServer
    written: Written
    url: str
    hub_url: str
    ca: Path | None
    websocket: int
    nginx: Nginx | None = None

    def start(self) -> None:
        self.server.start(self.websocket)


def websocket_location(upstream: int) -> str:
    """Return the location of an nginx that forwards WebSocket connections to a port of this machine."""
    return f"""location /nats {{
      proxy_pass http://127.0.0.1:{upstream}/;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection "upgrade";
      proxy_set_header Host $host;
      proxy_read_timeout 1h;
      proxy_send_timeout 1h;
      proxy_buffering off;
    }}"""


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, folder: Path) -> Iterator[Transport]:
    kind: str = request.param
    ca, cert, key = certificate(folder, "localhost")
    websocket = free_port()
    secure = kind in ("tls", "wss")
    listeners = Listeners(
        websocket=f"127.0.0.1:{websocket}", certificate=str(cert) if secure else "", key=str(key) if secure else ""
    )
    written = write(folder / "nats", PREFIX, ["alpha"], listeners)
    server = NatsServer(folder, config_file=written.servers[0])
    nginx = Nginx(folder, websocket_location(websocket), cert, key) if kind == "nginx" else None
    urls = {
        "tcp": server.url,
        "tls": f"tls://localhost:{server.port}",
        "wss": f"wss://localhost:{websocket}",
        "nginx": f"wss://localhost:{nginx.port}/nats" if nginx else "",
    }
    hub_url = urls["tls"] if secure else server.url
    made = Transport(kind, server, written, urls[kind], hub_url, ca if kind != "tcp" else None, websocket, nginx)
    made.start()
    yield made
    server.kill()
    if nginx is not None:
        nginx.stop()


def ends(transport: Transport, world: World) -> tuple[Site, PoolClient]:
    secure = transport.hub_url.startswith("tls")
    hub = world.link(
        transport.hub_url,
        "hub",
        seed_file=transport.written.hubs["hub"].secret,
        inbox_prefix="_INBOX.hub",
        ca_file=transport.ca if secure else None,
    )
    link = world.link(transport.url, "site", seed_file=transport.written.pools["alpha"], ca_file=transport.ca)
    assert hub.max_payload == link.max_payload == 8 * 1024 * 1024
    site = Site()
    Server(link, PREFIX, "alpha", site)
    client = PoolClient(hub, PREFIX, "alpha", OWNER)
    eventually(lambda: works(client), timeout=20)
    return site, client


def works(client: PoolClient) -> bool:
    try:
        client.call(SUBMIT, "uid-0", SUBMISSION, timeout=5)
    except SiteError:
        return False
    return True


def test_the_protocol_works_and_comes_back_after_a_restart(transport: Transport, world: World) -> None:
    site, client = ends(transport, world)
    large = SUBMISSION.model_copy(update={"script": "y" * 3_000_000})
    client.call(SUBMIT, "uid-1", large)
    assert site.submits[-1][1].script == large.script
    site.log = bytes(range(256)) * 8_000
    with contextlib.closing(client.logs("uid-1", LogOptions(container="main"))) as reader:
        assert b"".join(reader) == site.log
    transport.server.kill()
    with pytest.raises((SiteDownError, SiteUnknownOutcomeError)):
        client.call(SUBMIT, "uid-2", SUBMISSION)
    transport.start()
    eventually(lambda: works(client), timeout=20)
    assert [job for job, _ in site.submits if job == "uid-2"] == []
    with contextlib.closing(client.logs("uid-1", LogOptions(container="main"))) as reader:
        assert b"".join(reader) == site.log


def test_three_megabytes_that_do_not_compress(transport: Transport, world: World) -> None:
    site, client = ends(transport, world)
    noise = random.Random(1).randbytes(3_000_000).hex()  # compresses to half its size
    client.call(SUBMIT, "uid-1", SUBMISSION.model_copy(update={"script": noise}))
    assert site.submits[-1][1].script == noise
    with pytest.raises(SiteTooLargeError):
        client._link.publish(f"{PREFIX}.alpha.ack.c1.x", b"x" * (8 * 1024 * 1024 + 1))


def test_concurrent_submits_arrive_once_each(transport: Transport, world: World) -> None:
    site, client = ends(transport, world)
    site.submits.clear()
    concurrently(1000, lambda number: client.call(SUBMIT, f"uid-{number}", SUBMISSION))
    assert sorted(job for job, _ in site.submits) == sorted(f"uid-{number}" for number in range(1000))


def test_a_frozen_server_is_noticed(transport: Transport, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_session, "PING_INTERVAL", 1)
    _, client = ends(transport, world)
    link = client._link
    transport.server.signal(19)
    eventually(lambda: not link.connected, timeout=10)
    with pytest.raises(SiteDownError):
        link.request("t.x", b"", 5)
    transport.server.signal(18)
    eventually(lambda: works(client), timeout=20)


@pytest.mark.parametrize("transport", ["tls", "wss", "nginx"], indirect=True)
def test_a_certificate_of_nobody_known_is_refused(transport: Transport, world: World) -> None:
    link = world.link(transport.url, wait=False, seed_file=transport.written.pools["alpha"])
    eventually(lambda: "certificate verify failed" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("transport", ["tls", "wss", "nginx"], indirect=True)
def test_a_certificate_for_another_name_is_refused(transport: Transport, world: World) -> None:
    url = transport.url.replace("localhost", "127.0.0.1")
    link = world.link(url, wait=False, seed_file=transport.written.pools["alpha"], ca_file=transport.ca)
    eventually(lambda: "certificate" in (link.problem() or "") and "127.0.0.1" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("transport", ["tcp"], indirect=True)
def test_tls_is_never_given_up_silently(transport: Transport, world: World) -> None:
    """A tls:// address whose server speaks in the clear: a man in the middle would do just that."""
    url = transport.url.replace("nats://", "tls://")
    link = world.link(url, wait=False, seed_file=transport.written.pools["alpha"])
    eventually(lambda: "secure connection not available" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("transport", ["nginx"], indirect=True)
def test_nginx_stopped_and_started_again(transport: Transport, world: World) -> None:
    _, client = ends(transport, world)
    assert transport.nginx is not None
    transport.nginx.stop()
    eventually(lambda: not works(client), timeout=20)
    transport.nginx.start()
    eventually(lambda: works(client), timeout=20)
