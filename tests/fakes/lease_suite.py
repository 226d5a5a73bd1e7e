"""The behaviour of leader election. A subclass defines the fixtures ``client`` and ``namespace``.

The clock moves only when a test moves it.
"""

from __future__ import annotations

from typing import Any

import pytest

from bridge import errors
from bridge.clock import parse_rfc3339
from bridge.core.threads import Supervisor
from bridge.kube.kube_client import KubeClient
from bridge.kube.lease import Elector
from bridge.kube.resources import LEASES
from tests.fakes.clock import FakeClock


class Steps(Supervisor):
    """Waits by moving the clock; ``at`` maps a number of waits to the function that runs after them."""

    def __init__(self, clock: FakeClock, at: dict[int, Any]) -> None:
        super().__init__()
        self.clock, self.at, self.waits = clock, at, 0

    def wait(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        self.waits += 1
        action = self.at.get(self.waits)
        if action is not None:
            action()
        if self.waits > 50:
            self.stop()
        return self.stopping.is_set()


class LeaseSuite:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(1_800_000_000.5)

    @pytest.fixture
    def elector(self, client: KubeClient, namespace: str, clock: FakeClock) -> Elector:
        return Elector(client, namespace, "leader", "one", clock=clock, rand=lambda: 0.0)

    @pytest.fixture
    def other(self, client: KubeClient, namespace: str, clock: FakeClock) -> Elector:
        return Elector(client, namespace, "leader", "two", clock=clock, rand=lambda: 0.0)

    def spec(self, client: KubeClient, namespace: str) -> dict[str, Any]:
        return client.get(LEASES.path(namespace, "leader"))["spec"]

    def run(self, elector: Elector, clock: FakeClock, at: dict[int, Any]) -> Steps:
        steps = Steps(clock, at)
        elector.run(steps)
        return steps

    def test_acquires_renews_and_releases(
        self, elector: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        begun = clock.now
        assert not elector.held
        with pytest.raises(errors.LostLeadershipError):
            elector.check()
        held_until = []

        def stop() -> None:
            elector.check()
            held_until.append(elector._held_until)
            steps.stop()

        steps = Steps(clock, {6: stop})
        elector.run(steps)
        assert steps.failure is None
        assert held_until == [begun + 10 + 15]  # renewed every 2 s; the sixth wait ended the loop
        spec = self.spec(client, namespace)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
        assert parse_rfc3339(spec["acquireTime"]) == pytest.approx(begun, abs=1e-3)
        assert parse_rfc3339(spec["renewTime"]) == pytest.approx(begun + 10, abs=1e-3)
        assert elector.held
        elector.release()
        assert not elector.held
        spec = self.spec(client, namespace)
        assert not spec.get("holderIdentity")
        elector.release()

    def test_released_lease_is_taken_at_once(
        self, elector: Elector, other: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        assert elector._attempt()
        assert not other._attempt()
        elector.release()
        assert other._attempt()
        assert other.held
        spec = self.spec(client, namespace)
        assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("two", 1, 15)

    def test_a_lease_is_inherited_unless_it_was_new_or_released(
        self, elector: Elector, other: Elector, clock: FakeClock
    ) -> None:
        self.run(elector, clock, {3: lambda: None, 50: lambda: None})
        assert not elector.inherited  # it had no holder
        elector.release()
        assert other._attempt()
        assert not other.inherited
        assert not elector._attempt()
        clock.advance(15)
        assert elector._attempt()
        assert elector.inherited
        assert elector._attempt()
        assert elector.inherited  # as long as this process leads

    def test_unchanged_lease_is_taken_after_its_duration_as_seen(
        self, elector: Elector, other: Elector, clock: FakeClock
    ) -> None:
        assert elector._attempt()
        clock.advance(100)  # not observed before: it must stay unchanged for its duration first
        assert not other._attempt()
        clock.advance(14.9)
        assert not other._attempt()
        clock.advance(0.2)
        assert other._attempt()
        assert not elector.held

    def test_renewed_lease_is_not_taken(self, elector: Elector, other: Elector, clock: FakeClock) -> None:
        for _ in range(20):
            assert elector._attempt()
            assert not other._attempt()
            clock.advance(2)
        assert elector.held

    def test_times_written_by_others_are_not_believed(
        self, elector: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "leader", "namespace": namespace},
            "spec": {
                "holderIdentity": "go-client",
                "leaseDurationSeconds": 40,
                "acquireTime": "1999-01-01T00:00:00.000000Z",
                "renewTime": "1999-01-01T00:00:00.000000Z",
                "leaseTransitions": 7,
            },
        }
        client.create(LEASES.path(namespace), body)
        assert not elector._attempt()
        clock.advance(39)
        assert not elector._attempt()
        clock.advance(2)
        assert elector._attempt()
        assert self.spec(client, namespace)["leaseTransitions"] == 8

    def test_two_never_hold_it_at_once(self, elector: Elector, other: Elector, clock: FakeClock) -> None:
        holders = []
        for step in range(200):
            if step % 40 < 20:
                elector._attempt() if not elector.held else elector._renew()
            other._attempt() if not other.held else other._renew() and step % 50 < 30
            assert not (elector.held and other.held)
            holders.append((elector.held, other.held))
            clock.advance(1.9)
        assert any(first for first, _ in holders)

    def test_stopped_process_finds_it_lost(self, elector: Elector, other: Elector, clock: FakeClock) -> None:
        def stopped_for_long() -> None:
            assert elector.held
            clock.advance(20)
            assert not elector.held
            with pytest.raises(errors.LostLeadershipError):
                elector.check()

        steps = self.run(elector, clock, {3: stopped_for_long})
        assert steps.failure is not None
        assert "lost" in steps.failure
        assert steps.waits == 3

    def test_taken_lease_is_lost_at_once(
        self, elector: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        def take() -> None:
            client.patch(LEASES.path(namespace, "leader"), {"spec": {"holderIdentity": "thief"}})

        steps = self.run(elector, clock, {3: take})
        assert steps.failure is not None
        assert (steps.waits, elector.held) == (3, False)
        elector.release()
        assert self.spec(client, namespace)["holderIdentity"] == "thief"

    def test_deleted_lease_is_lost_at_once(
        self, elector: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        steps = self.run(elector, clock, {3: lambda: client.delete(LEASES.path(namespace, "leader"))})
        assert steps.failure is not None
        assert steps.waits == 3

    def test_foreign_label_does_not_disturb(
        self, elector: Elector, client: KubeClient, namespace: str, clock: FakeClock
    ) -> None:
        def label() -> None:
            client.patch(LEASES.path(namespace, "leader"), {"metadata": {"labels": {"a": "b"}}})

        steps = Steps(clock, {3: label})
        steps.at[9] = steps.stop
        elector.run(steps)
        assert steps.failure is None
        assert elector.held
        assert client.get(LEASES.path(namespace, "leader"))["metadata"]["labels"] == {"a": "b"}
