"""Permissions on a nats-server with the configuration that `podbridge nats config` writes.

The attacker is a bare nats-py client with the credentials of pool alpha. It does not follow the protocol.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from click.testing import CliRunner
from nats.aio.client import Client as Bare

from bridge.apps.cli.main import cli
from bridge.errors import SiteDownError, SiteUnknownOutcomeError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import Empty, Grant, Snapshot, Status, SubmitMessage
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Announcer, Server
from bridge.protocol.nats.request_table import DESCRIBE, GRANT, REQUESTS, SNAPSHOT, STATUS, SUBMIT, RequestKind
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.user_keys import new_seed, public_key
from cluster.polling import eventually
from tests.contract.nats.servers import OWNER, PREFIX, NatsServer, Site, World, attack, free_port, nats_config, status

pytestmark = pytest.mark.real

ALPHA, BETA = Subjects(PREFIX, "alpha", OWNER), Subjects(PREFIX, "beta", OWNER)
SUBMISSION = SubmitMessage(namespace="ns", name="pod", script="export TOKEN=hunter2")


@dataclass
class Secured:
    server: NatsServer
    folder: Path
    hub: Link
    alpha: Link
    beta: Link
    sites: dict[str, Site]

    @property
    def seeds(self) -> Path:
        return self.folder / "pools"


@pytest.fixture(params=["seed", "password", "site's key"])
def secured(request: Any, folder: Path, world: World) -> Iterator[Secured]:
    """Two pools; with ``site's key``, alpha's seed was made at its site, and the server got the public key alone."""
    out = folder / "nats"
    secrets = ["--passwords"] if request.param == "password" else []
    pools = "beta" if request.param == "site's key" else "alpha,beta"
    nats_config("--pools", pools, "--out", out, "--prefix", PREFIX, *secrets)
    if request.param == "site's key":
        seed = new_seed()
        add = ["pool", "add", "alpha", "--key", public_key(seed), "--nats-dir", str(out), "--prefix", PREFIX]
        result = CliRunner().invoke(cli, add, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert not (out / "pools" / "alpha.seed").exists()
        assert seed not in (out / "users.conf").read_text()
        (out / "pools" / "alpha.seed").write_text(seed)  # at its site; the server's files are written already
    server = NatsServer(folder, config_file=out / "nats-server.conf").start()

    def access(file: Path, user: str) -> dict[str, Any]:
        if request.param == "password":
            return {"user": user, "password_file": file.with_suffix(".password")}
        return {"seed_file": file.with_suffix(".seed")}

    hub = world.link(server.url, "hub", inbox_prefix=INBOX, **access(out / "hub", "hub"))
    sites, links = {}, {}
    for pool in ("alpha", "beta"):
        links[pool] = world.link(server.url, pool, **access(out / "pools" / pool, f"pool-{pool}"))
        sites[pool] = Site(pool=pool)
        Server(links[pool], PREFIX, pool, sites[pool])
    time.sleep(0.3)
    yield Secured(server, out, hub, links["alpha"], links["beta"], sites)
    for site in sites.values():
        site.wait.set()
    server.kill()


def test_what_is_allowed_works(secured: Secured) -> None:
    heard: list[str] = []
    every = Subjects(PREFIX, "*", OWNER)
    secured.hub.subscribe(
        (every.announce, every.buildconfig, every.event), lambda subject, _d, _r: heard.append(subject)
    )
    time.sleep(0.3)
    for pool, link in (("alpha", secured.alpha), ("beta", secured.beta)):
        client = PoolClient(secured.hub, PREFIX, pool, OWNER)
        client.call(SUBMIT, "uid-1", SUBMISSION)
        client.call(STATUS, "uid-1", Empty())
        client.call(SNAPSHOT, "", Snapshot())
        client.call(DESCRIBE, "", Empty())
        secured.sites[pool].log = b"log of " + pool.encode()
        with contextlib.closing(client.logs("uid-1", LogOptions(container="main", follow=True))) as reader:
            assert next(reader) == b"log of " + pool.encode()
        eventually(lambda pool=pool: secured.sites[pool].readers_gone == 1)
        announcer = Announcer(link, PREFIX, pool)
        announcer.publish(secured.sites[pool].announce())
        announcer.publish(secured.sites[pool].buildconfig())
    eventually(lambda: len(heard) == 4)
    assert [link.problem() for link in (secured.hub, secured.alpha, secured.beta)] == [None, None, None]


def test_a_slow_answer_is_still_allowed(secured: Secured) -> None:
    secured.sites["alpha"].delay = 3
    PoolClient(secured.hub, PREFIX, "alpha", OWNER).call(SUBMIT, "uid-1", SUBMISSION)


def attack_with_alphas_key(
    secured: Secured, plot: Callable[[Bare, Any], Awaitable[None]]
) -> tuple[list[str], list[str], list[str]]:
    """Run a function with alpha's credentials; return what :func:`attack` does."""
    seed = secured.seeds / "alpha.seed"
    if seed.exists():
        return attack(secured.server.url, plot, nkeys_seed_str=seed.read_text())
    password = (secured.seeds / "alpha.password").read_text().strip()
    return attack(secured.server.url, plot, user="pool-alpha", password=password)


LISTENING = [
    ">",
    "*",
    f"{PREFIX}.>",
    f"{PREFIX}.*.submit.*.*.*",
    f"{PREFIX}.beta.>",
    *BETA.requests().values(),
    BETA.announce,
    BETA.buildconfig,
    BETA.event,
    BETA.streams,
    BETA.inputs,
    f"{PREFIX}.*.input.*.*",
    ALPHA.event,
    ALPHA.streams,
    f"{PREFIX}.alpha.submit.*.*.*",  # but as a member of its queue group
    "_INBOX.>",
    "_INBOX.hub.>",
    f"{INBOX}.*.*",
    "$SYS.>",
    "$JS.API.>",
]


def test_nats_9_6_a_site_can_not_listen_to_anybody_else(secured: Secured) -> None:
    async def plot(client: Bare, on_message: Any) -> None:
        for subject in LISTENING:
            await client.subscribe(subject, cb=on_message)
        for queue in ("beta", "alpha", ""):
            await client.subscribe(f"{PREFIX}.beta.submit.*.*.*", queue=queue, cb=on_message)
        await client.flush()
        beta = PoolClient(secured.hub, PREFIX, "beta", OWNER)
        secured.sites["beta"].log = b"secret log"

        def others() -> None:
            beta.call(SUBMIT, "uid-1", SUBMISSION)
            beta.call(STATUS, "uid-1", Empty())
            with contextlib.closing(beta.logs("uid-1", LogOptions(container="main"))) as reader:
                list(reader)
            secured.beta.publish(BETA.event, b"{}")
            secured.beta.publish(BETA.announce, b"{}")

        await asyncio.to_thread(others)
        await asyncio.sleep(0.5)

    refused, _, heard = attack_with_alphas_key(secured, plot)
    assert (len(refused), heard) == (len(LISTENING) + 3, [])


def test_nats_9_6_a_site_can_not_say_anything_for_anybody_else(secured: Secured) -> None:
    heard: list[tuple[str, bytes]] = []
    every = Subjects(PREFIX, "*", OWNER)
    for subject in (every.announce, every.buildconfig, every.event, every.streams):
        secured.hub.subscribe(subject, lambda subject, data, _r: heard.append((subject, data)))
    time.sleep(0.3)
    subjects = [
        BETA.announce,
        BETA.buildconfig,
        BETA.event,
        BETA.stream("x"),
        BETA.input("x"),
        *(pattern.replace("*", "uid-1") for pattern in (*BETA.requests().values(), *ALPHA.requests().values())),
        ALPHA.input("x"),
        f"{PREFIX}.alpha.stream.x.y.z",
        f"{INBOX}.anything",
        "_INBOX.anything",
    ]

    async def plot(client: Bare, on_message: Any) -> None:
        for subject in subjects:
            await client.publish(subject, b"forged")
        await client.publish(ALPHA.event, b"its own")

    _, refused, _ = attack_with_alphas_key(secured, plot)
    assert len(refused) == len(subjects)
    eventually(lambda: heard)
    assert heard == [(ALPHA.event, b"its own")]
    assert secured.sites["beta"].submits == []


def test_nats_9_6_a_site_can_not_answer_for_another_nor_twice(secured: Secured) -> None:
    """The attacker knows the hub's inbox from one request, and guesses the next subject."""
    secured.alpha.close()
    eventually(lambda: not secured.alpha.connected)
    answers: list[bytes] = []

    async def plot(client: Bare, on_message: Any) -> None:
        inboxes: list[str] = []

        async def on_request(message: Any) -> None:
            inboxes.append(message.reply)
            await message.respond(b'{"v":1,"body":{"status":null}}')
            await message.respond(b"again")

        await client.subscribe(f"{PREFIX}.alpha.status.*.*", queue="alpha", cb=on_request)
        await client.flush()
        alpha = PoolClient(secured.hub, PREFIX, "alpha", OWNER)
        assert (await asyncio.to_thread(alpha.call, STATUS, "uid-1", Empty())).status is None
        base, number = inboxes[0].rsplit(".", 1)
        secured.sites["beta"].delay = 1
        beta = PoolClient(secured.hub, PREFIX, "beta", OWNER)
        asking = asyncio.create_task(asyncio.to_thread(beta.call, SUBMIT, "uid-2", SUBMISSION))
        for guess in range(int(number) - 5, int(number) + 20):
            await client.publish(f"{base}.{guess}", b'{"v":1,"body":{"forged":true}}')
        answer = await asking
        answers.append(answer.model_dump_json().encode())

    _, refused, _ = attack_with_alphas_key(secured, plot)
    assert len(refused) == 26
    assert json.loads(answers[0])["status"]["job"] == "uid-2"


def test_a_site_can_not_use_its_right_to_answer_for_other_subjects(secured: Secured) -> None:
    """Only the hub itself can send a request with a reply subject of another pool; a site cannot."""

    async def plot(client: Bare, on_message: Any) -> None:
        await client.publish(f"{PREFIX}.alpha.status.c1.uid-1", b"", reply=BETA.event)
        await client.publish(ALPHA.event, b"", reply=BETA.event)

    _, refused, _ = attack_with_alphas_key(secured, plot)
    assert len(refused) == 1


@pytest.mark.parametrize("access", [{}, {"user": "hub", "password": "guess"}, {"user": "pool-beta", "password": ""}])
def test_nobody_comes_in_without_credentials(secured: Secured, access: dict[str, str]) -> None:
    async def run() -> None:
        async def quiet(_error: Exception) -> None:
            pass

        await nats.connect(secured.server.url, allow_reconnect=False, error_cb=quiet, **access)

    with pytest.raises(nats.errors.Error, match=r"(?i)authoriz"):
        asyncio.run(run())


@pytest.mark.parametrize("secured", ["seed"], indirect=True)
def test_a_link_with_wrong_credentials_says_so_and_goes_on_when_they_are_right(
    secured: Secured, folder: Path, world: World
) -> None:
    seed = secured.seeds / "alpha.seed"
    mine = folder / "mine.seed"
    link = world.link(secured.server.url, wait=False, seed_file=mine)
    eventually(lambda: "No such file" in (link.problem() or ""))
    mine.write_text("nonsense")
    eventually(lambda: "No such file" not in (link.problem() or ""))
    assert not link.connected
    nats_config("--pools", "gamma", "--out", folder / "other")
    mine.write_text((folder / "other" / "pools" / "gamma.seed").read_text())
    eventually(lambda: "Authorization" in (link.problem() or ""))
    mine.write_text(seed.read_text())
    eventually(lambda: link.connected)


def test_a_subscription_that_is_refused_is_a_problem_of_the_link(secured: Secured) -> None:
    secured.alpha.subscribe(BETA.announce, lambda *_: None)
    eventually(lambda: "refuses" in (secured.alpha.problem() or ""))
    assert "beta.announce" in (secured.alpha.problem() or "")


def test_a_request_that_the_server_refuses_has_no_answer(secured: Secured) -> None:
    with pytest.raises((SiteUnknownOutcomeError, SiteDownError)):
        secured.hub.request("elsewhere", b"", 0.5)


@pytest.mark.parametrize("secured", ["seed"], indirect=True)
def test_a_pool_added_later_comes_in_after_a_reload_and_the_others_stay(secured: Secured, world: World) -> None:
    seed = secured.seeds / "alpha.seed"
    before = seed.read_text(), (secured.folder / "hub.seed").read_text(), secured.hub._session
    nats_config("--out", secured.folder, "--add-pool", "gamma")
    secured.server.signal(1)  # SIGHUP, as nats-server --signal reload sends
    link = world.link(secured.server.url, seed_file=secured.seeds / "gamma.seed")
    Server(link, PREFIX, "gamma", Site(pool="gamma"))
    time.sleep(0.3)
    PoolClient(secured.hub, PREFIX, "gamma", OWNER).call(DESCRIBE, "", Empty())
    assert (seed.read_text(), (secured.folder / "hub.seed").read_text(), secured.hub._session) == before
    (secured.seeds / "gamma.seed").rename(secured.folder / "gamma.away")
    nats_config("--out", secured.folder)
    secured.server.signal(1)
    eventually(lambda: not link.connected)


@pytest.mark.parametrize("secured", ["seed"], indirect=True)
def test_users_that_an_earlier_version_wrote_run_pods_and_pass_no_grant_until_written_again(
    secured: Secured, world: World
) -> None:
    users = secured.folder / "users.conf"
    text = users.read_text()
    assert text.count(".grant.") == 3  # the hub, and two sites
    users.write_text(re.sub(r'\s*"[^"]*\.grant\.[^"]*",?', "", text))
    secured.server.signal(1)
    secured.alpha.close()
    site = Site(pool="alpha")
    link = world.link(secured.server.url, seed_file=secured.seeds / "alpha.seed")
    Server(link, PREFIX, "alpha", site)
    eventually(lambda: ".grant." in (link.problem() or ""))
    alpha = PoolClient(secured.hub, PREFIX, "alpha", OWNER)
    eventually(lambda: secured.hub.connected)
    assert alpha.call(SUBMIT, "uid-1", SUBMISSION).status.job == "uid-1"
    alpha.call(STATUS, "uid-1", Empty())
    with pytest.raises((SiteUnknownOutcomeError, SiteDownError)):
        alpha.call(GRANT, "uid-1", Grant(ticket="t-1"), timeout=0.5)
    nats_config("--out", secured.folder)
    assert users.read_text() == text
    secured.server.signal(1)

    link.close()
    eventually(lambda: not link.connected)
    Server(world.link(secured.server.url, seed_file=secured.seeds / "alpha.seed"), PREFIX, "alpha", site)
    time.sleep(0.3)
    alpha.call(GRANT, "uid-1", Grant(ticket="t-1"))
    assert site.grants == [(OWNER, "uid-1", "t-1")]


def test_a_new_row_of_the_table_of_requests_passes_with_the_permissions_that_follow_from_it(
    folder: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = RequestKind("echo", Grant, Status)
    monkeypatch.setitem(REQUESTS, row.name, row)

    class EchoingSite(Site):
        @row.handler
        def echo(self, owner: str, job: str, body: Grant) -> Status:
            self.grants.append((owner, job, body.ticket))
            return Status(status=self.jobs.get(job))

    out, site = folder / "nats", EchoingSite(jobs={"uid-1": status("uid-1")})
    nats_config("--pools", "alpha,beta", "--out", out, "--prefix", PREFIX)
    server = NatsServer(folder, config_file=out / "nats-server.conf").start()
    try:
        hub, alpha, beta = (
            world.link(server.url, file, inbox_prefix=INBOX, seed_file=out / file)
            for file in ("hub.seed", "pools/alpha.seed", "pools/beta.seed")
        )
        Server(alpha, PREFIX, "alpha", site)
        beta.subscribe(Subjects(PREFIX, "alpha", "*").requests()["echo"], lambda *_: None, queue="alpha")
        eventually(lambda: "alpha.echo" in (beta.problem() or ""))
        client = PoolClient(hub, PREFIX, "alpha", OWNER)
        assert client.call(row, "uid-1", Grant(ticket="t-1")).status == status("uid-1")
        assert client.call(row, "uid-2", Grant(ticket="t-2")).status is None
        assert site.grants == [(OWNER, "uid-1", "t-1"), (OWNER, "uid-2", "t-2")]
        assert (hub.problem(), alpha.problem()) == (None, None)
    finally:
        server.kill()


@pytest.mark.parametrize("knows_password", [True, False])
def test_no_server_joins_a_cluster_without_its_password(folder: Path, knows_password: bool) -> None:
    out, port = folder / "nats", free_port()
    hosts = "n1=127.0.0.1,n2=localhost,n3=127.0.0.3"
    nats_config("--pools", "alpha", "--out", out, "--cluster", hosts, "--cluster-port", port)
    server = NatsServer(folder, config_file=out / "nats-server-n1.conf").start(port)
    password = (out / "cluster.password").read_text().strip() if knows_password else "guessed"
    route = f"nats-route://route:{password}@127.0.0.1:{port}"
    below = folder / "stranger"
    below.mkdir()
    section = f'cluster: {{name: podbridge, listen: "127.0.0.1:{free_port()}", routes: ["{route}"]}}'
    stranger = NatsServer(below, section).start()
    try:
        if knows_password:
            eventually(lambda: server.routes() > 0)
        else:
            eventually(lambda: "authentication error" in server.log.read_text().lower())
            assert server.routes() == 0
    finally:
        stranger.kill()
        server.kill()
