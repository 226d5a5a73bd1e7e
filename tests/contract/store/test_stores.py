"""Stores on real servers: the suite, ten thousand keys, restarts of the servers, and permissions."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as Bare

from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.redis_store import RedisStore
from bridge.pools.store.synchronizer import KeyValueStore, StoreError
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.subjects import BucketSubjects
from cluster.polling import eventually
from cluster.processes import send_signal
from tests.contract.nats.servers import OWNER, PREFIX, World, attack, nats_config
from tests.contract.store.servers import PASSWORD, Broker, Place, RedisServer
from tests.fakes.store_suite import StoreSuite

pytestmark = pytest.mark.real


@pytest.fixture
def store(place: Place, world: World) -> KeyValueStore:
    return place.store(place.broker.hub(world))


class TestSuite(StoreSuite):
    """redis and NATS."""


def test_ten_thousand_keys_take_seconds(place: Place, world: World, store: KeyValueStore) -> None:
    keys = [f"alpha/{number:08}-0000-4000-8000-000000000000" for number in range(10_000)]
    begun = time.monotonic()
    for start in range(0, len(keys), 500):
        store.put("jobs", dict.fromkeys(keys[start : start + 500], b'{"x": 1}' * 25))
    written = time.monotonic()
    other = place.store(place.broker.hub(world, "another process"))
    found = other.load("jobs")
    read = time.monotonic()
    assert sorted(found) == keys
    print(f"{place.kind}: {written - begun:.2f} s to write, {read - written:.2f} s to read 10,000")
    assert read - written < 10


def test_a_server_that_is_killed_is_an_error_at_once_and_fine_when_it_is_back(
    place: Place, world: World, store: KeyValueStore
) -> None:
    store.put("pools", {"a": b"1"})
    place.kill()
    begun = time.monotonic()
    with pytest.raises(StoreError):
        store.load("pools")
    with pytest.raises(StoreError):
        store.put("pools", {"a": b"2"})
    assert time.monotonic() - begun < 3
    place.start()

    def back() -> bool:
        try:
            return store.load("pools") == {"a": b"1"}
        except StoreError:
            store.close()
            return False

    eventually(back, timeout=20)


def test_a_server_that_hangs_is_an_error_within_seconds(place: Place, store: KeyValueStore) -> None:
    store.put("pools", {"a": b"1"})
    process = (place.redis or place.broker.server).process
    assert process is not None
    send_signal(process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(StoreError):
            store.load("pools")
        assert time.monotonic() - begun < 8
    finally:
        process.send_signal(signal.SIGCONT)


# --- redis ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def redis(folder: Path) -> Iterator[RedisServer]:
    acl = f"user hub on >{PASSWORD} ~podbridge:* +hscan +hset +hdel\nuser other on >{PASSWORD} ~x:* +hscan"
    made = RedisServer(folder, acl=acl).start()
    yield made
    made.kill()


def test_a_wrong_password_is_said_and_never_shown(redis: RedisServer, folder: Path) -> None:
    wrong = folder / "wrong"
    wrong.write_text("not-the-password")
    with pytest.raises(StoreError) as caught:
        RedisStore(redis.access(password_file=wrong), OWNER).load("pools")
    assert "refuses the login of the default user" in str(caught.value)
    assert str(wrong) in caught.value.hint
    assert "not-the-password" not in str(caught.value) + caught.value.hint
    with pytest.raises(StoreError) as caught:
        RedisStore(redis.access(password_file=None), OWNER).load("pools")
    assert "passwordFile" in caught.value.hint
    with pytest.raises(StoreError, match="refuses the login of user nobody"):
        RedisStore(redis.access(user="nobody"), OWNER).load("pools")


def test_a_new_password_is_read_at_the_next_connect(redis: RedisServer) -> None:
    store = RedisStore(redis.access(), OWNER)
    store.put("pools", {"a": b"1"})
    redis.cli("CONFIG", "SET", "requirepass", "another")
    store.close()
    with pytest.raises(StoreError):
        store.load("pools")
    redis.password_file.write_text("another")
    assert store.load("pools") == {"a": b"1"}


def test_a_user_with_three_commands_is_enough(redis: RedisServer) -> None:
    store = RedisStore(redis.access(user="hub"), OWNER)
    store.put("pools", {"a": b"1"})
    assert store.load("pools") == {"a": b"1"}
    store.delete("pools", ["a"])
    with pytest.raises(StoreError) as caught:
        RedisStore(redis.access(user="other"), OWNER).load("pools")
    assert "refuses the command to user other" in str(caught.value)
    assert "+hscan +hset +hdel" in caught.value.hint


def test_a_socket(redis: RedisServer) -> None:
    store = RedisStore(redis.access(url=f"unix://{redis.socket}"), OWNER)
    store.put("pools", {"a": b"1"})
    assert store.load("pools") == {"a": b"1"}


def test_two_clusters_share_a_server_and_a_prefix(redis: RedisServer) -> None:
    one, two = RedisStore(redis.access(prefix="one"), OWNER), RedisStore(redis.access(prefix="one"), "c2")
    one.put("pools", {"a": b"1"})
    assert two.load("pools") == {}
    two.delete("pools", ["a"])
    assert one.load("pools") == {"a": b"1"}
    assert redis.cli("KEYS", "*").split() == ["one:c1:pools"]


def test_tls_is_verified(folder: Path) -> None:
    server = RedisServer(folder, tls=True).start()
    try:
        store = RedisStore(server.access(ca_file=folder / "ca.pem"), OWNER)
        store.put("pools", {"a": b"1"})
        assert store.load("pools") == {"a": b"1"}
        with pytest.raises(StoreError, match="certificate verify failed"):
            RedisStore(server.access(), OWNER).load("pools")
        plain = server.access(url=server.url.replace("rediss", "redis"))
        with pytest.raises(StoreError):
            RedisStore(plain, OWNER).load("pools")
    finally:
        server.kill()


# --- NATS -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def broker(folder: Path) -> Iterator[Broker]:
    made = Broker(folder, "--jetstream")
    yield made
    made.server.kill()


def test_nats_9_6_a_site_reaches_neither_the_bucket_nor_the_api(broker: Broker, world: World) -> None:
    store = NatsStore(broker.hub(world), "podbridge", INBOX, OWNER)
    store.put("pools", {"alpha": b"kept"})
    bucket = BucketSubjects("podbridge", OWNER)
    subjects = [
        *(subject for subject in bucket.publish() if not subject.endswith(">")),
        bucket.key("pools", "alpha"),
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.DELETE.KV_podbridge",
        "$JS.API.STREAM.MSG.GET.KV_podbridge",
        "$JS.API.DIRECT.GET.KV_podbridge.$KV.podbridge.pools.alpha",
        "$JS.API.CONSUMER.CREATE.KV_podbridge.x.$KV.podbridge.>",
        f"{INBOX}.store.guess",
    ]
    listen = ["$KV.>", bucket.everything, "$JS.>", "$JS.API.>", f"{INBOX}.store.*", "$JS.EVENT.>"]

    async def plot(client: Bare, on_message: Any) -> None:
        for subject in listen:
            await client.subscribe(subject, cb=on_message)
        for subject in subjects:
            await client.publish(subject, b'{"stream_name": "KV_podbridge"}')

    seed = (broker.out / "pools" / "alpha.seed").read_text().strip()
    subscriptions, messages, heard = attack(broker.server.url, plot, nkeys_seed_str=seed)
    assert (len(subscriptions), len(messages), heard) == (len(listen), len(subjects), [])
    assert store.load("pools") == {"alpha": b"kept"}


def test_the_hub_can_use_its_bucket_and_no_other(broker: Broker, world: World) -> None:
    link = broker.hub(world)
    assert NatsStore(link, "podbridge", INBOX, OWNER).load("pools") == {}
    with pytest.raises(StoreError) as caught:
        NatsStore(link, "another", INBOX, OWNER).load("pools")
    assert "no answer" in str(caught.value)
    assert "podbridge nats config --jetstream" in caught.value.hint
    assert link.problem() is None  # the pools go on


def test_a_server_without_jetstream_is_said(folder: Path, world: World) -> None:
    broker = Broker(folder)
    try:
        with pytest.raises(StoreError) as caught:
            NatsStore(broker.hub(world), "podbridge", INBOX, OWNER).load("pools")
        assert "podbridge nats config --jetstream" in caught.value.hint
    finally:
        broker.server.kill()


def test_a_reload_gives_the_hub_its_bucket(folder: Path, world: World) -> None:
    broker = Broker(folder)
    try:
        store = NatsStore(broker.hub(world), "podbridge", INBOX, OWNER)
        with pytest.raises(StoreError):
            store.load("pools")
        nats_config("--out", broker.out, "--prefix", PREFIX, "--jetstream", "--force")
        broker.server.signal(signal.SIGHUP)

        def opened() -> bool:
            try:
                store.put("pools", {"a": b"1"})
            except StoreError:
                return False
            return store.load("pools") == {"a": b"1"}

        eventually(opened, timeout=20)
    finally:
        broker.server.kill()


def test_what_was_deleted_leaves_nothing_in_the_bucket(broker: Broker, world: World) -> None:
    link = broker.hub(world)
    store = NatsStore(link, "podbridge", INBOX, OWNER)
    store.put("jobs", {f"k{number}": b"x" for number in range(50)})
    store.delete("jobs", [f"k{number}" for number in range(49)])
    assert store.load("jobs") == {"k49": b"x"}
    assert b'"messages":1,' in link.request(BucketSubjects("podbridge").info, b"", 5)
