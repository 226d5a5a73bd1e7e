"""Which pods have a stream of connections to Services: the sites are in memory."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import names
from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import Exit, Output
from cluster.polling import eventually
from controllers.reach import reach_loop
from controllers.reach.reach_loop import Reaching
from tests.builders import job_status
from tests.fakes.clock import FakeClock
from tests.fakes.recorders import RecordedEvents


class Session:
    """A stream in which nothing happens until its end."""

    def __init__(self) -> None:
        self._ended: queue.Queue[None] = queue.Queue()

    def receive(self) -> Output | Exit:
        self._ended.get(timeout=20)
        raise SiteRefusedError("the session was ended", reason="SessionEnded")

    def close(self) -> None:
        self._ended.put(None)


class World:
    def __init__(self) -> None:
        self.pods: list[Mapping[str, Any]] = []
        self.events, self.opened = RecordedEvents(), list[str]()
        self.pool = SimpleNamespace(name="site", reaches=self._open, job=lambda uid: job_status(uid, "running"))
        pools = SimpleNamespace(may_reach=lambda _: True, expose=SimpleNamespace(numbers=range(0)))
        shared: Any = SimpleNamespace(
            config=SimpleNamespace(pools=pools, namespace_policies=[]), kube=None, events=self.events, clock=FakeClock()
        )
        self.loop = Reaching(shared, None, self, ())  # type: ignore[arg-type]

    def _open(self, pod: Mapping[str, Any]) -> Session:
        self.opened.append(pod["metadata"]["uid"])
        return Session()

    def reaching(self) -> Any:
        return [(pod, self.pool) for pod in self.pods]

    def find(self, namespace: str, name: str) -> None: ...

    def add(self, namespace: str, *uids: str) -> None:
        for uid in uids:
            metadata = {"namespace": namespace, "name": uid, "uid": uid, "annotations": {names.REACH: "web:80"}}
            self.pods.append({"metadata": metadata, "status": {"phase": "Running"}})


def test_a_namespace_leaves_streams_at_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach_loop, "MOST", 8)
    world = World()
    world.add("greedy", *"abcdef")
    world.loop.reconcile()
    world.add("modest", "m")
    world.loop.reconcile()
    eventually(lambda: sorted(world.opened) == [*"abcd", "m"], "half for one, one for the other")
    (told,) = {text for _, text in world.events.told}
    assert told == "pool site: 4 streams to Services of namespace 'greedy' are open already: end one of them"
    del world.pods[0]
    world.loop.reconcile()
    eventually(lambda: world.loop._streams["a"].is_over, "the end of a stream")
    for _ in range(2):
        world.loop.reconcile()
    eventually(lambda: sorted(world.opened) == [*"abcde", "m"], "a place for another one")
    world.pods.clear()
    world.loop.reconcile()


def test_a_defect_about_one_pod_keeps_no_other_from_its_stream(
    monkeypatch: pytest.MonkeyPatch, isolates: list[tuple[str, str]]
) -> None:
    world = World()
    world.add("ns", "a", "b", "c")
    world.pool.job = lambda uid: job_status(uid, "running") if uid != "a" else 1 / 0
    begin = world.loop._begin
    monkeypatch.setattr(
        world.loop, "_begin", lambda pod, *more: begin(pod, *more) if pod["metadata"]["uid"] != "b" else 1 / 0
    )
    world.loop.reconcile()
    eventually(lambda: world.opened == ["c"], "the stream of the other pod")
    assert isolates == [("reach", "ns/a"), ("reach", "ns/b")]
    world.loop.reconcile()
    assert isolates[2:] == [("reach", "ns/a")], "the other one rests"
    world.pods.clear()
    world.loop.reconcile()
