from __future__ import annotations

import threading

import pytest

from bridge.kube import kube_access
from bridge.kube.lease import Elector
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeApi, Handler, Request
from tests.fakes.lease_suite import LeaseSuite, Steps


@pytest.fixture
def namespace() -> str:
    return "ns"


def delay_creation(api: FakeApi, clock: FakeClock, seconds: float) -> None:
    """Let so many seconds pass while the lease is created."""

    def slow(handler: Handler, request: Request) -> bool:
        if request.method == "POST":
            clock.advance(seconds)
        return False

    api.faults.append(slow)


class TestLeaseOnFake(LeaseSuite):
    """The tests that the fake and the real API server share."""

    def test_lost_when_the_api_server_is_away_for_too_long(
        self, api: FakeApi, elector: Elector, clock: FakeClock
    ) -> None:
        begun = clock.now
        steps = Steps(clock, {3: lambda: api.fail(503)})
        elector.run(steps)
        assert steps.failure is not None
        # last renewed after 4 s and given up 10 s later, before another process may acquire it
        assert clock.now - begun == 14
        assert not elector.held

    def test_lost_when_the_credentials_expire_and_cannot_be_read(
        self, api: FakeApi, elector: Elector, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go = threading.Event()
        monkeypatch.setattr(kube_access, "RENEW_WAIT", 0.01)
        monkeypatch.setattr(elector._client._access, "_load", lambda: go.wait(60))
        steps = Steps(clock, {3: lambda: api.fail(401)})
        elector.run(steps)
        go.set()
        assert steps.failure is not None
        assert not elector.held

    def test_short_trouble_is_survived(self, api: FakeApi, elector: Elector, clock: FakeClock) -> None:
        steps = Steps(clock, {3: lambda: api.fail(503, times=3)})
        steps.at[12] = steps.stop
        elector.run(steps)
        assert steps.failure is None
        assert elector.held

    def test_lease_counts_from_before_the_request_was_sent(
        self, api: FakeApi, elector: Elector, clock: FakeClock
    ) -> None:
        delay_creation(api, clock, 9)
        begun = clock.now
        assert elector._attempt()
        assert elector._held_until == begun + 15

    def test_answer_that_comes_too_late_is_not_leadership(
        self, api: FakeApi, elector: Elector, clock: FakeClock
    ) -> None:
        delay_creation(api, clock, 30)
        elector._attempt()
        assert not elector.held

    def test_renewal_whose_answer_was_lost(self, api: FakeApi, elector: Elector, clock: FakeClock) -> None:
        def do_but_break_off(handler: Handler, request: Request) -> bool:
            if request.method != "PUT":
                return False
            api.faults.clear()
            api.handle(request)
            handler.close_connection = True
            api.cut()
            return True

        steps = Steps(clock, {3: lambda: api.faults.append(do_but_break_off)})
        steps.at[8] = steps.stop
        elector.run(steps)
        assert steps.failure is None
        assert elector.held

    def test_does_not_wait_where_the_server_asks_for_it(self, api: FakeApi, elector: Elector) -> None:
        api.fail(429, headers={"Retry-After": "9"})
        assert not elector._attempt()
        assert len(api.requests) == 2
