"""Two clusters on one nats-server: each hub's credentials reach only the jobs of its own cluster."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from nats.aio.client import Client as Bare

from bridge.apps.cli.nats_command import nats as command
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import Empty, Event, SubmitMessage
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Announcer, Server
from bridge.protocol.nats.request_table import STATUS
from bridge.protocol.nats.subjects import Subjects
from cluster.polling import eventually
from tests.contract.nats.servers import PREFIX, NatsServer, Site, World, attack, nats_config, status

pytestmark = pytest.mark.real

OWNERS = {"one": "11111111-aaaa", "two": "22222222-bbbb"}
SUBMIT = SubmitMessage(namespace="ns", name="pod", script="export TOKEN=hunter2")


@dataclass
class Shared:
    server: NatsServer
    out: Path
    hubs: dict[str, Link]
    site: Site
    link: Link


@pytest.fixture
def shared(folder: Path, world: World) -> Iterator[Shared]:
    out = folder / "nats"
    hubs = [word for name, owner in OWNERS.items() for word in ("--hub", f"{name}={owner}")]
    nats_config("--pools", "alpha", "--out", out, "--prefix", PREFIX, "--jetstream", *hubs)
    server = NatsServer(folder, config_file=out / "nats-server.conf").start()
    hubs = {
        name: world.link(server.url, name, inbox_prefix=f"{INBOX}.{owner}", seed_file=out / "hubs" / f"{name}.seed")
        for name, owner in OWNERS.items()
    }
    site = Site()
    link = world.link(server.url, "alpha", seed_file=out / "pools" / "alpha.seed")
    Server(link, PREFIX, "alpha", site)
    time.sleep(0.3)
    yield Shared(server, out, hubs, site, link)
    site.wait.set()
    server.kill()


def test_each_hub_works_and_hears_of_its_own_jobs_alone(shared: Shared, world: World) -> None:
    announcer = Announcer(shared.link, PREFIX, "alpha")
    pools = {name: NatsPools(shared.hubs[name], PREFIX, owner) for name, owner in OWNERS.items()}
    for each in pools.values():
        each.start(world.supervisor)
    time.sleep(0.3)
    announcer.publish(shared.site.announce())
    for each in pools.values():
        eventually(lambda each=each: "alpha" in each.pools() and each.pools()["alpha"].complete_at() is not None)
    for name, owner in OWNERS.items():
        told = status(f"uid-{name}", owner=owner)
        event = Event(pool="alpha", submitter="s-1", sequence=1, status=told)
        announcer.publish(event)
    for name, each in pools.items():
        pool = each.pools()["alpha"]
        eventually(lambda pool=pool, name=name: f"uid-{name}" in pool.jobs())
        assert set(pool.jobs()) == {f"uid-{name}"}
        assert each.dropped == {}
        shared.site.log = b"log"
        client = PoolClient(shared.hubs[name], PREFIX, "alpha", OWNERS[name])
        with contextlib.closing(client.logs("uid", LogOptions(container="main"))) as reader:
            assert b"".join(reader) == b"log"
    assert [link.problem() for link in (*shared.hubs.values(), shared.link)] == [None, None, None]


def test_a_hub_reaches_nothing_of_another_cluster(shared: Shared) -> None:
    victim, own = Subjects(PREFIX, "alpha", OWNERS["two"]), Subjects(PREFIX, "alpha", OWNERS["one"])
    asked = [
        *(pattern.replace("*", "uid-1") for pattern in victim.requests().values()),
        victim.input("s"),
        f"{INBOX}.{OWNERS['two']}.x",
        "$KV.podbridge-two.x",
        "$JS.API.STREAM.INFO.KV_podbridge-two",
    ]
    listened = [
        ">",
        victim.event,
        victim.streams,
        Subjects(PREFIX, "*", "*").event,
        Subjects(PREFIX, "*", "*").streams,
        f"{INBOX}.>",
        f"{INBOX}.*.*",
        f"{INBOX}.{OWNERS['two']}.>",
        *victim.requests().values(),
        *own.requests().values(),
    ]

    async def plot(client: Bare, on_message: Any) -> None:
        for subject in listened:
            await client.subscribe(subject, cb=on_message)
        await client.flush()
        two = PoolClient(shared.hubs["two"], PREFIX, "alpha", OWNERS["two"])
        shared.site.log = b"secret log"

        def others() -> None:
            with contextlib.closing(two.logs("uid-1", LogOptions(container="main"))) as reader:
                list(reader)
            two.call(STATUS, "uid-1", Empty())

        await asyncio.to_thread(others)
        for subject in asked:
            await client.publish(subject, b"forged")

    seed = (shared.out / "hubs" / "one.seed").read_text()
    subscriptions, messages, heard = attack(shared.server.url, plot, nkeys_seed_str=seed)
    assert (len(subscriptions), len(messages), heard) == (len(listened), len(asked), []), (subscriptions, messages)
    assert shared.site.submits == []


def test_the_user_that_reaches_all_jobs_is_gone_with_the_first_cluster(tmp_path: Path) -> None:
    out = tmp_path / "nats"
    nats_config("--pools", "alpha", "--out", out)
    before = (out / "users.conf").read_text()
    assert "hub.seed is no longer a user" in nats_config("--out", out, "--hub", f"one={OWNERS['one']}")
    after = (out / "users.conf").read_text()
    assert "# hub\n" in before
    assert "# hub\n" not in after
    assert "*.submit.*.*.*" in before  # of the hub
    assert f"*.submit.{OWNERS['one']}.*.*" in after
    nats_config("--out", out)
    assert (out / "users.conf").read_text() == after


@pytest.mark.parametrize("text", ["one", "one=", "=u", "One=u", "one=u u", "one=*"])
def test_clusters_that_can_not_be(tmp_path: Path, text: str) -> None:
    told = CliRunner().invoke(command, ["config", "--pools", "alpha", "--out", str(tmp_path / "n"), "--hub", text])
    assert told.exit_code != 0
    assert not (tmp_path / "n" / "users.conf").exists()
