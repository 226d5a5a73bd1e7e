"""The site's side of logs, over a link without a network."""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.envelope import pack, parse_chunk
from bridge.protocol.nats.log_streams import (
    ANSWER_AFTER,
    CHUNK,
    GIVE_UP,
    KEEP_ALIVE,
    WINDOW,
    Stream,
    StreamClosed,
    Streams,
    Write,
)
from bridge.protocol.nats.messages import LogAck, LogChunk
from bridge.protocol.nats.subjects import ANY, Subjects
from cluster.polling import eventually
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

NO_LOG = SiteRefusedError("no such log")
SUBJECTS = Subjects("bridge.v1", "alpha", ANY)


def chunks(link: FakeLink) -> list[tuple[int, bytes, bool, str]]:
    """Return number, data, end and error of each chunk that was sent."""
    heads = (parse_chunk(LogChunk, data) for _, data in link.sent)
    return [(head.number, data, head.end, head.error) for head, data in heads]


class Log:
    """A log of a job, and the answers to the request for it."""

    def __init__(self) -> None:
        self.link, self.clock = FakeLink(), FakeClock()
        self.answers: list[BaseException | None] = []
        self.stream = Stream(self.link, "s", self.clock, self.answers.append)  # type: ignore[arg-type]


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_request_is_answered_once_and_the_last_chunk_is_the_end(log: Log) -> None:
    log.stream.write(b"")
    assert (log.answers, chunks(log.link)) == ([None], [])
    log.stream.write(b"a")
    log.stream.write(b"b")
    log.stream.finish(None)
    assert chunks(log.link) == [(1, b"a", False, ""), (2, b"b", False, ""), (3, b"", True, "")]
    assert log.answers == [None]


def test_an_error_is_the_answer_or_after_it_a_last_chunk(log: Log) -> None:
    log.stream.finish(NO_LOG)
    assert (log.answers, chunks(log.link)) == ([NO_LOG], [])
    for error, told in ((NO_LOG, "no such log"), (OSError("hunter2"), "the log could not be read: OSError")):
        begun = Log()
        begun.stream.write(b"a")
        begun.stream.finish(error)
        assert (begun.answers, chunks(begun.link)[1:]) == ([None], [(2, b"", True, told)])


def test_no_chunk_is_larger_than_the_reader_and_the_server_take(log: Log) -> None:
    log.stream.write(b"x" * (CHUNK + 1))
    log.link.max_payload = 4096 + 10
    log.stream.write(b"x" * 20)
    assert [len(data) for _, data, _, _ in chunks(log.link)] == [CHUNK, 1, 10, 10]


def test_a_full_window_waits_for_the_reader(log: Log) -> None:
    acknowledged, unacknowledged = 0, []
    log.link.after = lambda: unacknowledged.append(len(log.link.sent) - acknowledged)

    def write() -> None:
        for _ in range(WINDOW + 2):
            log.stream.write(b"x")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    eventually(lambda: len(log.link.sent) >= WINDOW, "the window is full")
    acknowledged = 2
    log.stream.acknowledged(LogAck(number=2))
    writer.join(10)
    assert (len(log.link.sent), max(unacknowledged)) == (WINDOW + 2, WINDOW)


def test_a_reader_ends_a_log(log: Log) -> None:
    log.stream.acknowledged(LogAck(number=0, stop=True))
    with pytest.raises(StreamClosed):
        log.stream.write(b"a")
    log.stream.finish(None)
    assert chunks(log.link) == []


def test_a_log_without_new_data_is_answered_kept_alive_and_given_up(log: Log) -> None:
    def after(seconds: float) -> tuple[list[BaseException | None], int]:
        log.clock.advance(seconds)
        log.stream.tick()
        return log.answers, len(log.link.sent)

    assert after(ANSWER_AFTER - 1) == ([], 0)
    assert after(1) == ([None], 0)
    assert after(KEEP_ALIVE - ANSWER_AFTER) == ([None], 1)
    assert after(1) == ([None], 1)
    assert chunks(log.link) == [(0, b"", False, "")]
    log.stream.acknowledged(LogAck(number=0))
    after(GIVE_UP)
    log.stream.write(b"a")
    after(1)
    with pytest.raises(StreamClosed):
        log.stream.write(b"b")


class Site:
    """The logs of a site, of the cluster ``c1`` and its job ``u``."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.streams = Streams(self.link, SUBJECTS, FakeClock())  # type: ignore[arg-type]

    def start(self, read: Callable[[Write], None], answer: Callable[[Any], None] = lambda _error: None) -> None:
        self.streams.start("c1", "u", "s", read, answer)

    def pieces(self) -> list[bytes]:
        stream = SUBJECTS.of("c1").stream("s")
        return [parse_chunk(LogChunk, data)[1] for subject, data in list(self.link.sent) if subject == stream]

    def acknowledge(self, owner: str, **ack: Any) -> None:
        self.link.publish(SUBJECTS.of(owner).ack("s"), pack(LogAck(**ack)))


def test_a_log_ends_for_its_own_reader_alone() -> None:
    site, pieces, ended = Site(), Queue[bytes](), threading.Event()

    def read(write: Write) -> None:
        try:
            while True:
                write(pieces.get(timeout=10))
        except StreamClosed:
            ended.set()
            raise

    site.start(read)
    with pytest.raises(SiteRefusedError) as refused:
        site.start(read)
    assert refused.value.reason == "StreamInUse"
    site.acknowledge("c2", number=0, stop=True)
    pieces.put(b"a")
    eventually(lambda: site.pieces() == [b"a"], "the log continues")
    site.acknowledge("c1", number=1, stop=True)
    pieces.put(b"b")
    assert ended.wait(10)


def test_an_error_of_a_reader_is_told_and_the_name_is_free_again() -> None:
    site = Site()
    answers: list[Any] = []

    def fail(_write: Write) -> None:
        raise NO_LOG

    site.start(fail, answers.append)
    eventually(lambda: answers == [NO_LOG], "the request is answered")

    def starts_again() -> bool:
        try:
            site.start(lambda write: write(b"a"))
        except SiteRefusedError:
            return False
        return True

    eventually(starts_again, "the stream is free")


def test_a_site_without_a_thread_for_a_log_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    site = Site()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(SiteRefusedError) as refused:
            site.start(lambda write: write(b"a"))
    assert (refused.value.reason, refused.value.retryable) == ("TooManyStreams", True)
    answers: list[Any] = []
    site.start(lambda write: write(b"a"), answers.append)
    eventually(lambda: answers == [None], "the stream is free")
