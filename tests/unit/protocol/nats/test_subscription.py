"""The threads that handle the messages of a subscription."""

import sys
import threading
import time

import pytest

from bridge.protocol.nats import subscription
from bridge.protocol.nats.subscription import Subscription
from cluster.polling import eventually


def test_each_thread_ends_when_the_process_stops(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """One message for many threads, at the moment at which all of them stop waiting, must leave none behind."""
    monkeypatch.setattr(subscription, "POLL", 0.02)
    handled: list[bytes] = []
    subscribed = Subscription(lambda *_: None, ("a",), lambda _s, data, _r: handled.append(data), "", 8)
    stopping, quiet = threading.Event(), threading.Event()
    workers = [threading.Thread(target=subscribed.work, args=(stopping,), daemon=True) for _ in range(8)]

    def compute() -> None:
        while not quiet.is_set():
            [str(number) for number in range(3000)]

    busy = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    try:
        for thread in (*workers, *busy):
            thread.start()
        sent, end = 0, time.monotonic() + (10 if long else 1)
        while time.monotonic() < end:
            subscribed.routes[0].deliver("a", b"x", None)
            sent += 1
            time.sleep(0.019)
        quiet.set()
        eventually(lambda: len(handled) == sent, "the last message is handled")
        stopping.set()
        for thread in workers:
            thread.join(5)
        assert [thread for thread in workers if thread.is_alive()] == []
        assert len(handled) == sent
    finally:
        quiet.set()
        stopping.set()
        sys.setswitchinterval(interval)


def subscribe(handled: list[bytes], removed: list[bool] | None = None, threads: int = 1) -> Subscription:
    return Subscription(
        lambda _it, drains: (removed if removed is not None else []).append(drains),
        ("a",),
        lambda _subject, data, _respond: handled.append(data),
        "",
        threads,
    )


@pytest.mark.parametrize(("limit", "most"), [("most_messages", 2), ("most_bytes", 6)])
def test_what_is_too_much_for_a_slow_handler_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str, most: int
) -> None:
    monkeypatch.setattr(Subscription, limit, most)
    monkeypatch.setattr(subscription, "POLL", 0.01)
    handled: list[bytes] = []
    subscribed = subscribe(handled)
    messages = [b"1st", b"2nd", b"3rd", b"4th", b"5th"]
    for data in messages:
        subscribed.routes[0].deliver("a", data, None)
    assert subscribed.dropped == 3
    # the 1st and the 2nd are logged, the 3rd is not
    assert [record.message for record in caplog.records] == ["a handler is too slow: messages dropped"] * 2
    stopping = threading.Event()
    worker = threading.Thread(target=subscribed.work, args=(stopping,), daemon=True)
    worker.start()
    eventually(lambda: handled == messages[:2], "the first two are handled")
    for data in messages[3:]:  # there is room again
        subscribed.routes[0].deliver("a", data, None)
    eventually(lambda: handled == [*messages[:2], *messages[3:]], "the others are handled")
    stopping.set()
    worker.join(10)
    assert subscribed.dropped == 3


def test_without_threads_a_message_is_handled_at_once_until_the_subscription_is_closed() -> None:
    handled: list[bytes] = []
    removed: list[bool] = []
    subscribed = subscribe(handled, removed, threads=0)
    subscribed.drain()
    subscribed.routes[0].deliver("a", b"sent before", None)
    subscribed.close()
    subscribed.routes[0].deliver("a", b"too late", None)
    assert (handled, removed) == ([b"sent before"], [True, False])
