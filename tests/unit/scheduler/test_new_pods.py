from __future__ import annotations

from typing import Any

from bridge.errors import KubeError
from scheduler.former_requests import NewPods


class StubCache:
    """A cache whose collection has the resource version 10."""

    listing = False
    down = False

    def request_version(self) -> int:
        if self.down:
            raise KubeError("down")
        return 10


def pod(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def started(**more: Any) -> tuple[NewPods, StubCache]:
    cache = StubCache()
    for name, value in more.items():
        setattr(cache, name, value)
    anything: Any = cache
    new = NewPods(anything)
    new.changed("add", None, pod("before", 11))
    new.begin()
    return new, cache


def test_only_pods_added_by_an_event_after_the_start_of_the_leadership_are_new() -> None:
    new, cache = started()
    new.changed("add", None, pod("late-event", 10))
    new.changed("update", pod("before", 11), pod("before", 12))
    new.changed("add", None, pod("new", 13))
    cache.listing = True  # the version of a listed pod is that of its last change
    new.changed("add", None, pod("missed", 14))
    assert new.uids == {"new"}
    new.changed("delete", pod("new", 15), None)
    assert new.uids == set()


def test_no_pod_is_new_if_the_api_server_does_not_answer() -> None:
    new, _ = started(down=True)
    new.changed("add", None, pod("new", 13))
    assert new.uids == set()
