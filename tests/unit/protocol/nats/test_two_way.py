"""Two-way streams over a link that loses, repeats and breaks."""

import random
import threading
from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.nats.envelope import pack_chunk
from bridge.protocol.nats.messages import StreamHead
from bridge.protocol.nats.request_client import NatsSession
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import (
    GIVE_UP,
    KEEP_ALIVE,
    MOST_IDLE,
    PERIOD,
    SEND_AGAIN,
    SESSION,
    StreamClosedError,
    TwoWay,
    TwoWays,
)
from tests.fakes.clock import FakeClock

WINDOW, CHUNK = SESSION


class Link:
    """Keeps what is published for :meth:`Network.carry`; ``down``: publishing fails."""

    def __init__(self):
        self.sent = deque()
        self.calls = 0
        self.down = False
        self.tasks = []

    def publish(self, _subject, *messages):
        if self.down:
            raise SiteDownError("no connection")
        self.calls += 1
        self.sent.extend(messages)

    def every(self, _seconds, task):
        self.tasks.append(task)


class Network:
    def __init__(self, silence=GIVE_UP):
        self.clock = FakeClock()
        self.links = Link(), Link()
        self.ends = tuple(TwoWay(link, "subject", self.clock, silence=silence) for link in self.links)

    def carry(self, chance=None, loss=0.0):
        """Deliver what was sent, without the lost part, and some of it twice."""
        for link, other in zip(self.links, reversed(self.ends), strict=True):
            while link.sent:
                data = link.sent.popleft()
                if chance is None or chance.random() >= loss:
                    other.deliver(data)
                    if chance is not None and chance.random() < 0.2:
                        other.deliver(data)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        for end in self.ends:
            end.tick()


@pytest.fixture
def network():
    return Network()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 0.6), st.lists(st.integers(0, 3 * CHUNK), min_size=1, max_size=8))
def test_all_data_arrive_once_and_in_order(seed, loss, sizes):
    chance = random.Random(seed)
    network, pieces = Network(silence=1e9), [chance.randbytes(size) for size in sizes]
    received = ([], [])

    def send(end):
        for piece in pieces:
            end.send(1, piece)
        end.send(3, end=True)
        end.wait_until_received()

    def receive(end, data):
        while True:
            head, piece = end.receive()
            if head.end:
                return
            data.append(piece)

    threads = [threading.Thread(target=send, args=(end,)) for end in network.ends]
    threads += [threading.Thread(target=receive, args=pair) for pair in zip(network.ends, received, strict=True)]
    for thread in threads:
        thread.start()
    for _ in range(10_000):
        if not any(thread.is_alive() for thread in threads):
            break
        network.carry(chance, loss)
        network.pass_time(1)
        threads[0].join(0.0005)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert [b"".join(data) for data in received] == [b"".join(pieces)] * 2


def test_a_slow_consumer_stops_the_sender(network):
    sender, consumer = network.ends
    thread = threading.Thread(target=sender.send, args=(1, bytes(CHUNK * (WINDOW + 1))))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    for _ in range(100):  # also if the consumer rests for long
        network.carry()
        network.pass_time(KEEP_ALIVE)
    assert thread.is_alive()
    assert len(consumer._arrived) == WINDOW
    consumer.receive()
    consumer.receive()
    network.carry()
    thread.join(5)
    assert not thread.is_alive()


def test_an_end_that_claims_to_have_taken_what_it_has_not_received_fills_no_memory(network):
    for _ in range(3 * WINDOW):
        network.ends[0].send(1, bytes(CHUNK))
        network.ends[0].deliver(pack_chunk(StreamHead(seen=0, taken=10**9), b""))
    assert len(network.ends[0]._kept) <= WINDOW


def test_a_window_is_sent_at_once(network):
    network.ends[0].send(1, bytes(CHUNK * WINDOW), end=True)
    assert network.links[0].calls == 1
    network.carry()
    received = [network.ends[1].receive() for _ in range(WINDOW)]
    assert [head.end for head, _ in received] == [False] * (WINDOW - 1) + [True]
    assert b"".join(data for _, data in received) == bytes(CHUNK * WINDOW)


def test_half_a_window_is_confirmed_at_once_and_less_a_little_later(network):
    for _ in range(WINDOW // 2 - 1):
        network.ends[0].send(1, b"x")
        network.carry()
        network.ends[1].receive()
    assert network.links[1].calls == 0
    network.pass_time(PERIOD)
    network.carry()
    assert network.links[1].calls == 1
    network.pass_time(SEND_AGAIN)
    assert network.links[0].calls == WINDOW // 2 - 1, "sent again"
    for _ in range(WINDOW // 2):
        network.ends[0].send(1, b"x")
        network.carry()
        network.ends[1].receive()
    assert network.links[1].calls == 2


def test_the_last_chunk_is_confirmed_at_once(network):
    network.ends[0].send(1, b"x", end=True)
    network.carry()
    network.ends[1].receive()
    network.carry()
    assert not network.ends[0]._kept


def test_an_end_that_receives_no_more_still_sends(network):
    network.ends[1].send(0, b"not read")
    network.carry()
    network.ends[0].stop_receiving()
    with pytest.raises(StreamClosedError):
        network.ends[0].receive()
    network.ends[0].send(3, b"end")
    network.carry()
    assert network.ends[1].receive()[1] == b"end"
    assert not network.ends[0].is_over


def test_the_other_end_is_silent(network):
    network.pass_time(GIVE_UP + 1)
    with pytest.raises(SiteUnknownOutcomeError, match="nothing for 30 s"):
        network.ends[0].receive()
    with pytest.raises(StreamClosedError):
        network.ends[0].send(0, b"x")


def test_keep_alives_last_while_the_connection_is_down_for_a_while(network):
    network.links[0].down = True
    network.ends[0].send(0, b"kept")
    for _ in range(4):
        network.carry()
        network.pass_time(KEEP_ALIVE)
    network.links[0].down = False
    network.pass_time(1)
    network.carry()
    assert network.ends[1].receive()[1] == b"kept"


def test_a_closed_stream_ends_at_both_ends_after_its_data(network):
    network.ends[0].send(0, b"last")
    network.ends[0].close()
    network.carry()
    assert network.ends[1].receive()[1] == b"last"
    for end in network.ends:
        with pytest.raises(StreamClosedError):
            end.receive()
        end.close()


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}x", b'{"number":"x"}\n', pack_chunk(StreamHead(number=1), bytes(CHUNK + 1))],
    ids=("empty", "no JSON", "wrong type", "too large"),
)
def test_a_bad_peer_ends_the_stream(network, raw):
    network.ends[0].deliver(raw)
    with pytest.raises(SiteError):
        network.ends[0].receive()


def test_a_peer_that_ignores_the_window_ends_the_stream(network):
    for number in range(1, WINDOW + 2):
        network.ends[0].deliver(pack_chunk(StreamHead(number=number), b"x"))
    for _ in range(WINDOW):
        network.ends[0].receive()
    with pytest.raises(SiteRefusedError, match="window"):
        network.ends[0].receive()


def test_a_peer_that_floods_the_stream_ends_it_and_is_not_heard_any_more():
    link = Link()
    closed, handlers = [], []
    link.subscribe = lambda _subject, handler, threads: (
        handlers.append(handler) or SimpleNamespace(close=lambda: closed.append(1))
    )
    session = NatsSession(link, Subjects("p", "site", "o"), "s", FakeClock(), TwoWays(link))
    for _ in range(10):  # keep-alives, and acknowledgements of what was sent
        for _ in range(MOST_IDLE // 2):
            handlers[0]("s", pack_chunk(StreamHead(), b""), None)
            session.send(b"x")
            sent = session._stream._number
            handlers[0]("s", pack_chunk(StreamHead(seen=sent, taken=sent), b""), None)
        link.tasks[0]()
    assert not closed
    for _ in range(MOST_IDLE + 1):
        handlers[0]("s", pack_chunk(StreamHead(), b""), None)
    assert closed
    with pytest.raises(SiteRefusedError, match="floods"):
        session.receive()


def test_streams_by_key():
    link = Link()
    streams = TwoWays(link)
    stream = TwoWay(link, "subject", FakeClock())
    remove = streams.add(("owner", "name"), stream)
    with pytest.raises(SiteRefusedError, match="in use"):
        streams.add(("owner", "name"), stream)
    streams.deliver(("owner", "name"), pack_chunk(StreamHead(number=1), b"data"))
    streams.deliver(("other", "name"), b"for nobody")
    assert stream.receive()[1] == b"data"
    remove()
    streams.deliver(("owner", "name"), pack_chunk(StreamHead(number=2), b"late"))
    assert not stream._arrived
    link.tasks[0]()
