"""The reader of a log, against a site that breaks the protocol while nobody reads."""

from types import SimpleNamespace

import pytest

from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.nats.envelope import pack_chunk
from bridge.protocol.nats.log_reader import LogReader
from bridge.protocol.nats.log_streams import CHUNK, WINDOW
from bridge.protocol.nats.messages import LogChunk
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import MOST_IDLE

KEEP_ALIVE = pack_chunk(LogChunk(number=0), b"")


class Link:
    """A link that passes chunks to the reader."""

    def __init__(self):
        self.published = []

    def subscribe(self, subject, handler, threads=1):
        self._handler, self.is_heard = handler, True
        return SimpleNamespace(close=self._ignore)

    def _ignore(self):
        self.is_heard = False

    def publish(self, subject, data):
        self.published.append(data)

    def send(self, *chunks):
        for chunk in chunks:
            self._handler("s", chunk, None)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def reader(link):
    with LogReader(link, Subjects("p", "pool", "owner"), "s", silence=5.0) as made:
        yield made


def chunk(number, data=b"x", **more):
    return pack_chunk(LogChunk(number=number, **more), data)


def test_chunks_that_cannot_be_read_do_not_pile_up(link, reader):
    link.send(chunk(1), *[b"garbage"] * 1000)
    assert reader._chunks.qsize() == 2
    assert next(reader) == b"x"
    with pytest.raises(SiteError):
        next(reader)
    assert list(reader) == []


def test_keep_alives_do_not_pile_up_and_are_acknowledged_once_a_second(link, reader, monkeypatch):
    now = 100.0
    monkeypatch.setattr("bridge.protocol.nats.log_reader.time.monotonic", lambda: now)
    link.send(*[KEEP_ALIVE] * MOST_IDLE)
    assert (reader._chunks.qsize(), len(link.published)) == (1, 1)
    now += 10
    link.send(KEEP_ALIVE)
    assert len(link.published) == 2
    monkeypatch.undo()
    link.send(chunk(1), chunk(2, b"", end=True))
    assert list(reader) == [b"x"]


@pytest.mark.parametrize("repeated", [KEEP_ALIVE, chunk(1), chunk(-5)])
def test_a_site_that_floods_a_log_with_keep_alives_or_duplicates_is_not_heard_any_more(link, reader, repeated):
    link.send(chunk(1))
    for _ in range(2 * MOST_IDLE + 2):
        link.send(repeated)
    assert not link.is_heard
    assert next(reader) == b"x"
    with pytest.raises(SiteRefusedError, match="floods"):
        next(reader)


def test_a_chunk_that_is_too_large_ends_the_log(link, reader):
    link.send(chunk(1, b"x" * CHUNK), chunk(2, b"x" * (CHUNK + 1)), chunk(3))
    assert len(next(reader)) == CHUNK
    with pytest.raises(SiteRefusedError, match=f"more than {CHUNK} bytes"):
        next(reader)


def test_a_site_without_flow_control_ends_the_log(link, reader):
    link.send(*[chunk(number) for number in range(1, 1000)])
    assert reader._chunks.qsize() <= 4 * WINDOW + 2
    with pytest.raises(SiteRefusedError, match="without acknowledgement"):
        list(reader)


def test_the_error_of_a_site_is_short(link, reader):
    link.send(chunk(1, error="x" * 60_000, end=True))
    with pytest.raises(SiteRefusedError) as error:
        next(reader)
    assert len(str(error.value)) == LONGEST_MESSAGE


def test_a_lost_chunk_is_an_error_not_a_hole(link, reader):
    link.send(chunk(1, b"one"), chunk(3, b"three"))
    assert next(reader) == b"one"
    with pytest.raises(SiteUnknownOutcomeError, match="chunk 2"):
        next(reader)


def test_a_site_that_falls_silent_is_told(link):
    with pytest.raises(SiteUnknownOutcomeError, match="sent nothing"):
        next(LogReader(link, Subjects("p", "pool", "owner"), "s", silence=0.01))
