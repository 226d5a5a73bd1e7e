"""Equal pods of one owner are submitted as one array: what the submitter and the leader do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.protocol.model.requests import EqualPods, PlaceInJob
from bridge.protocol.nats.messages import CancelMessage, SubmitMessage
from bridge.site.config.site_config import parse
from tests.unit.site.conftest import OWNER
from tests.unit.site.killer import Killer
from tests.unit.site.test_gangs import GANG

JOB = "70b00000-0000-4000-8000-000000000000"
POINTS_OF_SUBMIT, POINTS, POINTS_OF_HALVES, POINTS_OF_CANCEL = 12, 26, 69, 50


def pod(number: int) -> str:
    return f"a{number:07}-0000-4000-8000-000000000000"


def submit(world: Any, number: int, **more: Any) -> Any:
    more = {"array": EqualPods(owner=JOB, wanted=True), **more}
    body = SubmitMessage(namespace="ns", name=f"w-{number}", script="true\n", **more)
    return world.submitter.submit(OWNER, pod(number), body).status


def gather(world: Any) -> None:
    """Two looks of the leader, between which no pod comes."""
    world.look(0, 0.5)


def submit_each(world: Any, count: int = 3, **more: Any) -> None:
    for number in range(count):
        submit(world, number, **more)


def submit_all(world: Any, count: int = 3, **more: Any) -> None:
    submit_each(world, count, **more)
    gather(world)


def ids(world: Any, count: int = 3) -> list[str]:
    return [world.status(pod(number)).job_id for number in range(count)]


def cancel(world: Any, number: int) -> None:
    world.submitter.cancel(OWNER, pod(number), CancelMessage(grace=0, forget=True))


def cancel_each(world: Any, count: int) -> None:
    for number in range(count):
        cancel(world, number)


def living(world: Any) -> list[str]:
    return sorted(job.uid for job in world.batch.table.values() if job.phase != "ended")


def check_all_run(world: Any, count: int = 3) -> None:
    """Each pod has one job, and its own end."""
    for _ in range(3):
        world.look(61)
        gather(world)
    assert living(world) == [pod(number) for number in range(count)]
    for number in range(count):
        world.begin(pod(number))
        world.finish(pod(number), code=number)
        world.batch.end(world.status(pod(number)).job_id, code=number)
    world.look(1, 61)
    outcomes = [world.status(pod(number)).outcome for number in range(count)]
    assert outcomes == ["Succeeded", *["Failed"] * (count - 1)]
    cancel_each(world, count)
    check_nothing_left(world)


def check_nothing_left(world: Any) -> None:
    for _ in range(4):
        world.look(31)
    assert list((world.path / "jobs").iterdir()) == []
    assert living(world) == []
    assert world.watcher.index.entries == {} and world.watcher.index.awaiting_array == set()
    world.folder.sweep(world.clock.time() + 10**10)
    assert list((world.path / "arrays").iterdir()) == []


# --- gathering --------------------------------------------------------------------------------------------------------
def test_equal_pods_of_one_owner_are_one_submission(world: Any) -> None:
    assert submit(world, 0).reason == "Submitting"
    submit(world, 1)
    world.look()
    submit(world, 2)
    world.look(0.2)
    assert (world.batch.array_submits, world.batch.submits) == ([], [])
    world.look(0.5)
    ((_, indexes),) = world.batch.array_submits
    assert (indexes, world.batch.submits, ids(world)) == ([0, 1, 2], [], ["1001_0", "1001_1", "1001_2"])
    world.look(1)
    assert {world.status(pod(number)).reason for number in range(3)} == {"Priority"}
    check_all_run(world)


def test_no_pod_waits_longer_than_the_site_allows(world: Any) -> None:
    for number in range(5):
        submit(world, number)
        world.look(0.3)
    assert [indexes for _, indexes in world.batch.array_submits] == [[0, 1, 2, 3, 4]]


def test_pods_that_come_one_after_the_other_are_in_few_arrays(world: Any) -> None:
    for number in range(30):
        submit(world, number)
        world.look(0.1)
    gather(world)
    sizes = [len(indexes) for _, indexes in world.batch.array_submits]
    assert sum(sizes) + len(world.batch.submits) == 30 and len(sizes) + len(world.batch.submits) <= 4


def test_a_pod_without_others_is_a_job_alone(world: Any) -> None:
    submit(world, 0)
    gather(world)
    assert (world.batch.array_submits, [one.uid for one in world.batch.submits]) == ([], [pod(0)])
    assert (world.status(pod(0)).job_id, world.folder.job(pod(0)).read().meta.array) == ("1", "")
    assert list((world.path / "arrays").iterdir()) == []


@pytest.mark.parametrize(
    "other", [{"cpus": 2}, {"array": EqualPods(owner="other", wanted=True)}, {"flavor": "f"}, {"time_limit": 50.0}]
)
def test_pods_that_differ_are_in_other_arrays(world: Any, other: dict[str, Any]) -> None:
    for number in range(2):
        submit(world, number)
        submit(world, number + 2, **other)
    gather(world)
    assert [indexes for _, indexes in world.batch.array_submits] == [[0, 1], [0, 1]]
    assert len(world.batch.submits) == 0
    assert len({job_id.partition("_")[0] for job_id in ids(world, 4)[:2]}) == 1


def test_pods_that_race_or_are_in_a_group_are_in_no_array(world: Any) -> None:
    world.config = parse('pool = "p"\n[limits]\nallow_race = true\n')
    for number in range(2):
        submit(world, number, grant_wait=60)
        submit(world, number + 2, place=PlaceInJob(gang=GANG, rank=number, size=2))
    gather(world)
    assert world.batch.array_submits == [] and len(world.batch.submits) == 3


@pytest.mark.parametrize("kind", ["none", "flags"])
def test_a_site_without_arrays_submits_each_pod_at_once(world: Any, kind: str) -> None:
    if kind == "none":
        world.batch.arrays = False
    else:
        world.config = parse('pool = "p"\n[limits]\nrules = "interlink-slurm"\n')
    assert [submit(world, number).job_id for number in range(2)] == ["1", "2"]


@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("default", [True, False])
def test_without_a_choice_the_sites_default_counts(world: Any, default: bool, wanted: bool | None) -> None:
    world.config = parse(f'pool = "p"\n[batch]\narrays = {str(default).lower()}\n')
    submit_all(world, array=EqualPods(owner=JOB, wanted=wanted))
    assert len(world.batch.array_submits) == int(default if wanted is None else wanted)


def test_an_array_has_as_many_jobs_as_the_batch_system_allows(world: Any) -> None:
    world.batch.most = 3
    submit_all(world, 7)
    assert [len(indexes) for _, indexes in world.batch.array_submits] == [3, 3]
    assert len(world.batch.submits) == 1
    check_all_run(world, 7)


def test_the_hub_may_repeat_its_request(world: Any) -> None:
    for _ in range(2):
        submit_each(world)
    gather(world)
    assert submit(world, 1).job_id == "1001_1"
    assert len(world.batch.array_submits) == 1


def test_another_submitter_leaves_the_pods_to_the_leader(world: Any) -> None:
    _, _, other = world.start_submitter()
    body = SubmitMessage(namespace="ns", name="w", script="true\n", array=EqualPods(owner=JOB, wanted=True))
    for number in range(3):
        other.submit(OWNER, pod(number), body)
    gather(world)
    assert len(world.batch.array_submits) == 1
    check_all_run(world)


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_a_limit_on_the_users_jobs_lets_as_many_pass_as_it_allows(world: Any) -> None:
    full = BatchError("job submit limit", retryable=True)
    room = 5

    def refuse(size: int) -> BatchError | None:
        return full if size > room - len(living(world)) else None

    world.batch.refuse_array = refuse
    real = world.batch.submit

    def submit_one(request: Any) -> Any:
        if len(living(world)) >= room:
            raise full
        return real(request)

    world.batch.submit = submit_one
    submit_all(world, 12)
    assert len(living(world)) == 5
    waiting = [world.status(pod(number)) for number in range(12) if not world.status(pod(number)).job_id]
    assert {(one.phase, one.reason, one.message) for one in waiting} == {
        ("queued", "BatchSystemRefused", "job submit limit")
    }
    for job in list(world.batch.table.values()):
        world.batch.end(job.id)
    world.look(5)
    assert len(living(world)) == 0  # not again at once
    for _ in range(4):
        world.look(11)
    assert len(living(world)) == 5


def test_a_refusal_ends_all_pods(world: Any) -> None:
    world.batch.refuse = BatchError("invalid partition")
    submit_all(world)
    assert len(world.batch.array_submits) == 1
    for number in range(3):
        status = world.status(pod(number))
        assert (status.phase, status.outcome, status.reason) == ("ended", "Failed", "BatchSystemRefused")
        assert "invalid partition" in status.message
        cancel(world, number)
    check_nothing_left(world)


def test_a_site_whose_arrays_are_refused_submits_each_pod_alone(world: Any) -> None:
    world.batch.refuse_array = lambda size: BatchError("Invalid job array specification")
    submit_all(world)
    assert (len(world.batch.submits), len(ids(world))) == (3, 3)
    check_all_run(world)


def test_a_limit_of_arrays_is_found_once(world: Any) -> None:
    too_large = BatchError("Array job exceeds server or queue size limit")
    world.batch.refuse_array = lambda size: too_large if size > 3 else None
    submit_all(world, 14)
    assert [len(indexes) for _, indexes in world.batch.array_submits] == [14, 7, 3, 3, 3, 3, 2]
    world.batch.array_submits.clear()
    for number in range(14, 18):
        submit(world, number)
    gather(world)
    assert [len(indexes) for _, indexes in world.batch.array_submits] == [3]
    check_all_run(world, 18)


def test_a_batch_system_that_is_down_is_asked_again(world: Any) -> None:
    submit_each(world)
    world.batch.down = True
    gather(world)
    assert world.status(pod(0)).phase == "queued" and world.batch.array_submits == []
    world.batch.down = False
    gather(world)
    world.look(11)
    assert len(world.batch.array_submits) == 1
    check_all_run(world)


# --- no answer --------------------------------------------------------------------------------------------------------
def test_an_array_without_an_answer_is_found_by_its_name(world: Any) -> None:
    world.batch.silent = True
    submit_all(world)
    world.batch.silent = False
    world.look(1)
    assert ids(world) == ["1001_0", "1001_1", "1001_2"]
    assert len(world.batch.array_submits) == 1
    check_all_run(world)


def test_an_array_that_never_was_is_submitted_again_after_the_settle_time(world: Any) -> None:
    world.batch.swallow = True
    submit_all(world)
    world.batch.swallow = False
    cancel(world, 1)
    world.look(50)
    assert len(world.batch.array_submits) == 1
    world.look(11)
    gather(world)
    assert [indexes for _, indexes in world.batch.array_submits] == [[0, 1, 2], [0, 1]]
    assert (ids(world, 1), world.status(pod(2)).job_id) == (["1002_0"], "1002_1")
    assert living(world) == [pod(0), pod(2)]


def test_an_array_that_appears_after_all_is_cancelled(world: Any) -> None:
    world.batch.swallow = True
    submit_all(world)
    world.batch.swallow = False
    world.look(61)
    gather(world)
    (late, _), _ = world.batch.array_submits
    table = dict(world.batch.table)
    world.batch.array_submits.clear()
    with pytest.raises(BatchUnknownOutcomeError):
        world.batch.silent = True
        world.batch.submit_array(type("Request", (), {"array": late}), range(3))
    world.batch.silent = False
    world.batch.table.update(table)
    assert len(living(world)) == 6
    world.look(1)
    assert living(world) == [pod(number) for number in range(3)]
    assert ids(world) == ["1002_0", "1002_1", "1002_2"]
    check_all_run(world)


def test_an_array_that_the_batch_system_loses_is_submitted_again(world: Any) -> None:
    submit_all(world)
    world.look(1)
    world.batch.table.clear()
    for _ in range(4):
        world.look(61)
    gather(world)
    assert ids(world) == ["1002_0", "1002_1", "1002_2"]
    check_all_run(world)


def test_a_pod_that_is_lost_too_often_fails(world: Any) -> None:
    submit_all(world)
    for _ in range(20):
        world.batch.table.clear()
        world.look(61)
    assert {world.status(pod(number)).reason for number in range(3)} == {"JobLost"}
    assert len(world.batch.array_submits) == 3


# --- cancelled --------------------------------------------------------------------------------------------------------
def test_a_pod_is_cancelled_before_its_array(world: Any) -> None:
    submit_each(world)
    cancel(world, 1)
    gather(world)
    assert living(world) == [pod(0), pod(2)]
    assert not world.folder.job(pod(1)).exists()


def test_a_pod_is_cancelled_while_its_array_is_submitted(world: Any) -> None:
    world.batch.during_submit = lambda: cancel(world, 1)
    submit_all(world)
    world.batch.during_submit = lambda: None
    world.look(1, 1)
    assert world.batch.cancelled == ["1001_1"]
    assert living(world) == [pod(0), pod(2)]
    world.look(31)
    assert not world.folder.job(pod(1)).exists()


def test_a_pending_job_that_leaves_its_array_was_cancelled(world: Any) -> None:
    """Slurm keeps no record of a job that was cancelled before it was started, whoever did it."""
    submit_all(world)
    world.look(1)
    del world.batch.table["1001_1"]
    cancel(world, 2)
    world.batch.end = lambda job_id, reason: world.batch.table.pop(job_id)
    world.look(1, 1)
    status = world.status(pod(1))
    assert (status.phase, status.outcome, status.reason) == ("ended", "Failed", "Cancelled")
    assert not world.folder.job(pod(2)).exists() or world.status(pod(2)) is None
    cancel(world, 0)
    world.look(1, 1)
    assert not world.folder.job(pod(0)).exists()


def test_one_pod_of_an_array_is_cancelled(world: Any) -> None:
    submit_all(world)
    cancel(world, 2)
    world.look(1)
    assert world.batch.cancelled == ["1001_2"] and living(world) == [pod(0), pod(1)]


# --- killed -----------------------------------------------------------------------------------------------------------
def cancel_two(world: Any) -> None:
    cancel_each(world, 2)
    for _ in range(3):
        world.look(3)


def test_there_are_as_many_points_as_are_tried(world: Any, killer: Killer) -> None:
    assert killer.steps_of(lambda: submit_each(world, 2)) == POINTS_OF_SUBMIT
    assert killer.steps_of(lambda: gather(world)) == POINTS
    assert killer.steps_of(lambda: cancel_two(world)) == POINTS_OF_CANCEL
    for number in range(2, 5):
        submit(world, number)
    refuse_more_than(world, 2, BatchError("job submit limit", retryable=True))
    assert killer.steps_of(lambda: gather(world)) == POINTS_OF_HALVES


@pytest.mark.parametrize("point", range(POINTS_OF_SUBMIT))
def test_killed_while_the_pods_are_accepted(world: Any, killer: Killer, point: int) -> None:
    assert killer.at(point, lambda: submit_each(world, 2))
    world.again()
    world.look(1)
    submit_each(world, 2)  # the hub repeats its requests
    check_all_run(world, 2)


@pytest.mark.parametrize(
    ("point", "answer"),
    # until the submission, all three are the same
    [*((point, "") for point in range(POINTS)), *itertools.product(range(8, POINTS), ("refused", "none"))],
)
def test_killed_while_an_array_is_submitted(world: Any, killer: Killer, point: int, answer: str) -> None:
    submit_each(world, 2)
    world.batch.refuse = BatchError("full", retryable=True) if answer == "refused" else None
    world.batch.silent = answer == "none"
    killer.at(point, lambda: gather(world))
    world.batch.refuse, world.batch.silent = None, False
    world.again()
    world.look(1)
    check_all_run(world, 2)


def refuse_more_than(world: Any, most: int, error: BatchError) -> None:
    world.batch.refuse_array = lambda size: error if size > most else None


@pytest.mark.parametrize("point", range(11, POINTS_OF_HALVES))  # before the first submission: as above
def test_killed_while_smaller_arrays_follow_a_refused_one(world: Any, killer: Killer, point: int) -> None:
    """The next leader does not know the size that was refused: it begins with all pods, and no job is doubled."""
    submit_each(world)
    refuse_more_than(world, 2, BatchError("job submit limit", retryable=True))
    assert killer.at(point, lambda: gather(world))
    world.again()
    world.look(1)
    check_all_run(world, 3)


@pytest.mark.parametrize("point", range(POINTS_OF_CANCEL))
def test_killed_while_the_pods_are_cancelled(world: Any, killer: Killer, point: int) -> None:
    submit_all(world, 2)
    assert killer.at(point, lambda: cancel_two(world))
    world.again()
    cancel_each(world, 2)
    check_nothing_left(world)


def test_the_power_fails_after_the_submission(world: Any) -> None:
    """What was written without fsync is lost: the index of each pod, and the id of its job."""
    submit_all(world)
    for number in range(3):
        for name in ("job.json", "job.id"):
            (world.folder.job(pod(number)).path / name).unlink()
    world.again()
    world.submitter.arrays.run(1.0)
    assert world.watcher.index.awaiting_array == set()
    world.look(1)
    assert ids(world) == ["1001_0", "1001_1", "1001_2"] and len(world.batch.array_submits) == 1
    check_all_run(world)
