"""Streams: their limit for each user, who gets the changes, and their end by the clock."""

import pytest

from bridge.apps.dashboard.changes import KEEP_ALIVE, LIFE, Changes, Feed
from bridge.apps.dashboard.dashboard_app import STREAMS_PER_USER
from bridge.apps.dashboard.page_access import Viewer
from tests.fakes.clock import FakeClock
from tests.unit.apps.view.test_pod_view import pod


def be(opened, name):
    opened.access._viewer = Viewer(name, name, opened.client, lambda *_: True)


class TestLimit:
    @pytest.mark.parametrize("path", ["/changes", "/log/hpc/p/main?follow"])
    def test_one_user_cannot_use_up_the_streams_of_the_others(self, site, path):
        opened = site([pod()], logs=[b"line"])
        be(opened, "mallory")
        streams = [opened.get(path, buffered=False) for _ in range(STREAMS_PER_USER)]
        assert {answer.status_code for answer in streams} == {200}
        refused = opened.get(path)
        assert refused.status_code == 429
        assert f"{STREAMS_PER_USER} pages and logs of this user are open already" in refused.text
        assert opened.get("/").status_code == 200
        be(opened, "ann")
        streams.append(opened.get(path, buffered=False))
        assert streams[-1].status_code == 200
        be(opened, "mallory")
        streams[0].close()
        streams.append(opened.get(path, buffered=False))
        assert streams[-1].status_code == 200
        for answer in streams[1:]:
            answer.close()

    def test_a_stream_that_is_answered_with_an_error_does_not_count(self, site):
        opened = site([pod()])
        for _ in range(2 * STREAMS_PER_USER):
            answer = opened.get("/log/hpc/p/main?tail=-1", buffered=False)
            assert answer.status_code == 400
            answer.close()


class TestRights:
    @pytest.mark.parametrize(
        ("allowed", "path", "status"),
        [
            ((), "/changes", 403),
            ((), "/changes?namespace=hpc", 403),
            ((("pods", None),), "/changes", 200),
            ((("nodes", None),), "/changes", 200),
            ((("pods", "hpc"),), "/changes", 200),
            ((("pods", "empty"),), "/changes", 403),
            ((("pods", "empty"),), "/changes?namespace=empty", 200),
        ],
    )
    def test_changes_are_for_users_who_may_list_pods_or_nodes(self, site, allowed, path, status):
        opened = site([pod()], may=lambda plural, namespace: (plural, namespace) in allowed)
        answer = opened.get(path, buffered=False)
        assert answer.status_code == status
        answer.close()


class Simulated(Changes):
    """Changes with a period, on a clock that does not wait."""

    def __init__(self, period):
        super().__init__(FakeClock())
        self.period = period

    def wait(self, after, feed, timeout):
        left = self.period - self.clock.monotonic() % self.period
        self.clock.advance(min(left, timeout))
        return after + (left <= timeout)


@pytest.mark.parametrize("period", [1, 5, 14.5, 20, 1e9])
def test_a_stream_lives_as_long_whatever_changes(period):
    changes = Simulated(period)
    begin = changes.clock.monotonic()
    for _ in Feed(changes, 0):
        pass
    assert LIFE <= changes.clock.monotonic() - begin <= LIFE + KEEP_ALIVE
