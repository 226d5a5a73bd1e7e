"""A hub restarts while a site is silent: pools, redis or a NATS bucket, and nats-server are real."""

import copy
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.clock import SystemClock
from bridge.config.pools import NatsSection
from bridge.core.threads import Supervisor
from bridge.pools.store.redis_store import RedisStore
from bridge.pools.store.synchronizer import StoreError
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.persistence import PoolPersistence
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.request_server import Announcer, Server
from bridge.telemetry.metrics import POOL_REMEMBERED, STORE_UP
from cluster.polling import eventually
from tests.builders import NO_OBJECTS
from tests.builders import site_pod as pod
from tests.contract.nats.servers import OWNER, PREFIX, Site, World
from tests.contract.store.servers import Place

pytestmark = pytest.mark.real

CONFIG = {"runtime": {"kind": "podman"}, "header": "module load podman"}


class Hub:
    """The part of a hub that concerns pools."""

    def __init__(self, place: Place, *, leads: Callable[[], bool] = lambda: True, store: Any = None) -> None:
        self.supervisor = Supervisor()
        section = NatsSection(servers=[place.broker.server.url], seed_file=place.broker.out / "hub.seed")
        self.link = Link(section, "hub", INBOX)
        self.pools = NatsPools(self.link, PREFIX, OWNER)
        reachable = (lambda: self.link.connected) if place.kind == "nats" else (lambda: True)
        self.store = store or place.store(self.link)
        self.persistence = PoolPersistence(self.store, self.pools, SystemClock(), leads, place.kind, reachable)
        if place.kind == "nats":
            self.link.watch(self.persistence.compare_soon)
        self.link.start(self.supervisor)
        begun = time.monotonic()
        self.persistence.start(self.supervisor)
        self.waited = time.monotonic() - begun
        self.restored = self.persistence.remembered("alpha")  # before the first snapshot can arrive
        self.pools.start(self.supervisor)

    @property
    def alpha(self) -> SubmitterPool:
        return self.pools.pools()["alpha"]

    def in_step(self) -> bool:
        return self.persistence._synchronizer._is_in_step and not self.persistence._synchronizer.waiting

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(10) == []
        assert self.supervisor.failure is None


class Hubs:
    def __init__(self, place: Place) -> None:
        self.place, self.hubs = place, []

    def start(self, **options: Any) -> Hub:
        hub = Hub(self.place, **options)
        self.hubs.append(hub)
        return hub

    def stop(self) -> None:
        for hub in self.hubs:
            if not hub.supervisor.stopping.is_set():
                hub.stop()


@pytest.fixture
def hubs(place: Place) -> Iterator[Hubs]:
    made = Hubs(place)
    yield made
    made.stop()


@pytest.fixture
def site(place: Place, world: World) -> Site:
    made = Site(config=CONFIG)
    made.link = place.broker.site(world)
    Server(made.link, PREFIX, "alpha", made)
    time.sleep(0.3)
    return made


def hello(site: Site, hub: Hub, *, usable: bool = True) -> None:
    announcer = Announcer(site.link, PREFIX, "alpha")

    def known() -> bool:
        announcer.publish(site.announce())
        announcer.publish(site.buildconfig())
        time.sleep(0.1)
        pool = hub.pools.pools().get("alpha")
        if pool is None or pool.complete_at() is None or (usable and pool.buildconfig() is None):
            return False
        return pool.announced()[1] >= begun  # not only remembered

    begun = time.monotonic()
    eventually(known)


def stored(hub: Hub, kind: str) -> dict[str, Any]:
    """Return the content of the store, read over another connection."""
    store = copy.copy(hub.store)
    if isinstance(store, RedisStore):
        store._client = None
    try:
        return {key: json.loads(value) for key, value in store.load(kind).items()}
    except StoreError:
        return {}


def test_a_pool_that_is_silent_now_is_known_at_once(place: Place, hubs: Hubs, site: Site) -> None:
    first = hubs.start()
    hello(site, first)
    assert first.alpha.submit(pod("uid-1", TOKEN="hunter2"), NO_OBJECTS).phase == "queued"
    assert first.alpha.submit(pod("uid-2", TOKEN="hunter2"), NO_OBJECTS).phase == "queued"
    assert first.alpha.cancel(pod("uid-2"), 0, forget=True) is None
    eventually(lambda: stored(first, "jobs").keys() == {"alpha/uid-1"})
    heard = time.time() - (time.monotonic() - first.alpha.announced()[1])
    first.stop()
    site.link.close()

    second = hubs.start()
    pool = second.alpha
    announce, at = pool.announced()
    assert (announce.pool, announce.submitter, announce.digest) == ("alpha", "s-1", "d1")
    assert abs(time.time() - (time.monotonic() - at) - heard) < 11
    assert at < second.persistence._began
    assert pool.buildconfig().runtime.kind == "podman"
    assert pool.complete_at() is None
    assert pool.jobs() == {}  # what the store says of jobs is no view of them
    assert second.persistence.remembered("alpha") == 1
    assert POOL_REMEMBERED.labels("alpha")._value.get() == 1
    assert second.waited < 2


def test_when_the_site_speaks_its_words_count(place: Place, hubs: Hubs, site: Site) -> None:
    first = hubs.start()
    hello(site, first)
    for number in range(3):
        first.alpha.submit(pod(f"uid-{number}", TOKEN="hunter2"), NO_OBJECTS)
    eventually(lambda: len(stored(first, "jobs")) == 3)
    first.stop()
    del site.jobs["uid-0"]  # while no hub was there
    site.digest, site.config = "d2", {"runtime": {"kind": "enroot"}}

    second = hubs.start()
    assert second.restored == 3
    hello(site, second)
    eventually(lambda: second.persistence.remembered("alpha") == 2)
    assert POOL_REMEMBERED.labels("alpha")._value.get() == 0
    eventually(lambda: second.alpha.buildconfig().runtime.kind == "enroot")
    eventually(lambda: stored(second, "jobs").keys() == {"alpha/uid-1", "alpha/uid-2"})
    eventually(lambda: stored(second, "pools")["alpha"]["buildconfig"]["config"]["runtime"]["kind"] == "enroot")


def test_a_store_that_dies_holds_nothing_up_and_is_brought_into_step(
    place: Place, hubs: Hubs, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    hub = hubs.start()
    hello(site, hub)
    hub.alpha.submit(pod("uid-0", TOKEN="hunter2"), NO_OBJECTS)
    eventually(hub.in_step)
    place.kill()
    if place.kind == "redis":  # NATS is gone altogether, and so is the site
        begun = time.monotonic()
        for number in range(1, 50):
            hub.alpha.submit(pod(f"uid-{number}", TOKEN="hunter2"), NO_OBJECTS)
        assert time.monotonic() - begun < 3
        hub.alpha.cancel(pod("uid-0"), 0, forget=True)
        eventually(lambda: STORE_UP.labels(place.kind)._value.get() == 0)
        assert hub.persistence._synchronizer.waiting <= 51  # by key, however often it changes
        time.sleep(2)
        told = [record for record in caplog.records if "does not answer" in record.message]
        assert len(told) <= 2  # the connection that broke, the connection that is refused; not each attempt
        assert all(record.levelno == logging.WARNING for record in told)
    place.start()
    eventually(lambda: hub.link.connected, timeout=20)
    if place.kind == "nats":
        eventually(lambda: site.link.connected, timeout=20)
        hello(site, hub)
        for number in range(1, 50):
            hub.alpha.submit(pod(f"uid-{number}", TOKEN="hunter2"), NO_OBJECTS)
        hub.alpha.cancel(pod("uid-0"), 0, forget=True)
    eventually(hub.in_step, timeout=20)
    eventually(lambda: stored(hub, "jobs").keys() == {f"alpha/uid-{number}" for number in range(1, 50)})
    assert STORE_UP.labels(place.kind)._value.get() == 1


def test_a_store_that_lost_everything_gets_it_again(place: Place, hubs: Hubs, site: Site, folder: Path) -> None:
    hub = hubs.start()
    hello(site, hub)
    for number in range(20):
        hub.alpha.submit(pod(f"uid-{number}", TOKEN="hunter2"), NO_OBJECTS)
    eventually(lambda: hub.in_step() and len(stored(hub, "jobs")) == 20)
    place.kill()
    _empty(place, folder)
    place.start()
    eventually(lambda: hub.link.connected and site.link.connected, timeout=20)
    hello(site, hub)
    # a store that came back empty is noticed when it is asked
    hub.alpha.submit(pod("uid-20", TOKEN="hunter2"), NO_OBJECTS)
    eventually(lambda: len(stored(hub, "jobs")) == 21 and "alpha" in stored(hub, "pools"), timeout=20)


def _empty(place: Place, folder: Path) -> None:
    for path in (folder / "appendonlydir", folder / "nats" / "jetstream" / "jetstream"):
        shutil.rmtree(path, ignore_errors=True)


def store_one_job(hubs: Hubs, site: Site) -> None:
    """Start a hub, submit ``uid-1`` to the site, and stop both when the store has the job."""
    hub = hubs.start()
    hello(site, hub)
    hub.alpha.submit(pod("uid-1", TOKEN="hunter2"), NO_OBJECTS)
    eventually(lambda: stored(hub, "jobs").keys() == {"alpha/uid-1"})
    hub.stop()
    site.link.close()


def test_a_store_that_is_down_at_the_start_is_merged_later(place: Place, hubs: Hubs, site: Site) -> None:
    store_one_job(hubs, site)
    place.kill()
    second = hubs.start()
    assert 2.5 < second.waited < 4
    assert second.pools.pools() == {}
    place.start()
    eventually(lambda: "alpha" in second.pools.pools(), timeout=20)
    assert second.alpha.announced()[1] < second.persistence._began
    eventually(second.in_step, timeout=20)
    assert stored(second, "jobs").keys() == {"alpha/uid-1"}


def test_only_the_leader_writes_and_the_next_one_knows_all(place: Place, hubs: Hubs, site: Site) -> None:
    leader = hubs.start()
    leading: list[bool] = []
    standby = hubs.start(leads=lambda: bool(leading))
    hello(site, leader)
    hello(site, standby)
    leader.alpha.submit(pod("uid-1", TOKEN="hunter2"), NO_OBJECTS)
    eventually(lambda: stored(leader, "jobs").keys() == {"alpha/uid-1"})
    standby.pools.remove("alpha")
    time.sleep(0.5)
    assert stored(leader, "pools").keys() == {"alpha"}
    leader.stop()
    site.link.close()
    leading.append(True)
    eventually(lambda: "alpha" in standby.pools.pools())
    eventually(lambda: standby.persistence.remembered("alpha") == 1)  # its jobs are read after the pool
    eventually(standby.in_step)
    assert stored(standby, "jobs").keys() == {"alpha/uid-1"}
