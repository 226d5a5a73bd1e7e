"""The checks of pods on virtual nodes without an event: their number depends on the time alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.config.hub import Config
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.core.workers import Workers
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from controllers.virtual.node_manifest import NodeSettings
from controllers.virtual.pool_state import LoopState, PoolState
from controllers.virtual.virtual_node_loop import SWEEP, SWEEP_RATE, VirtualNodes
from tests.fakes.clock import FakeClock
from tests.fakes.pool import FakePools

EACH = int(SWEEP_RATE)


class Pods(list[Any]):
    """A cache of pods."""

    synced = True

    def items(self) -> list[Any]:
        return list(self)


class Sweeps:
    """The loop with one pool, and the UIDs that it has checked."""

    def __init__(self, pods: int) -> None:
        self.clock, self.checked = FakeClock(), list[str]()
        kube = cast(KubeClient, SimpleNamespace(fenced=lambda _: None))
        settings = NodeSettings(30, 3600, "10.0.0.1", 10250, "v1")
        nodes, events = cast(Cache, Pods()), cast(EventRecorder, None)
        shared = KubeDependencies(Config(), kube, nodes, events, self.clock)
        self.loop = VirtualNodes(shared, None, FakePools(), settings)
        cache = cast(Cache, Pods({"metadata": {"uid": f"u{number}"}} for number in range(pods)))
        state = LoopState(self.clock.monotonic())
        self.record = PoolState("site", cache, Workers("pool", 1), Supervisor(), state, usable=True)

    def reconcile(self, times: int = 1) -> int:
        """Return the number of pods that these reconciliations check."""
        before = len(self.checked)
        for _ in range(times):
            self.loop._sweep(self.record)
        return len(self.checked) - before


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    def sweeps(pods: int) -> Sweeps:
        made = Sweeps(pods)
        monkeypatch.setattr(made.loop._reconciler, "needs", lambda _, uid, __: made.checked.append(uid))
        made.clock.advance(1)
        made.reconcile()  # lists the pods
        return made

    return sweeps


def test_more_reconciliations_check_no_more_pods(make: Any) -> None:
    sweeps = make(10 * EACH)
    sweeps.clock.advance(1)
    assert sweeps.reconcile(20) == EACH
    for _ in range(20):
        sweeps.clock.advance(0.05)
        sweeps.reconcile()
    assert len(sweeps.checked) <= 2 * EACH


@pytest.mark.parametrize("pods", [1, EACH, 100 * EACH])
def test_each_pod_is_checked_in_time(make: Any, pods: int) -> None:
    sweeps = make(pods)
    for _ in range(int(SWEEP)):
        sweeps.clock.advance(1)
        sweeps.reconcile()
    assert len(set(sweeps.checked)) == pods


def test_a_pause_is_made_up_for(make: Any) -> None:
    sweeps = make(EACH)
    sweeps.clock.advance(1000)
    assert sweeps.reconcile() == EACH
