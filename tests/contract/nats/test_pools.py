"""The hub's view of pools, over a real nats-server, with a site whose jobs change continuously."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median

import pytest

from bridge.errors import SiteDownError
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import Event, SubmitMessage, SubmittedMessage
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_server import Announcer, Server
from cluster.polling import eventually
from tests.builders import NO_OBJECTS
from tests.builders import site_pod as pod
from tests.contract.nats.servers import OWNER, PATIENCE, PREFIX, NatsServer, PlainMessages, Site, World, status

pytestmark = pytest.mark.real

PHASES = ("queued", "running", "ended")


class Living(Site):
    """A site that publishes events; those that it cannot send are lost."""

    def connect(self, link: Link) -> None:
        self.link, self.announcer = link, Announcer(link, PREFIX, self.pool)
        self.lock = threading.Lock()
        Server(link, PREFIX, self.pool, self)

    def submit(self, owner: str, job: str, submit: SubmitMessage) -> SubmittedMessage:
        answer = super().submit(owner, job, submit)
        self.change(job, "queued")
        return answer

    def change(self, job: str, phase: str) -> None:
        with self.lock:
            self.sequence += 1
            self.jobs[job] = status(job, phase, message=str(self.sequence))
            self._say(lambda: self.announcer.publish(self.event(job)))

    def event(self, job: str) -> Event:
        return Event(pool=self.pool, submitter=self.submitter, sequence=self.sequence, status=self.jobs[job])

    def say_hello(self) -> None:
        with self.lock:
            self._say(lambda: self.announcer.publish(self.announce()))

    def _say(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(SiteDownError):
            what()


@pytest.fixture
def site(server: NatsServer, world: World) -> Iterator[Living]:
    made = Living()
    made.connect(world.link(server.url, "site"))
    yield made
    made.wait.set()


@pytest.fixture
def pools(server: NatsServer, world: World, site: Living) -> NatsPools:
    link = world.link(server.url, "hub")
    made = NatsPools(link, PREFIX, OWNER)
    made.start(world.supervisor)
    time.sleep(0.3)
    return made


def hello(site: Living, pools: NatsPools) -> SubmitterPool:
    site.say_hello()
    eventually(lambda: "alpha" in pools.pools())
    pool = pools.pools()["alpha"]
    eventually(lambda: pool.complete_at() is not None)
    eventually(lambda: pool.ready().ok)
    return pool


def test_the_life_of_a_job(site: Living, pools: NatsPools) -> None:
    pool = hello(site, pools)
    assert pool.submit(pod("uid-1"), NO_OBJECTS).phase == "queued"
    site.change("uid-1", "running")
    eventually(lambda: pool.jobs()["uid-1"].phase == "running")
    site.log = b"hello"
    assert b"".join(pool.logs(pod("uid-1"), LogOptions(container="main"))) == b"hello"
    site.change("uid-1", "ended")
    eventually(lambda: pool.jobs()["uid-1"].phase == "ended")
    assert pool.cancel(pod("uid-1"), 0, forget=True) is None
    assert pool.jobs() == {}
    assert pool.status(pod("uid-1")) is None
    eventually(lambda: pool.buildconfig() is not None)  # asked for: it was never published
    assert site.described == 1
    assert site.snapshots <= 2


def test_an_event_is_seen_within_a_moment(server: NatsServer, world: World, site: Living, pools: NatsPools) -> None:
    """Compared with messages that nobody handles: a busy machine delays both."""
    pool = hello(site, pools)
    plain, snapshots = PlainMessages(world, server), site.snapshots
    for number in range(1000):
        site.change(f"uid-{number}", "queued")
    eventually(lambda: len(pool.jobs()) == 1000)
    seen: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    pool.subscribe(lambda uid: seen.put((uid, time.monotonic())))
    delays, usual = [], []
    for number in range(300):
        usual.append(plain.delay())
        begun = time.monotonic()
        site.change(f"uid-{number}", "running")
        uid, at = seen.get(timeout=PATIENCE)
        assert uid == f"uid-{number}"
        delays.append(at - begun)
    for number in range(300, 1000):
        site.change(f"uid-{number}", "running")
    assert {seen.get(timeout=PATIENCE)[0] for _ in range(700)} == {f"uid-{number}" for number in range(300, 1000)}
    assert site.snapshots == snapshots, "the events alone told it"
    print(f"median {median(delays) * 1000:.1f} ms, of plain messages {median(usual) * 1000:.1f} ms")
    assert median(delays) < max(0.05, 5 * median(usual))


def test_ten_thousand_jobs_in_one_snapshot(site: Living, pools: NatsPools) -> None:
    for number in range(10_000):
        site.jobs[f"uid-{number:05}"] = status(f"uid-{number:05}", "running", message="m" * 200)
    begun = time.monotonic()
    pool = hello(site, pools)
    took = time.monotonic() - begun
    assert len(pool.jobs()) == 10_000
    print(f"{took:.1f} s for 10,000 jobs, {site.snapshots} pages")
    assert site.snapshots == 20


def test_after_restarts_of_the_server_the_view_is_the_site_s(
    server: NatsServer, site: Living, pools: NatsPools
) -> None:
    pool = hello(site, pools)
    stop = threading.Event()

    def live() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            site.change(f"uid-{number % 200}", PHASES[number // 200 % 3])
            if number % 100 == 0:
                site.say_hello()
            time.sleep(0.002)

    thread = threading.Thread(target=live)
    thread.start()
    for _ in range(3):
        time.sleep(0.5)
        server.kill()
        time.sleep(0.3)
        server.start()
        eventually(lambda: site.link.connected, timeout=20)
    stop.set()
    thread.join()

    def same() -> bool:
        site.say_hello()
        time.sleep(0.1)
        return pool.jobs() == site.jobs

    eventually(same, timeout=20)


def test_a_site_that_is_gone_is_told_at_once_and_its_jobs_stay_known(
    server: NatsServer, site: Living, pools: NatsPools
) -> None:
    pool = hello(site, pools)
    pool.submit(pod("uid-1"), NO_OBJECTS)
    site.link.close()
    eventually(lambda: not site.link.connected)
    eventually(lambda: server.connections() == 1)  # the hub's: the server has seen the end of the site's
    begun = time.monotonic()
    with pytest.raises(SiteDownError):
        pool.cancel(pod("uid-1"), 0)
    assert time.monotonic() - begun < 2
    assert set(pool.jobs()) == {"uid-1"}
