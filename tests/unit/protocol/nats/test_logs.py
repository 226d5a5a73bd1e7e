"""Logs from the site's handler to the hub's reader, over a link without a network."""

import gc
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.errors import SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import STDOUT
from bridge.protocol.nats.envelope import pack_chunk
from bridge.protocol.nats.messages import StreamHead
from bridge.protocol.nats.request_client import NatsLog, PoolClient
from bridge.protocol.nats.request_server import Server
from bridge.protocol.nats.two_way import GIVE_UP, LOG, MOST_IDLE, StreamClosedError, TwoWay
from cluster.polling import eventually
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

NO_LOG = SiteRefusedError("no such log", reason="ContainerNotFound")
Run = Callable[[TwoWay], None]


class QueuedLink(FakeLink):
    """Delivers messages on a thread of its own, as the loop of a real link does."""

    def __init__(self) -> None:
        super().__init__()
        self._queue = queue.SimpleQueue[tuple[str, bytes] | None]()
        self._thread = threading.Thread(target=self._deliver)
        self._thread.start()

    def publish(self, subject: str, *messages: bytes) -> None:
        for data in messages:
            self._queue.put((subject, data))

    def _deliver(self) -> None:
        while (message := self._queue.get()) is not None:
            super().publish(*message)

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()


class Logs:
    """A site whose logs are what ``run`` sends, and the client of a hub."""

    def __init__(self, link: QueuedLink) -> None:
        self.link, self.clock = link, FakeClock()
        self.run: Run = lambda stream: stream.send(STDOUT, end=True)
        self.error: Exception | None = None
        Server(link, "bridge.v1", "alpha", self, self.clock)  # type: ignore[arg-type]
        self.client = PoolClient(link, "bridge.v1", "alpha", "c1", self.clock)  # type: ignore[arg-type]

    def logs(self, _owner: str, _job: str, _options: Any) -> Run:
        if self.error is not None:
            raise self.error
        return self.run

    def __getattr__(self, name: str) -> Any:
        return None  # no other request is sent

    def open(self, run: Run | None = None) -> NatsLog:
        self.run = run or self.run
        return self.client.logs("u", LogOptions(container="main"))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for task in self.link.tasks:
            task()


@pytest.fixture
def logs() -> Iterator[Logs]:
    link = QueuedLink()
    yield Logs(link)
    link.stop()


class Followed:
    """Sends pieces until the log is ended."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces, self.ended, self.sent = pieces, threading.Event(), 0

    def __call__(self, stream: TwoWay) -> None:
        try:
            for piece in self._pieces:
                stream.send(STDOUT, piece)
                self.sent += 1
            while not stream.is_over:
                self.ended.wait(0.01)
        finally:
            self.ended.set()


def test_a_log_comes_whole_and_has_one_end(logs: Logs) -> None:
    def run(stream: TwoWay) -> None:
        stream.send(STDOUT, b"x" * (2 * LOG.size + 1))
        stream.send(STDOUT, b"last", end=True)

    log = logs.open(run)
    assert [len(piece) for piece in log] == [LOG.size, LOG.size, 1, len("last")]
    assert list(log) == []


def test_an_error_before_the_log_is_the_answer_and_leaves_nothing_behind(logs: Logs) -> None:
    before, logs.error = len(logs.link.subscriptions), NO_LOG
    with pytest.raises(SiteRefusedError, match="no such log") as refused:
        logs.open()
    assert (refused.value.reason, len(logs.link.subscriptions)) == ("ContainerNotFound", before)
    logs.error = None
    for _ in range(100):  # more than a job may have at once
        assert list(logs.open()) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [(SiteRefusedError("x" * 60_000), "x" * LONGEST_MESSAGE), (OSError("hunter2"), "the session failed: OSError")],
)
def test_an_error_in_the_middle_comes_after_what_was_read(logs: Logs, error: Exception, told: str) -> None:
    def run(stream: TwoWay) -> None:
        stream.send(STDOUT, b"first")
        raise error

    log = logs.open(run)
    assert next(log) == b"first"
    with pytest.raises(SiteRefusedError) as ended:
        next(log)
    assert (str(ended.value), ended.value.reason, ended.value.retryable) == (told, "LogEnded", True)
    assert list(log) == []


def test_closing_ends_the_log_at_the_site_and_a_reader_that_waits(logs: Logs) -> None:
    followed, rest = Followed(b"first"), list[bytes]()
    log = logs.open(followed)
    assert next(log) == b"first"
    reader = threading.Thread(target=lambda: rest.extend(log))
    reader.start()
    log.close()
    reader.join(10)
    assert followed.ended.wait(10)
    assert (reader.is_alive(), rest) == (False, [])


def test_a_reader_that_was_forgotten_ends_the_log_too(logs: Logs) -> None:
    followed = Followed(b"first")
    log = logs.open(followed)
    assert next(log) == b"first"
    del log
    gc.collect()
    assert followed.ended.wait(10)


def test_a_slow_reader_holds_the_site_back_and_loses_nothing(logs: Logs) -> None:
    pieces = [bytes([number]) for number in range(LOG.chunks + 5)]
    followed = Followed(*pieces)
    log = logs.open(followed)
    eventually(lambda: followed.sent == LOG.chunks, "the window is full")
    assert [next(log) for _ in pieces] == pieces
    assert followed.sent == len(pieces)


def test_a_log_without_new_data_is_kept_alive_and_a_silent_site_is_told(logs: Logs) -> None:
    log = logs.open(Followed())
    for _ in range(10):
        logs.pass_time(GIVE_UP / 5)
        eventually(logs.link._queue.empty, "the keep-alives have arrived")
    assert not log._stream.is_over
    logs.link.publish = lambda *_message: None  # type: ignore[method-assign]
    logs.pass_time(GIVE_UP + 1)
    with pytest.raises(SiteUnknownOutcomeError, match="nothing for 30 s"):
        next(log)


@pytest.mark.parametrize("repeated", [StreamHead(), StreamHead(number=1), StreamHead(number=-5)])
def test_a_site_that_floods_a_log_with_keep_alives_or_duplicates_is_not_heard_any_more(
    logs: Logs, repeated: StreamHead
) -> None:
    log = logs.open(Followed(b"first"))
    assert next(log) == b"first"
    subscription: Any = log._stream._subscription
    logs.link.publish(subscription.subjects[0], *[pack_chunk(repeated, b"")] * (MOST_IDLE + 1))
    eventually(lambda: subscription not in logs.link.subscriptions)
    with pytest.raises(SiteRefusedError, match="floods"):
        next(log)


def test_a_log_ends_for_its_own_reader_alone(logs: Logs) -> None:
    logs.run = followed = Followed(b"first")
    log = logs.open()
    subject = log._stream._stream._subject
    foreign = subject.replace(".c1.", ".c2.")
    assert foreign != subject
    logs.link.publish(foreign, b'{"stop":true}\n')
    eventually(logs.link._queue.empty, "the message has arrived")
    assert next(log) == b"first"
    assert not followed.ended.is_set()
    log.close()
    assert followed.ended.wait(10)


def test_a_site_without_a_thread_for_a_log_refuses_it(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(SiteRefusedError, match="no thread") as refused:
            logs.open()
    assert (refused.value.reason, refused.value.retryable) == ("TooManySessions", True)
    assert list(logs.open()) == []


def test_a_stream_that_is_over_takes_no_more_of_a_log(logs: Logs) -> None:
    outcomes = queue.SimpleQueue[type[BaseException]]()
    go_on = threading.Event()

    def run(stream: TwoWay) -> None:
        go_on.wait(10)
        try:
            while True:
                stream.send(STDOUT, b"x")
        except BaseException as error:
            outcomes.put(type(error))
            raise

    logs.open(run).close()
    go_on.set()
    assert outcomes.get(timeout=10) is StreamClosedError
