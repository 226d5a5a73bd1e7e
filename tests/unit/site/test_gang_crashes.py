"""The submitter of the pods of a group is killed at every step, and begins anew: one job, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from tests.unit.site.killer import Killer
from tests.unit.site.test_gangs import (
    GANG,
    cancel_all,
    check_nothing_left,
    close,
    end,
    end_all,
    pod,
    start,
    statuses,
    submit,
    submit_all,
)

STEPS_OF_FIRST, STEPS_OF_LAST, STEPS_OF_END = 24, 34, 48


def living(world: Any) -> list[str]:
    return [job.uid for job in world.batch.table.values() if job.phase != "ended"]


def run_to_the_end(world: Any) -> None:
    for _ in range(3):
        world.look(61)
    assert living(world) == [GANG]
    start(world)
    end_all(world)
    world.look(1)
    assert {status.outcome for status in statuses(world)} == {"Succeeded"}
    close(world)
    cancel_all(world)
    check_nothing_left(world)


@pytest.mark.parametrize("rank", [0, 2])
def test_there_are_as_many_points_as_are_tried(world: Any, killer: Killer, rank: int) -> None:
    for other in range(rank):
        submit(world, other)
    world.batch.heterogeneous = True
    steps = killer.steps_of(lambda: submit(world, rank, cpus=2 if rank else 1))
    assert 7 < steps < (STEPS_OF_LAST if rank else STEPS_OF_FIRST)


@pytest.mark.parametrize("is_repeated", [True, False])
@pytest.mark.parametrize("point", range(STEPS_OF_LAST))
def test_killed_while_the_last_pod_is_submitted(world: Any, killer: Killer, point: int, is_repeated: bool) -> None:
    """The last pod requests more than the others, if the submission is repeated."""
    cpus, world.batch.heterogeneous = 2 if is_repeated else 1, True
    submit(world, 0)
    submit(world, 1)
    killer.at(point, lambda: submit(world, 2, cpus=cpus))
    world.again()
    world.look(1)
    # without a directory of the pod, no submitter knows of it: the hub repeats its request
    if is_repeated or not world.folder.job(pod(2)).exists() or world.folder.job(pod(2)).unfinished():
        submit(world, 2, cpus=cpus)
    run_to_the_end(world)
    assert {len(request.components) for request in world.batch.submits} == {cpus}


@pytest.mark.parametrize("point", range(STEPS_OF_FIRST))
def test_killed_while_the_first_pod_is_submitted(world: Any, killer: Killer, point: int) -> None:
    killer.at(point, lambda: submit(world, 0))
    world.again()
    world.look(1)
    submit_all(world)
    run_to_the_end(world)


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("point", range(STEPS_OF_END))
def test_killed_while_all_pods_are_cancelled(world: Any, killer: Killer, point: int, is_running: bool) -> None:
    submit_all(world)
    world.look()
    if is_running:
        start(world)
        end_all(world)
        close(world)

    def act() -> None:
        cancel_all(world)
        for _ in range(3):
            world.look(3)

    killer.at(point, act)
    world.again()
    cancel_all(world)  # the hub asks until it hears the end
    check_nothing_left(world)
    world.folder.sweep(world.clock.time() + 10**10)
    assert list((world.path / "staging").iterdir()) == []


@pytest.mark.parametrize("point", range(STEPS_OF_FIRST))
def test_killed_while_a_successor_is_submitted(world: Any, killer: Killer, point: int) -> None:
    submit_all(world)
    start(world)
    end(world, 1, 1)
    world.look(1)
    killer.at(point, lambda: submit(world, 1, 1))
    world.again()
    world.look(1)
    assert submit(world, 1, 1).job_id == "1"
    with pytest.raises(SiteRefusedError, match="rank 1"):
        submit(world, 1, 2)
    assert (world.folder.job(GANG).path / "ranks/1").read_text().startswith(pod(1, 1))
