from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.retries import Backoff
from bridge.kube.kube_client import KubeClient
from bridge.kube.object_store import ObjectStore
from cluster.polling import eventually
from tests.fakes.cache_suite import CacheSuite, Running, World, value
from tests.fakes.kube_api import FakeApi, Handler, Request


@pytest.fixture
def namespace() -> str:
    return "ns"


class TestCacheOnFake(CacheSuite):
    """The tests that the fake and the real API server share."""


def check_next_watch(api: FakeApi, client: KubeClient, namespace: str, first: Any, **options: Any) -> None:
    """Check that the cache goes on with another watch when ``first`` has written to the stream of the first one."""
    watches = itertools.count()

    def fault(handler: Handler, request: Request) -> bool:
        if not request.watch or next(watches):
            return False
        handler.start_stream()
        first(handler)
        return True

    api.faults.append(fault)
    with Running(client, namespace, **options) as running:
        assert running.cache.wait_synced(5)
        World(client, namespace).create("later")
        eventually(lambda: len(running.cache) == 1, timeout=5)


def test_half_open_watch_is_replaced(api: FakeApi, client: KubeClient, namespace: str) -> None:
    def freeze(handler: Handler) -> None:
        with api.changed:  # the connection stays open without data
            api.changed.wait_for(lambda: api.closing, 30)

    check_next_watch(api, client, namespace, freeze, idle_timeout=0.2)


def test_trickle_without_an_event_is_no_sign_of_life(api: FakeApi, client: KubeClient, namespace: str) -> None:
    def drip(handler: Handler) -> None:
        while not api.closing:
            handler.send_chunk(b" ")
            time.sleep(0.02)

    check_next_watch(api, client, namespace, drip, idle_timeout=0.2)


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("status", [503, 410, 403, 429])
def test_storm_of_errors_is_met_with_few_requests(
    api: FakeApi, client: KubeClient, namespace: str, status: int, watch: bool
) -> None:
    api.fail(status, watch=watch)
    with Running(client, namespace, backoff=Backoff(first=0.01, limit=0.1)) as running:
        eventually(lambda: len(api.requests) >= 8, timeout=5, every=0.02)
        before = len(api.requests)
        time.sleep(0.15)
        # each failing watch may follow a list; the back-off is 0.1 s minus the jitter
        assert len(api.requests) - before <= 10
        api.faults.clear()
        World(client, namespace).create("later")
        eventually(lambda: len(running.cache) == 1, timeout=5)


def test_watch_that_ends_at_once_is_met_with_few_requests(api: FakeApi, client: KubeClient, namespace: str) -> None:
    def end(handler: Handler, request: Request) -> bool:
        if request.watch:
            handler.start_stream()
            handler.send_chunk(b"")
        return request.watch

    api.faults.append(end)
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        begun = time.monotonic()
        eventually(lambda: time.monotonic() - begun > 0.3)
        assert sum(request.watch for request in api.requests) < 10


def test_retry_after_is_obeyed(api: FakeApi, client: KubeClient, namespace: str) -> None:
    api.fail(503, watch=True, times=1, headers={"Retry-After": "0.2"})
    with Running(client, namespace) as running:
        eventually(lambda: any(request.watch for request in api.requests))
        refused = time.monotonic()
        World(client, namespace).create("later")
        eventually(lambda: len(running.cache) == 1, timeout=5)
        assert time.monotonic() - refused > 0.15


def test_too_old_in_the_middle_of_a_watch(api: FakeApi, client: KubeClient, namespace: str) -> None:
    world = World(client, namespace)
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        with running.cache._delivery:
            world.create("gone")
            world.create("here")
            world.delete("gone")
            api.compact()
            api.cut()
        eventually(lambda: running.cache.get(namespace, "here"), timeout=5)
        eventually(lambda: running.cache.get(namespace, "gone") is None, timeout=5)


def test_continue_token_too_old(
    api: FakeApi, client: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.kube.paging.PAGE", 2)
    for number in range(5):
        World(client, namespace).create(f"n{number}")
    refusals = itertools.count()

    def expire(handler: Handler, request: Request) -> bool:
        if "continue" in request.query and next(refusals) == 0:
            handler.answer(410, json.dumps({"kind": "Status", "code": 410, "reason": "Expired"}).encode())
            return True
        return False

    api.faults.append(expire)
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        assert len(running.cache) == 5
        assert next(refusals) > 1


def test_large_objects_are_listed_in_small_pages(
    api: FakeApi, client: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.kube.kube_client.LARGEST_PAGE", 20_000)
    for number in range(12):
        World(client, namespace).create(f"n{number}", "x" * (30_000 if number == 5 else 4_000))
    limits: list[int] = []

    def record(_: Handler, request: Request) -> bool:
        if "watch" not in request.query and "limit" in request.query:
            limits.append(int(request.query["limit"]))
        return False

    api.faults.append(record)
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        assert len(running.cache) == 12
    assert limits[:5] == [500, 125, 31, 7, 1]
    assert max(limits[5:]) <= 8


@pytest.mark.parametrize("garbage", [b"{not json}\n", b'{"type":"ADDED"}\n', b"[1]\n", b'"x"\n'])
def test_garbage_in_a_watch(api: FakeApi, client: KubeClient, namespace: str, garbage: bytes) -> None:
    def babble(handler: Handler) -> None:
        handler.send_chunk(garbage)
        handler.send_chunk(b"")

    check_next_watch(api, client, namespace, babble)


def test_history_that_went_back(api: FakeApi, client: KubeClient, namespace: str) -> None:
    world = World(client, namespace)
    world.create("kept", "old")
    backup = {collection: dict(objects) for collection, objects in api.objects.items()}
    version = api.version
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        world.patch("kept", "new")
        world.create("lost")
        eventually(lambda: len(running.cache) == 2)
        with api.changed:
            restore(api, backup, version)
        api.cut()
        eventually(lambda: len(running.cache) == 1, timeout=5)
        assert value(running.cache.get(namespace, "kept")) == "old"


def test_history_that_went_back_during_a_quiet_watch(api: FakeApi, client: KubeClient, namespace: str) -> None:
    with Running(client, namespace, idle_timeout=1.4) as running:  # the server ends its watches after a second
        assert running.cache.wait_synced(5)
        World(client, namespace).create("lost")
        eventually(lambda: len(running.cache) == 1)
        with api.changed:
            restore(api, {}, api.version - 1)
        eventually(lambda: len(running.cache) == 0, timeout=5)


def test_before_another_watch_one_small_list_shows_the_version(
    api: FakeApi, client: KubeClient, namespace: str
) -> None:
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(5)
        eventually(lambda: any(request.watch for request in api.requests))
        before = len(api.requests)
        api.cut()
        eventually(lambda: len(api.requests) == before + 2)
    assert [(request.watch, request.query.get("limit")) for request in api.requests[before:]] == [
        (False, "1"),
        (True, None),
    ]


def restore(api: FakeApi, objects: dict[str, Any], version: int) -> None:
    """Restore etcd from a backup."""
    api.objects, api.version = objects, version
    api._versions = itertools.count(version + 1)
    api.history = []
    api.oldest = 0


def thing(name: str, uid: str, version: int) -> dict[str, object]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}}


def test_store_ignores_old_news() -> None:
    store = ObjectStore()
    new = thing("a", "1", 12)
    assert store.put(new) == [("add", None, new)]
    assert store.put(thing("a", "1", 11)) == []
    assert store.put(thing("a", "1", 12)) == []
    assert store.put(thing("a", "0", 9)) == []
    assert store.remove(thing("a", "0", 13)) == []
    assert store.get("", "a") is new


def test_store_compares_versions_as_numbers() -> None:
    store = ObjectStore()
    store.put(thing("a", "1", 9))
    newer = thing("a", "1", 10)
    assert [change for change, _, _ in store.put(newer)] == ["update"]
    assert not store.apply(thing("a", "1", 9))


def test_store_applies_only_to_what_it_knows() -> None:
    store = ObjectStore()
    assert not store.apply(thing("a", "1", 9))
    assert len(store) == 0
    store.put(thing("a", "1", 9))
    assert store.apply(thing("a", "1", 12))
    assert store.put(thing("a", "1", 11)) == []
    assert [(kind, old) for kind, old, _ in store.put(thing("a", "1", 12))] == [("update", thing("a", "1", 9))]
    assert store.put(thing("a", "1", 12)) == []


@given(st.lists(st.tuples(st.sampled_from("pra"), st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=30))
def test_picked_are_always_those_that_the_question_picks(steps: list[tuple[str, int, int, bool]]) -> None:
    def one(number: int, version: int, wanted: bool) -> dict[str, Any]:
        return {"metadata": {"name": str(number), "uid": f"u{number}", "resourceVersion": str(version)}, "is": wanted}

    store = ObjectStore(lambda obj: obj["is"])
    for what, number, version, wanted in steps:
        obj = one(number, version, wanted)
        if what == "p":
            store.put(obj)
        elif what == "r":
            store.remove(obj)
        else:
            store.apply(obj)
        assert store.picked() == {each["metadata"]["uid"]: each for each in store.items() if each["is"]}
    store.replace([one(7, 1, True)])
    assert set(store.picked()) == {"u7"}
