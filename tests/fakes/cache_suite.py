"""The behaviour of a cache: unit tests run this suite on the fake API server, contract tests on a
real one. A subclass defines the fixtures ``client`` and ``namespace``.

It uses Leases, because no other client writes Leases into a new namespace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.core.retries import Backoff
from bridge.errors import KubeGoneError
from bridge.kube import paging
from bridge.kube.cache import Cache
from bridge.kube.kube_client import KubeClient
from bridge.kube.object_store import number
from bridge.kube.resources import LEASES
from cluster.polling import eventually

Object = dict[str, Any]
FAST = Backoff(first=0.02, limit=0.2)


def spec(value: str) -> Object:
    return {"holderIdentity": value}


def version(obj: Object | None) -> int:
    return number(obj["metadata"]["resourceVersion"]) if obj else 0


def value(obj: Object | None) -> str | None:
    return obj["spec"]["holderIdentity"] if obj else None


class Running:
    """A cache in a thread, and the changes that it announced."""

    def __init__(self, client: KubeClient, namespace: str, **options: Any) -> None:
        self.client = client
        options = {"name": "leases", "idle_timeout": 30.0, "backoff": FAST, **options}
        self.cache = Cache(client, LEASES, namespace=namespace, **options)
        self.changes: list[tuple[str, Object | None, Object | None]] = []
        self.from_list: list[bool] = []
        self.cache.subscribe(lambda *_: self.from_list.append(self.cache.listing))
        self.cache.subscribe(lambda *change: self.changes.append(change))
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.cache.run, args=(self.stop,), daemon=True)

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.client.close()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def heard(self) -> list[tuple[str, str]]:
        return [(change, (new or old or {})["metadata"]["name"]) for change, old, new in list(self.changes)]

    def relist(self) -> None:
        """Make it list again, as after 410."""
        watch = self.client.watch

        def gone(*_: Any, **__: Any) -> Any:
            self.client.watch = watch  # type: ignore[method-assign]
            raise KubeGoneError("too old")

        self.client.watch = gone  # type: ignore[method-assign]
        self.client._interrupt()


class World:
    """Writes to the API server of the cache."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    def create(self, name: str, value: str = "1") -> Object:
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": name}, "spec": spec(value)}
        return self.client.create(LEASES.path(self.namespace), body)

    def patch(self, name: str, value: str) -> Object:
        return self.client.patch(LEASES.path(self.namespace, name), {"spec": spec(value)})

    def delete(self, name: str) -> None:
        self.client.delete(LEASES.path(self.namespace, name))


class CacheSuite:
    @pytest.fixture
    def world(self, client: KubeClient, namespace: str) -> World:
        return World(client, namespace)

    @pytest.fixture
    def running(self, client: KubeClient, namespace: str, world: World) -> Iterator[Running]:
        world.create("first")
        with Running(client, namespace) as running:
            assert running.cache.wait_synced(10)
            yield running

    def test_lists_then_watches(self, running: Running, world: World) -> None:
        assert running.heard() == [("add", "first")]
        world.create("second")
        world.patch("second", "2")
        world.delete("first")
        eventually(lambda: len(running.changes) == 4)
        assert running.heard()[1:] == [("add", "second"), ("update", "second"), ("delete", "first")]
        _, old, new = running.changes[2]
        assert old and new
        assert (value(old), value(new)) == ("1", "2")
        assert [obj["metadata"]["name"] for obj in running.cache.items()] == ["second"]
        assert running.cache.get(world.namespace, "second") is new
        assert running.cache.by_uid(new["metadata"]["uid"]) is new
        assert running.cache.get(world.namespace, "first") is None
        assert len(running.cache) == 1
        assert running.cache.age() < 30

    def test_an_added_object_is_newer_than_a_version_requested_before(self, running: Running, world: World) -> None:
        before = running.cache.request_version()
        assert version(running.cache.get(world.namespace, "first")) <= before
        world.create("second")
        eventually(lambda: running.heard()[1:] == [("add", "second")])
        assert running.from_list == [True, False]
        assert version(running.cache.get(world.namespace, "second")) > before
        assert running.cache.request_version() >= version(running.cache.get(world.namespace, "second"))

    def test_objects_say_what_they_are_and_not_who_wrote_them(self, running: Running, world: World) -> None:
        world.create("watched")
        eventually(lambda: running.cache.get(world.namespace, "watched"))
        for name in ("first", "watched"):
            obj = running.cache.get(world.namespace, name)
            assert obj
            assert "managedFields" not in obj["metadata"]
            assert obj["kind"] == "Lease"

    def test_lists_in_pages(
        self, client: KubeClient, namespace: str, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paging, "PAGE", 3)
        names = [f"many-{number}" for number in range(8)]
        for name in names:
            world.create(name)
        with Running(client, namespace) as running:
            assert running.cache.wait_synced(10)
            assert sorted(name for _, name in running.heard()) == names

    def test_same_name_again_is_another_object(self, running: Running, world: World) -> None:
        world.delete("first")
        uid = world.create("first")["metadata"]["uid"]
        eventually(lambda: len(running.changes) == 3)
        assert running.heard()[1:] == [("delete", "first"), ("add", "first")]
        assert running.cache.by_uid(uid) is running.cache.get(world.namespace, "first")

    def test_relist_notices_what_happened_meanwhile(self, running: Running, world: World) -> None:
        world.create("stays")
        world.create("goes")
        world.create("changes")
        eventually(lambda: len(running.cache) == 4)
        first = running.cache.get(world.namespace, "first")
        assert first
        running.changes.clear()
        with running.cache._delivery:  # nothing is announced while the connection is down
            world.delete("first")
            world.create("first")
            world.delete("goes")
            world.patch("changes", "2")
            running.relist()
        eventually(lambda: ("add", "first") in running.heard() and ("delete", "goes") in running.heard())
        eventually(lambda: ("update", "changes") in running.heard())
        heard = running.heard()
        assert heard.index(("delete", "first")) < heard.index(("add", "first"))
        assert ("update", "stays") not in heard
        again = running.cache.get(world.namespace, "first")
        assert again
        assert first["metadata"]["uid"] != again["metadata"]["uid"]
        assert sorted(name for change, name in heard if change == "add") == ["first"]

    def test_broken_connection_loses_nothing(self, running: Running, world: World) -> None:
        for count in range(5):
            running.client._interrupt()
            world.create(f"later-{count}")
        eventually(lambda: len(running.cache) == 6)
        assert sorted(running.heard()) == sorted(set(running.heard()))

    def test_own_write_is_seen_at_once_and_announced_once(self, running: Running, world: World) -> None:
        with running.cache._delivery:
            answer = world.patch("first", "mine")
            running.cache.apply(answer)
            assert value(running.cache.get(world.namespace, "first")) == "mine"
            assert len(running.changes) == 1
        world.patch("first", "theirs")
        eventually(lambda: len(running.changes) == 3)
        values = [(value(old), value(new)) for _, old, new in running.changes]
        assert values == [(None, "1"), ("1", "mine"), ("mine", "theirs")]
        running.cache.apply(answer)
        assert value(running.cache.get(world.namespace, "first")) == "theirs"

    def test_late_subscriber_hears_of_all(self, running: Running, world: World) -> None:
        world.create("second")
        eventually(lambda: len(running.cache) == 2)
        late: list[tuple[str, str]] = []
        running.cache.subscribe(lambda change, old, new: late.append((change, (new or old or {})["metadata"]["name"])))
        assert sorted(late) == [("add", "first"), ("add", "second")]
        world.delete("first")
        eventually(lambda: ("delete", "first") in late)
