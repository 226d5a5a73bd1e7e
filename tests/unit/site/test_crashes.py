"""The submitter is killed at every step of its work, and begins anew: one batch job, and nothing lost."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from bridge.errors import BridgeError
from bridge.protocol.nats.messages import CancelMessage, Empty, Logs, Snapshot, SubmitMessage
from bridge.site.config.site_config import parse
from bridge.site.jobs import request_limits
from tests.unit.site.conftest import OWNER, UID
from tests.unit.site.killer import Killer


def test_there_are_as_many_points_as_are_tried(world: Any, killer: Killer) -> None:
    assert 7 < killer.steps_of(world.submit) < 24


@pytest.mark.parametrize("point", range(24))
def test_killed_at_any_point_of_a_submit(world: Any, killer: Killer, point: int) -> None:
    killer.at(point, lambda: world.submit())
    world.again()
    world.look(1)
    world.submit()  # the hub asks again
    world.look(61, 61)
    assert world.status().job_id
    assert len([job for job in world.batch.table.values() if job.phase != "ended"]) == 1
    world.begin()
    world.finish()
    world.look(1)
    assert world.status().outcome == "Succeeded"


@pytest.mark.parametrize("point", range(32))
def test_killed_at_any_point_of_a_submit_that_replaces_an_unused_job(world: Any, killer: Killer, point: int) -> None:
    """The new job never gets the end of the old one: its directory names the batch jobs before it."""
    world.config = parse('pool = "p"\n[limits]\nallow_race = true\n')
    world.submit(grant_wait=60)
    world.batch.run("1")
    world.write("started/job", "")
    world.write("state/pod.json", '{"phase":"Failed","reason":"NoGrant","finishedAt":9,"ticket":"t"}')
    world.batch.end("1", code=0)
    world.look()
    was_killed = killer.at(point, lambda: world.submit())
    world.again()
    world.look(1)
    assert (world.submit().status.phase, world.folder.job(UID).read().meta.replaced) == ("queued", ("1",))
    world.look(61, 61)
    assert world.status().phase == "queued" and world.status().job_id != "1"
    assert len([job for job in world.batch.table.values() if job.phase != "ended"]) == 1
    assert was_killed or point > 12
    world.folder.sweep(world.clock.time() + 10**10)
    assert list((world.path / "staging").iterdir()) == []


@pytest.mark.parametrize("point", range(30))
def test_killed_at_any_point_of_a_cancel_that_forgets(world: Any, killer: Killer, point: int) -> None:
    world.run_job(1)

    def act() -> None:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
        for _ in range(4):
            world.look(3)

    killer.at(point, act)
    world.again()
    if world.submitter.status(OWNER, UID, Empty()).status is not None:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))  # the hub asks until it hears the end
    for _ in range(4):
        world.look(3)
    assert world.status() is None
    assert all(job.phase == "ended" for job in world.batch.table.values())
    world.folder.sweep(world.clock.time() + 10**10)
    assert list((world.path / "staging").iterdir()) == []


@pytest.mark.parametrize("point", range(20))
def test_killed_at_any_point_of_a_look(world: Any, killer: Killer, point: int) -> None:
    world.submit()
    world.begin()
    killer.at(point, lambda: world.look(1))
    world.again()
    world.look(1)
    assert world.status().phase == "running"
    world.finish()
    world.batch.end("1", code=0)
    killer.at(point, lambda: world.look(1))
    world.again()
    assert world.status().outcome == "Succeeded"


@pytest.mark.parametrize("point", [2, 3])
def test_what_a_killed_submit_left_is_removed(world: Any, monkeypatch: Any, killer: Killer, point: int) -> None:
    """After the folder was made, and after the script was opened."""
    assert killer.at(point, lambda: world.submit())
    monkeypatch.undo()
    left = world.folder.job(UID).path
    assert left.exists()
    left.joinpath("job.sh").write_bytes(b"")
    assert world.status() is None
    world.look(4000)  # by the one that goes on
    assert not left.exists()
    left.mkdir()
    world.again()  # by the next one
    assert not left.exists()


def test_what_a_killed_removal_left_is_swept_after_a_while(world: Any, monkeypatch: Any) -> None:
    world.submit()
    with monkeypatch.context() as patched:
        patched.setattr("bridge.site.jobs.job_folder.remove_tree", lambda _: None)
        world.folder.job(UID).remove()
    staging = world.path / "staging"
    assert len(list(staging.iterdir())) == 1
    now = next(staging.iterdir()).stat().st_ctime
    world.folder.sweep(now + 10)
    assert len(list(staging.iterdir())) == 1
    world.folder.sweep(now + 4000)
    assert list(staging.iterdir()) == []


def test_a_folder_that_is_being_made_is_left_alone(world: Any) -> None:
    job = world.folder.job(UID)
    with world.folder.locked(UID):
        job.path.mkdir()
        world.look(4000)
        assert job.exists()
    world.look(4000)
    assert not job.exists()


def test_what_can_not_be_written_leaves_nothing(world: Any, monkeypatch: Any) -> None:
    def full(_descriptor: int, _content: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space left"):
            world.submit()
    assert not world.folder.job(UID).exists()
    assert world.batch.submits == []
    world.submit()
    assert len(world.batch.table) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_full_disk_is_a_problem_of_the_site_and_ends_no_submitter(world: Any, monkeypatch: Any, again: bool) -> None:
    def full(_descriptor: int, _content: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.submit()
    world.submit("other")
    world.begin()
    world.look()
    world.finish()
    world.submitter.cancel(OWNER, "other", CancelMessage(grace=0, forget=True))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        world.batch.end("1", code=0)
        if again:
            world.again()
        for _ in range(3):
            world.look(1)
        assert world.watcher.folder_problems.first == f"folder {world.path}: No space left on device"
        assert world.batch.cancelled == ["2"]  # what needs no room continues
    for _ in range(3):
        world.look(5)
    assert world.watcher.folder_problems.first == ""
    assert world.status().phase == "ended" and world.status().outcome == "Succeeded"
    assert not world.folder.job("other").exists()
    assert [path for path in world.path.rglob(".*") if path.name.startswith((".duty", ".batch"))] == []


def test_a_full_disk_while_a_job_is_submitted_again(world: Any, monkeypatch: Any) -> None:
    world.submit_lost()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(world.submitter, "resubmit", full)
        world.look(4000)
    world.look(4000)
    assert len(world.batch.table) == 1


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_script_that_is_cut_off_is_no_job_and_is_made_anew(world: Any, kept: int, again: bool) -> None:
    """As the machine may find it that lost its power; nobody was told of such a job."""
    world.submit_lost()
    script = world.folder.job(UID).path / "job.sh"
    whole = script.read_bytes()
    script.write_bytes(whole[:kept])
    assert world.status() is None
    if again:
        world.again()
        assert world.watcher.index.entries == {}
        assert not script.exists()
    assert not world.submit().existed
    assert script.read_bytes() == whole
    assert len(world.batch.table) == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_job_that_can_not_be_read_is_neither_removed_nor_run_again(world: Any, begun: bool) -> None:
    """As on a shared folder whose server has gone, or after a job has meddled with its script."""
    world.submit()
    if begun:
        world.begin()
    world.write("job.sh", "nonsense")
    for _ in range(2):
        with pytest.raises(BridgeError, match="cannot be read") as refused:
            world.submit()
        assert refused.value.reason == "Unreadable"
        world.look(4000)
        world.again()
    assert world.folder.job(UID).exists()
    assert len(world.batch.submits) == 1


@pytest.mark.parametrize("asked", [False, True])
def test_a_job_of_a_submitter_that_died_before_it_told_is_taken_up(world: Any, asked: bool) -> None:
    """By the leader, which continues: when the hub requests the job, or else within the hour."""
    world.look()
    meta = request_limits.admitted(
        OWNER, SubmitMessage(namespace="ns", name="pod", script="true\n"), world.config, world.clock.time()
    )
    world.folder.job(UID).create("true\n", meta)
    if asked:
        assert world.status().reason == "Submitting"
    world.look(61 if asked else 4000)
    world.look(1)
    assert [job.uid for job in world.batch.table.values()] == [UID]


def test_a_follower_that_gets_a_request_notifies_the_leader(world: Any) -> None:
    world.submit()
    world.look()
    world.watcher.release_leadership()
    assert world.status() is not None
    assert world.folder.take_changed() == [UID]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_shared_folder_that_does_not_answer_for_a_moment_loses_no_job(
    world: Any, monkeypatch: Any, number: int
) -> None:
    world.submit()
    world.look(1)

    def broken(real: Any) -> Any:
        def call(path: Any, *args: Any, **more: Any) -> Any:
            if UID in str(path):
                raise OSError(number, "no answer")
            return real(path, *args, **more)

        return call

    with monkeypatch.context() as patched:
        for name in ("open", "stat", "listdir"):
            patched.setattr(os, name, broken(getattr(os, name)))
        world.folder.touch(UID)
        world.watcher.index.refresh(UID)
        assert [job.job for job in world.submitter.snapshot(OWNER, "", Snapshot()).jobs] == [UID]
        with pytest.raises(BridgeError, match="cannot be read"):
            world.submit()
    world.look(1)
    assert world.status().job_id
    assert len(world.batch.submits) == 1


def test_a_job_that_can_not_be_read_ends_by_the_batch_systems_word(world: Any) -> None:
    world.run_job(1)
    world.write("job.sh", "nonsense")
    world.batch.end("1", "OOMKilled")
    for _ in range(3):
        world.look(30)
    (job,) = world.submitter.snapshot(OWNER, "", Snapshot()).jobs
    assert (job.phase, job.reason) == ("ended", "OOMKilled")


def test_the_end_of_a_job_that_can_not_be_read_is_sought_at_the_batch_system(world: Any) -> None:
    world.run_job(1)
    world.write("job.sh", "nonsense")
    world.look(1)
    assert world.submitter.snapshot(OWNER, "", Snapshot()).jobs
    with pytest.raises(BridgeError, match="cannot be read"):  # it is not gone yet
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    world.look(4000)
    assert (world.batch.cancelled, world.submitter.snapshot(OWNER, "", Snapshot()).jobs) == (["1"], ())
    assert not world.folder.job(UID).exists()
    assert world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True)).status is None


def _ask(world: Any, question: str) -> Any:
    match question:
        case "status":
            return world.submitter.status(OWNER, UID, Empty())
        case "cancel":
            return world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
        case "logs":
            return world.submitter.logs(OWNER, UID, Logs(container="main", stream="s" * 8))
        case _:
            return world.submit()


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("question", ["status", "cancel", "logs", "submit"])
def test_a_job_that_can_not_be_read_is_never_reported_as_absent(world: Any, question: str, is_leader: bool) -> None:
    """By a submitter that does not remember it: one that is not the leader, or has just started."""
    world.submit()
    whole = (world.folder.job(UID).path / "job.sh").read_bytes()
    world.write("job.sh", "nonsense")
    world.again()
    if not is_leader:
        world.watcher.release_leadership()
    for _ in range(2):
        with pytest.raises(BridgeError, match="cannot be read") as refused:
            _ask(world, question)
        assert refused.value.reason == "Unreadable"
        assert refused.value.retryable
    (world.folder.job(UID).path / "job.sh").write_bytes(whole)
    assert world.status().job_id


def test_a_job_that_can_not_be_read_just_after_it_was_submitted_is_not_refused_for_good(
    world: Any, monkeypatch: Any
) -> None:
    real = world.batch.submit

    def submit(request: Any) -> str:
        answer: str = real(request)
        world.write("started/job", "1")
        world.write("job.sh", "nonsense")
        return answer

    monkeypatch.setattr(world.batch, "submit", submit)
    with pytest.raises(BridgeError) as refused:
        world.submit()
    assert refused.value.retryable


def test_a_job_that_can_not_be_read_once_its_end_is_wanted_is_not_called_gone(world: Any, monkeypatch: Any) -> None:
    world.submit()
    world.watcher.release_leadership()
    real = world.submitter._request_end

    def want_end(*args: Any) -> None:
        real(*args)
        world.write("job.sh", "nonsense")

    monkeypatch.setattr(world.submitter, "_request_end", want_end)
    with pytest.raises(BridgeError) as refused:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    assert refused.value.reason == "Unreadable"


def test_a_hole_in_a_script_is_seen(world: Any) -> None:
    world.batch.swallow = True
    with pytest.raises(BridgeError):
        world.submit()
    assert world.status() is not None
    script = world.folder.job(UID).path / "job.sh"
    script.write_bytes(script.read_bytes()[:-3] + b"\0\0\0")
    assert world.status() is None
