"""Hub and site over a real nats-server: every kind of request, invalid messages, and logs."""

import contextlib
import json
import random
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats import request_server, two_way
from bridge.protocol.nats.messages import CancelMessage, Empty, File, Files, Logs, Snapshot, SubmitMessage
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Server
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, FILES, LOGS, SNAPSHOT, STATUS, SUBMIT
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import LOG, TwoWay
from cluster.polling import eventually
from tests.contract.nats.servers import OWNER, PREFIX, NatsServer, Site, World, concurrently, status
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.real

SUBJECTS = Subjects(PREFIX, "alpha", OWNER)
SUBMISSION = SubmitMessage(namespace="ns", name="a.b-c", script="#!/bin/bash\n" + "echo hi\n" * 900)


def logs(container: str = "main", **options: Any) -> LogOptions:
    return LogOptions(container=container, **options)


class Both:
    """Both sides of one pool."""

    def __init__(self, server: NatsServer, world: World) -> None:
        self.site = Site()
        self.site_link, self.hub_link = world.link(server.url, "site"), world.link(server.url, "hub")
        Server(self.site_link, PREFIX, "alpha", self.site)
        self.client = PoolClient(self.hub_link, PREFIX, "alpha", OWNER)
        eventually(lambda: self.up())

    def up(self) -> bool:
        try:
            self.client.call(DESCRIBE, "", Empty())
        except SiteDownError:
            return False
        return True


@pytest.fixture
def both(server: NatsServer, world: World) -> Iterator[Both]:
    made = Both(server, world)
    yield made
    made.site.wait.set()


def test_every_kind_of_request(both: Both) -> None:
    first = both.client.call(SUBMIT, "uid-1", SUBMISSION)
    assert (first.existed, first.status.job) == (False, "uid-1")
    assert both.client.call(SUBMIT, "uid-1", SUBMISSION).existed
    assert both.site.submits[0] == ("uid-1", SUBMISSION)
    assert both.client.call(STATUS, "uid-1", Empty()).status == status("uid-1")
    assert both.client.call(STATUS, "uid-2", Empty()).status is None
    assert [job.job for job in both.client.call(SNAPSHOT, "", Snapshot()).jobs] == ["uid-1"]
    assert both.client.call(DESCRIBE, "", Empty()).announce.pool == "alpha"
    both.client.call(FILES, "uid-1", Files(files=[File(path="t/token", data="eA==")]))
    assert both.client.call(CANCEL, "uid-1", CancelMessage()).status is not None
    assert both.client.call(CANCEL, "uid-1", CancelMessage(forget=True)).status is None


def test_a_large_script_goes_compressed(both: Both) -> None:
    large = SUBMISSION.model_copy(update={"script": "x" * 10_000_000})  # ten times what the server takes
    both.client.call(SUBMIT, "uid-1", large)
    assert both.site.submits[0][1].script == large.script


def test_errors_travel_in_their_own_words(both: Both) -> None:
    with pytest.raises(SiteRefusedError, match="job uid-9 is not here") as caught:
        both.client.call(FILES, "uid-9", Files(files=[]))
    assert (caught.value.reason, caught.value.hint, caught.value.retryable) == ("NotFound", "look elsewhere", False)


@pytest.mark.parametrize("data", [b"", b"\x80\x04\x95", zlib.compress(b" " * (65 * 1024 * 1024))])
def test_nonsense_is_answered_with_an_error(both: Both, data: bytes) -> None:
    answer = json.loads(both.hub_link.request(SUBJECTS.request(SUBMIT, "ns-pod", "uid-1"), data, 10))
    assert answer["error"]["reason"] == "GarbledMessage"
    assert both.site.submits == []
    both.client.call(DESCRIBE, "", Empty())


def test_a_slow_submit_delays_nothing_else(both: Both) -> None:
    both.site.delay = 3
    threads = [
        threading.Thread(target=both.client.call, args=(SUBMIT, f"uid-{number}", SUBMISSION)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(both.site.submits) == 8)
    begun = time.monotonic()
    both.client.call(STATUS, "uid-1", Empty())
    both.client.call(CANCEL, "uid-1", CancelMessage())
    both.client.call(SNAPSHOT, "", Snapshot())
    assert time.monotonic() - begun < 1
    for thread in threads:
        thread.join()


def test_no_answer_is_unknown_and_the_site_refuses_what_comes_late(server: NatsServer, world: World) -> None:
    clock = FakeClock(time.time() + 3600)
    site = Site(delay=1.5)
    link = world.link(server.url)
    Server(link, PREFIX, "alpha", site)
    client = PoolClient(world.link(server.url), PREFIX, "alpha", OWNER, clock)
    eventually(lambda: not isinstance(refusal(lambda: client.call(DESCRIBE, "", Empty())), SiteDownError))
    with pytest.raises(SiteUnknownOutcomeError):
        client.call(SUBMIT, "uid-1", SUBMISSION, timeout=0.5)
    eventually(lambda: "uid-1" in site.jobs)
    clock.now = time.time() - 120
    refused = refusal(lambda: client.call(SUBMIT, "uid-2", SUBMISSION))
    assert isinstance(refused, SiteRefusedError)
    assert (refused.reason, refused.retryable) == ("Late", True)
    assert "uid-2" not in site.jobs


def refusal(call: Any) -> SiteError | None:
    try:
        call()
    except SiteError as error:
        return error
    return None


def test_a_snapshot_too_large_for_the_server_comes_in_smaller_pages(both: Both) -> None:
    for number in range(3000):
        noise = random.Random(number).randbytes(700).hex()  # compresses to half its size: 2 MiB
        both.site.jobs[f"uid-{number:05d}"] = status(f"uid-{number:05d}", message=noise)
    found: list[str] = []
    after, more, pages = "", True, 0
    while more:
        page = both.client.call(SNAPSHOT, "", Snapshot(after=after, limit=5000))
        found += [job.job for job in page.jobs]
        after, more, pages = page.jobs[-1].job, page.more, pages + 1
    assert found == sorted(both.site.jobs)
    assert pages > 1


def test_two_submitters_share_the_requests(server: NatsServer, world: World) -> None:
    sites = [Site(), Site()]
    for site in sites:
        Server(world.link(server.url), PREFIX, "alpha", site)
    client = PoolClient(world.link(server.url), PREFIX, "alpha", OWNER)
    eventually(lambda: refusal(lambda: client.call(DESCRIBE, "", Empty())) is None)
    time.sleep(0.5)
    for number in range(60):
        client.call(SUBMIT, f"uid-{number}", SUBMISSION)
    assert sum(len(site.submits) for site in sites) == 60
    assert all(site.submits for site in sites)


# --- logs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("log", [b"", bytes(range(256)) * 40_000], ids=["empty", "ten megabytes, many chunks"])
def test_a_log_comes_whole(both: Both, log: bytes) -> None:
    both.site.log = log
    with contextlib.closing(both.client.logs("uid-1", logs())) as reader:
        assert b"".join(reader) == log


def test_an_error_before_the_first_byte_is_the_answer(both: Both) -> None:
    with pytest.raises(SiteRefusedError, match="no such container") as caught:
        both.client.logs("uid-1", logs("missing"))
    assert caught.value.reason == "ContainerNotFound"


def test_an_error_in_the_middle_comes_after_what_was_read(both: Both) -> None:
    both.site.log = b"first lines\n"
    reader = both.client.logs("uid-1", logs("breaks"))
    assert next(reader) == b"first lines\n"
    with pytest.raises(SiteRefusedError, match="OSError"):
        next(reader)
    assert list(reader) == []


def test_closing_ends_a_followed_log_at_the_site(both: Both) -> None:
    both.site.log = b"first\n"
    reader = both.client.logs("uid-1", logs(follow=True))
    assert next(reader) == b"first\n"
    reader.close()
    eventually(lambda: both.site.readers_gone == 1)


def test_a_reader_that_was_forgotten_ends_the_log_too(both: Both) -> None:
    reader = both.client.logs("uid-1", logs(follow=True))
    del reader
    eventually(lambda: both.site.readers_gone == 1)


def test_a_slow_reader_holds_the_site_back_and_loses_nothing(both: Both, monkeypatch: Any) -> None:
    monkeypatch.setattr(two_way, "KEEP_ALIVE", 0.5)
    monkeypatch.setitem(TwoWay.__init__.__kwdefaults__, "silence", 2.0)
    both.site.log = b"x" * (100 * LOG.size)
    reader = both.client.logs("uid-1", logs())
    pieces = [next(reader)]
    time.sleep(4)  # longer than the site waits for somebody who says nothing
    assert len(reader._stream._stream._arrived) <= LOG.chunks
    pieces += list(reader)
    assert b"".join(pieces) == both.site.log


def test_a_silent_log_is_kept_alive(both: Both, monkeypatch: Any) -> None:
    monkeypatch.setattr(two_way, "KEEP_ALIVE", 0.5)
    monkeypatch.setitem(TwoWay.__init__.__kwdefaults__, "silence", 2.0)
    reader = both.client.logs("uid-1", logs(follow=True))
    threading.Timer(5, both.site.wait.set).start()
    begun = time.monotonic()
    assert list(reader) == []
    assert time.monotonic() - begun > 4.5
    assert both.site.readers_gone == 0


def test_the_site_gives_up_when_the_reader_says_nothing(both: Both, monkeypatch: Any) -> None:
    monkeypatch.setitem(TwoWay.__init__.__kwdefaults__, "silence", 1.0)
    both.client.call(LOGS, "uid-1", Logs.of(logs(follow=True), stream="stream00"))  # nobody reads the stream
    eventually(lambda: both.site.readers_gone == 1)


def test_a_cluster_has_half_of_the_logs_and_a_job_an_eighth(both: Both) -> None:
    both.site.log = b"line\n" * 1000
    half, eighth = request_server.MOST_LOGS // 2, request_server.MOST_LOGS // 8
    jobs = ["uid-a"] * eighth + [f"uid-{number}" for number in range(half - eighth)]
    readers = []
    for number, job in enumerate(jobs):
        if number == eighth:
            with pytest.raises(SiteRefusedError, match="of this job") as caught:
                both.client.logs("uid-a", logs())
        readers.append(both.client.logs(job, logs(follow=True)))
    assert (caught.value.reason, caught.value.retryable) == ("TooManySessions", True)
    with pytest.raises(SiteRefusedError, match="of cluster"):
        both.client.logs("uid-x", logs())
    for reader in readers:
        assert next(reader) == both.site.log
    for reader in readers:
        reader.close()
    eventually(lambda: both.site.readers_gone == half)
    eventually(lambda: refusal(lambda: both.client.logs("uid-y", logs()).close()) is None)


def test_an_idle_followed_log_survives_a_restart_of_the_server(server: NatsServer, both: Both) -> None:
    both.site.log = b"before"
    reader = both.client.logs("uid-1", logs(follow=True))
    assert next(reader) == b"before"
    server.kill()
    server.start()
    eventually(lambda: both.hub_link.connected and both.site_link.connected)
    both.site.wait.set()
    assert list(reader) == []


def test_speed_of_submits(both: Both) -> None:
    begun = time.monotonic()
    concurrently(2000, lambda number: both.client.call(SUBMIT, f"uid-{number}", SUBMISSION))
    rate = 2000 / (time.monotonic() - begun)
    print(f"{rate:.0f} submits a second")
    assert rate > 500


def test_a_link_that_is_closed_says_goodbye_first(server: NatsServer, world: World) -> None:
    link: Link = world.link(server.url)
    other = world.link(server.url)
    seen: list[bytes] = []
    other.subscribe("t.last", lambda _subject, data, _respond: seen.append(data))
    time.sleep(0.3)
    link.publish("t.last", b"goodbye")
    link.close()
    eventually(lambda: seen == [b"goodbye"] and not link.connected)
