"""The roads to a nats-server: TCP, TCP with TLS, WebSocket with TLS, WebSocket behind an nginx that terminates TLS."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.errors import SiteDownError, SiteError, SiteTooLargeError, SiteUnknownOutcomeError
from bridge.wire import session
from bridge.wire.client import PoolClient
from bridge.wire.messages import Logs, Submit
from bridge.wire.nats_files import Written, write
from bridge.wire.nats_server_config import Listeners
from bridge.wire.server import serve
from tests.contract.wire.servers import PREFIX, NatsServer, Nginx, Site, World, certificate, eventually, free_port

OWNER = "c1"

pytestmark = pytest.mark.real

SUBMIT = Submit(namespace="ns", name="pod", script="x" * 8192)
ROADS = ("tcp", "tls", "wss", "nginx")


@dataclass
class Road:
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


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest, folder: Path) -> Iterator[Road]:
    kind: str = request.param
    ca, cert, key = certificate(folder, "localhost")
    websocket = free_port()
    secure = kind in ("tls", "wss")
    listeners = Listeners(
        websocket=f"127.0.0.1:{websocket}", certificate=str(cert) if secure else "", key=str(key) if secure else ""
    )
    written = write(folder / "nats", PREFIX, ["alpha"], listeners)
    server = NatsServer(folder, config_file=written.servers[0])
    nginx = Nginx(folder, websocket, cert, key) if kind == "nginx" else None
    urls = {
        "tcp": server.url,
        "tls": f"tls://localhost:{server.port}",
        "wss": f"wss://localhost:{websocket}",
        "nginx": f"wss://localhost:{nginx.port}/nats" if nginx else "",
    }
    hub_url = urls["tls"] if secure else server.url
    made = Road(kind, server, written, urls[kind], hub_url, ca if kind != "tcp" else None, websocket, nginx)
    made.start()
    yield made
    server.kill()
    if nginx is not None:
        nginx.stop()


def ends(road: Road, world: World) -> tuple[Site, PoolClient]:
    secure = road.hub_url.startswith("tls")
    hub = world.link(
        road.hub_url,
        "hub",
        seed_file=road.written.hubs["hub"].secret,
        inbox_prefix="_INBOX.hub",
        ca_file=road.ca if secure else None,
    )
    link = world.link(road.url, "site", seed_file=road.written.pools["alpha"], ca_file=road.ca)
    assert hub.max_payload == link.max_payload == 8 * 1024 * 1024
    site = Site()
    serve(link, PREFIX, "alpha", site)
    client = PoolClient(hub, PREFIX, "alpha", OWNER)
    eventually(lambda: works(client), 20)
    return site, client


def works(client: PoolClient) -> bool:
    try:
        client.submit("uid-0", SUBMIT, timeout=5)
    except SiteError:
        return False
    return True


def test_the_protocol_works_and_comes_back_after_a_restart(road: Road, world: World) -> None:
    site, client = ends(road, world)
    large = SUBMIT.model_copy(update={"script": "y" * 3_000_000})
    client.submit("uid-1", large)
    assert site.submits[-1][1].script == large.script
    site.log = bytes(range(256)) * 8_000
    with client.logs("uid-1", Logs(container="main", stream="unused00")) as reader:
        assert b"".join(reader) == site.log
    road.server.kill()
    with pytest.raises((SiteDownError, SiteUnknownOutcomeError)):
        client.submit("uid-2", SUBMIT)
    road.start()
    eventually(lambda: works(client), 20)
    assert [job for job, _ in site.submits if job == "uid-2"] == []
    with client.logs("uid-1", Logs(container="main", stream="unused00")) as reader:
        assert b"".join(reader) == site.log


def test_three_megabytes_that_do_not_compress(road: Road, world: World) -> None:
    site, client = ends(road, world)
    noise = random.Random(1).randbytes(3_000_000).hex()  # compresses to half its size
    client.submit("uid-1", SUBMIT.model_copy(update={"script": noise}))
    assert site.submits[-1][1].script == noise
    with pytest.raises(SiteTooLargeError):
        client._link.publish(f"{PREFIX}.alpha.ack.c1.x", b"x" * (8 * 1024 * 1024 + 1))


def test_speed(road: Road, world: World) -> None:
    _, client = ends(road, world)
    left = iter(range(1000))
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            client.submit(f"uid-{number}", SUBMIT)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = 1000 / (time.monotonic() - begun)
    print(f"{road.kind}: {rate:.0f} submits a second")
    assert rate > 500


def test_a_frozen_server_is_noticed(road: Road, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PING_INTERVAL", 1)
    _, client = ends(road, world)
    link = client._link
    road.server.signal(19)
    eventually(lambda: not link.connected, 10)
    road.server.signal(18)
    eventually(lambda: works(client), 20)


@pytest.mark.parametrize("road", ["tls", "wss", "nginx"], indirect=True)
def test_a_certificate_of_nobody_known_is_refused(road: Road, world: World) -> None:
    link = world.link(road.url, wait=False, seed_file=road.written.pools["alpha"])
    eventually(lambda: "certificate verify failed" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("road", ["tls", "wss", "nginx"], indirect=True)
def test_a_certificate_for_another_name_is_refused(road: Road, world: World) -> None:
    url = road.url.replace("localhost", "127.0.0.1")
    link = world.link(url, wait=False, seed_file=road.written.pools["alpha"], ca_file=road.ca)
    eventually(lambda: "certificate" in (link.problem() or "") and "127.0.0.1" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("road", ["tcp"], indirect=True)
def test_tls_is_never_given_up_silently(road: Road, world: World) -> None:
    """A tls:// address whose server speaks in the clear: a man in the middle would do just that."""
    url = road.url.replace("nats://", "tls://")
    link = world.link(url, wait=False, seed_file=road.written.pools["alpha"])
    eventually(lambda: "secure connection not available" in (link.problem() or ""))
    assert not link.connected


@pytest.mark.parametrize("road", ["nginx"], indirect=True)
def test_nginx_stopped_and_started_again(road: Road, world: World) -> None:
    _, client = ends(road, world)
    assert road.nginx is not None
    road.nginx.stop()
    eventually(lambda: not works(client), 20)
    road.nginx.start()
    eventually(lambda: works(client), 20)
