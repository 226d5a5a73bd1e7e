"""The grace period of a job at the site is counted by one clock, whoever took the request to end it."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.protocol.nats.messages import CancelMessage
from bridge.site.jobs.job_actions import KILL_ALLOWANCE
from bridge.site.submitter import Submitter
from tests.fakes.clock import FakeClock
from tests.unit.site.conftest import OWNER, UID


def elsewhere(world: Any, skew: float) -> Submitter:
    """A submitter of the same folder on another machine, whose clock is wrong."""
    return Submitter(
        world.folder,
        world.batch,
        world.watcher,
        lambda: world.config,
        FakeClock(world.clock.time() + skew),
        lag=2,
        settle=60,
        batch_list=world.submitter._batch_list,
        wait=lambda _: False,
        wake=lambda: None,
    )


@pytest.mark.parametrize("skew", [-1000.0, -20.0, 0.0, 20.0, 1000.0])
def test_a_job_has_its_grace_whatever_the_clock_of_who_took_the_request(world: Any, skew: float) -> None:
    world.run_job(1)
    elsewhere(world, skew).cancel(OWNER, UID, CancelMessage(grace=20))
    for _ in range(int(20 + KILL_ALLOWANCE) - 1):
        world.look(1)
    assert world.batch.cancelled == []
    world.look(1)
    assert world.batch.cancelled == ["1"]


@pytest.mark.parametrize("skew", [-1000.0, 1000.0])
def test_a_shorter_grace_counts_from_when_it_is_asked_for(world: Any, skew: float) -> None:
    world.run_job(1)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=600))
    world.look(1)
    elsewhere(world, skew).cancel(OWNER, UID, CancelMessage(grace=5))
    elsewhere(world, -skew).cancel(OWNER, UID, CancelMessage(grace=300, forget=True))  # a longer one changes nothing
    for _ in range(int(5 + KILL_ALLOWANCE)):
        assert world.batch.cancelled == []
        world.look(1)
    assert world.batch.cancelled == ["1"]
    assert world.folder.job(UID).read().cancel.forget


def test_a_request_that_is_repeated_does_not_prolong_the_grace(world: Any) -> None:
    world.run_job(1)
    for left in (20, 10, 0):
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=left))
        world.look(10)
    world.look(1)
    assert world.batch.cancelled == ["1"]


@pytest.mark.parametrize(
    ("grace", "seconds"),
    [
        (0, 0), (0.2, 1), (30, 30), (999_999, 999_999), (1e6, 1_000_000), (2**31 - 1, 2**31 - 1),
        (1e300, 2**31 - 1), (float("inf"), 2**31 - 1),
    ],
)  # fmt: skip
def test_the_script_reads_whole_seconds(world: Any, grace: float, seconds: int) -> None:
    """It reads the digits at the start: ``1e+06`` would be one second."""
    world.submit()
    where = world.folder.job(UID)
    where.ask_to_stop(grace, "Deleted")
    assert (where.path / "control" / "stop").read_text() == f"{seconds} Deleted\n"
