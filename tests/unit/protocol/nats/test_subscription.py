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
