"""A job's life at a site: exactly once, whatever goes wrong in between."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from bridge.errors import BatchError, BatchUnknownOutcomeError, SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, ScriptWithoutLibrary, Snapshot, SubmitMessage
from bridge.script import library
from bridge.site.config.site_config import parse
from bridge.site.jobs import job_script
from bridge.site.jobs.job_actions import CANCEL_PERIOD
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_index import FIRST_STATE
from bridge.site.submitter import BUILDCONFIG
from tests.unit.site import test_gangs
from tests.unit.site.conftest import OWNER, UID


def test_a_job_from_submit_to_forget(world: Any) -> None:
    assert world.submit().status.phase == "queued"
    world.look()
    assert (world.status().phase, world.status().reason) == ("queued", "Priority")
    world.begin()
    world.look()
    assert (world.status().phase, world.status().host) == ("running", "n1")
    world.write("termination/main", "bye")
    world.finish(code=3)
    world.look()
    done = world.status()
    assert (done.phase, done.outcome, done.containers[0].ended.exit_code) == ("ended", "Failed", 3)
    assert done.containers[0].ended.message == "bye"
    world.batch.end("1", code=1)
    world.look()
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    world.look()
    assert (world.status(), world.batch.cancelled) == (None, [])
    numbers = [number for number, _ in world.events]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_start_of_a_script_and_its_first_state_are_one_event(world: Any) -> None:
    world.submit()
    world.look()
    seen = len(world.events)
    world.batch.run("1")
    world.write("started/job", "")
    world.watcher.read_changes()
    assert len(world.events) == seen
    world.begin()
    world.watcher.read_changes()
    assert [(status.phase, len(status.containers)) for _, status in world.events[seen:]] == [("running", 1)]
    assert not world.watcher.index.unreported


def test_a_script_that_writes_no_state_is_running_all_the_same(world: Any) -> None:
    world.submit()
    world.look()
    world.batch.run("1")
    world.write("started/job", "")
    world.watcher.read_changes()
    assert world.status().phase == "queued"
    world.clock.advance(FIRST_STATE)
    world.watcher.read_changes()  # no file has changed
    assert (world.status().phase, world.events[-1][1].phase) == ("running", "running")
    world.watcher.read_changes()
    assert not world.watcher.index.unreported


@pytest.mark.parametrize("end", ["ended", "cancelled"])
def test_no_other_news_of_a_script_without_a_state_waits(world: Any, end: str) -> None:
    world.submit()
    world.look()
    world.batch.run("1")
    world.write("started/job", "")
    world.look()
    if end == "ended":
        world.batch.end("1", "NodeFail")
        world.look(1, 2)
    else:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=5, forget=False))
    assert world.status().phase == ("ended" if end == "ended" else "running")
    assert not world.watcher.index.unreported


@pytest.mark.parametrize("eager", [False, True])
def test_no_job_that_is_gone_is_still_listed_as_cancelled(world: Any, eager: bool) -> None:
    world.submit()
    world.begin()
    world.finish()
    world.batch.end("1", code=0)
    world.look()
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    assert world.watcher.index.pending_cancellations == {UID}
    if eager:  # the leader runs all actions after each list of jobs, and only those
        world.look()
    else:
        world.watcher.actions.run_cancellations()
    assert (world.status(), world.watcher.index.pending_cancellations) == (None, set())


def test_the_library_is_put_into_a_script_that_comes_without_it(world: Any) -> None:
    digest = library.digest("podman")
    cut = ScriptWithoutLibrary(before="#!/bin/bash\nfirst\n", library=digest, after="last\n")
    world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=cut))
    lines = (world.folder.job(UID).path / "job.sh").read_text().split("\n", 3)
    assert f"{lines[0]}\n{lines[3]}" == f"#!/bin/bash\nfirst\n{library.text('podman')}last\n"


@pytest.mark.parametrize("script", ["#!/bin/bash\n@", "@"])
def test_a_log_is_bounded_as_the_site_says_whatever_the_script_says(world: Any, script: str) -> None:
    world.config = parse('pool = "p"\n[container_logs]\nmax_size = "1.5Mi"\nmax_files = 3\n')
    names = ("PODBRIDGE_LOG_MAX_SIZE", "PODBRIDGE_LOG_MAX_FILES")
    show = "".join(f'{name}=1\nprintf %s, "${name}"\n' for name in names)
    world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=script.replace("@", show)))
    path = world.folder.job(UID).path / "job.sh"
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "1572864,3,"
    assert not (world.config.buildconfig().dump().keys() & {"container_logs"}), "the hub need not know"


def test_a_library_that_is_not_here_is_refused_and_nothing_stays(world: Any) -> None:
    cut = ScriptWithoutLibrary(before="", library="0" * 64, after="")
    with pytest.raises(SiteRefusedError, match="000000") as refused:
        world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=cut))
    assert (refused.value.reason, refused.value.retryable) == ("UnknownLibrary", True)
    assert (world.status(), world.batch.submits, list(world.folder.jobs.iterdir())) == (None, [], [])


def test_the_size_of_a_script_counts_with_its_library(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_script, "LARGEST_SCRIPT", len(library.text("none")))
    cut = ScriptWithoutLibrary(before="#", library=library.digest("none"), after="")
    with pytest.raises(SiteRefusedError, match="larger"):
        world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=cut))


def test_a_job_that_runs_is_told_of_whatever_is_sent_for_it(world: Any) -> None:
    """A hub may ask again after the site's configuration, or its version, has changed."""
    world.submit()
    gone = ScriptWithoutLibrary(before="", library="0" * 64, after="")
    told = world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=gone, flavor="no-more"))
    assert told.existed
    assert len(world.batch.submits) == 1


def test_submit_is_idempotent(world: Any) -> None:
    world.submit()
    assert world.submit().existed
    world.again()
    assert world.submit().existed
    assert len(world.batch.submits) == 1


def test_9_3_a_refusal_is_told_in_the_batch_systems_words_and_leaves_nothing(world: Any) -> None:
    world.batch.refuse = BatchError("Invalid account", retryable=False)
    with pytest.raises(BatchError, match="Invalid account"):
        world.submit()
    assert (world.status(), world.folder.uids()) == (None, [])
    world.batch.refuse = None
    assert not world.submit().existed


def test_9_3_a_submit_whose_answer_is_lost_is_found_by_its_name(world: Any) -> None:
    world.batch.silent = True
    with pytest.raises(BatchUnknownOutcomeError):
        world.submit()
    assert (world.status().phase, world.status().reason) == ("queued", "Submitting")
    world.again()
    assert world.submit().existed
    assert (world.status().job_id, len(world.batch.submits)) == ("1", 1)


def test_the_leader_finds_it_too(world: Any) -> None:
    world.batch.silent = True
    with pytest.raises(BatchUnknownOutcomeError):
        world.submit()
    world.look()
    assert world.status().job_id == "1"


def test_a_submit_that_never_arrived_is_made_again_but_not_soon(world: Any) -> None:
    world.submit_lost()
    world.look(10)
    assert world.submit().existed
    assert len(world.batch.submits) == 1
    world.look(60)
    assert (len(world.batch.submits), world.status().job_id) == (2, "2")


def test_a_cancelled_job_whose_submit_got_no_answer_is_over_when_a_list_from_after_it_has_no_job(world: Any) -> None:
    """The batch system is down until then, and has taken the job: it appears late."""
    world.batch.silent = True
    with pytest.raises(BatchUnknownOutcomeError):
        world.submit()
    world.batch.down = True
    world.look(61)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=30))
    world.watcher.actions.run_cancellations()
    world.look(100)
    assert (world.status().phase, world.status().reason) == ("queued", "Cancelling")
    assert (world.folder.job(UID).path / "control" / "stop").read_text() == "0 Deleted\n", "its script finds it"
    world.batch.down = None
    world.look(1)
    assert (world.status().job_id, world.batch.cancelled) == ("1", ["1"])


def test_a_cancelled_job_that_never_arrived_is_over_at_the_first_list_after_it(world: Any) -> None:
    world.submit_lost()
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=30))
    world.look(60)
    assert world.status().phase == "queued"
    world.look(1)
    assert (world.status().phase, world.batch.submits[1:]) == ("ended", [])


def test_a_look_for_a_job_that_began_too_early_proves_nothing(world: Any) -> None:
    """The batch system answers slowly: its answer comes when no job can appear any more, but may be older."""
    find = world.batch.find

    def slow_find(uid: str) -> Any:
        found = find(uid)
        world.clock.advance(20)
        return found

    world.submit_lost()
    world.clock.advance(50)
    world.batch.find = slow_find
    world.submit()
    assert len(world.batch.submits) == 1
    world.submit()
    assert len(world.batch.submits) == 2


def test_a_second_job_of_the_same_name_is_cancelled(world: Any) -> None:
    """The first submit's job appears after the second was made."""
    world.submit()
    late = world.batch.table["1"]
    world.batch.table["7"] = type(late)(id="7", uid=late.uid, phase="queued")
    world.look(1)
    assert (world.batch.cancelled, world.status().job_id) == (["7"], "1")


def test_a_refused_second_try_ends_the_job(world: Any) -> None:
    world.submit_lost()
    world.batch.refuse = BatchError("no such partition")
    world.look(61, 3)
    assert (world.status().phase, world.status().reason) == ("ended", "BatchSystemRefused")


def test_cancel_while_the_submit_goes_on_wins(world: Any) -> None:
    world.batch.during_submit = lambda: world.submitter.cancel(OWNER, UID, CancelMessage(grace=30, forget=True))
    world.submit()
    world.look(1, 1, 1)
    assert (world.batch.cancelled, world.status()) == (["1"], None)


def test_cancel_while_a_submit_goes_on_that_is_refused(world: Any) -> None:
    world.batch.refuse = BatchError("no")
    world.batch.during_submit = lambda: world.submitter.cancel(OWNER, UID, CancelMessage(grace=30, forget=True))
    with pytest.raises(BatchError):
        world.submit()
    world.batch.refuse = None
    with pytest.raises(SiteRefusedError) as refused:
        world.submit()
    assert refused.value.reason == "Forgotten"


def test_what_was_refused_is_forgotten_by_the_watcher_too(world: Any) -> None:
    """A cancel that came in between has shown it the folder."""
    world.batch.refuse = BatchError("no")
    world.batch.during_submit = lambda: world.watcher.index.refresh(UID)
    with pytest.raises(BatchError):
        world.submit()
    world.look(1)
    assert world.watcher.index.counts() == {}


def just_submitted(monkeypatch: Any, act: Callable[[], None]) -> None:
    """Have something happen right after the batch system has taken a job, before its submitter tells of it."""
    write_id = JobFolder.write_id

    def write_and_act(folder: JobFolder, job_id: str) -> None:
        write_id(folder, job_id)
        monkeypatch.undo()
        act()

    monkeypatch.setattr(JobFolder, "write_id", write_and_act)


def test_a_script_that_is_faster_than_its_submitter_is_not_taken_for_queued(world: Any, monkeypatch: Any) -> None:
    just_submitted(monkeypatch, lambda: (world.begin(), world.look()))
    assert (world.submit().status.phase, world.events[-1][1].phase) == ("running", "running")


def test_a_cancel_right_after_a_submit_is_not_forgotten(world: Any, monkeypatch: Any) -> None:
    just_submitted(monkeypatch, lambda: world.submitter.cancel(OWNER, UID, CancelMessage(grace=0)))
    assert world.submit().status.reason == "Cancelling"
    world.look(1)
    assert world.batch.cancelled == ["1"]


def test_a_job_that_was_forgotten_right_after_its_submit_stays_forgotten(world: Any, monkeypatch: Any) -> None:
    def forget() -> None:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
        for _ in range(5):
            world.look(3)
        assert not world.folder.job(UID).exists()

    just_submitted(monkeypatch, forget)
    with pytest.raises(SiteRefusedError, match="forgotten while it was submitted"):
        world.submit()
    assert world.watcher.index.counts() == {}


def test_a_submit_after_the_cancel_is_refused_for_a_day(world: Any) -> None:
    assert world.submitter.cancel(OWNER, UID, CancelMessage(grace=0)).status is None
    with pytest.raises(SiteRefusedError, match="cancelled") as refused:
        world.submit()
    assert (refused.value.reason, world.batch.submits) == ("Forgotten", [])


def test_a_running_job_is_asked_first_and_killed_after_its_grace(world: Any) -> None:
    world.run_job()
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=20))
    stop = world.folder.job(UID).path / "control" / "stop"
    assert stop.read_text() == "20 Deleted\n"
    world.look(29)
    assert world.batch.cancelled == []
    world.look(2)
    assert world.batch.cancelled == ["1"]
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    assert stop.read_text() == "0 Deleted\n"
    world.look(3, 3)
    assert (world.status().outcome, world.status().reason) == ("Failed", "Deleted")
    assert world.status().containers[0].ended.exit_code == 137


def test_cancel_with_forget_while_the_batch_system_is_down_is_not_lost(world: Any) -> None:
    world.submit()
    world.batch.down = True
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    world.look(1)
    world.again()
    world.look(100)
    assert world.status() is not None
    world.batch.down = None
    world.look(1, 1, 1)
    assert world.status() is None
    assert "1" in world.batch.cancelled


def test_9_3_a_batch_system_that_is_down_changes_nothing(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.run_job()
    before = world.status()
    world.batch.down = True
    for _ in range(5):
        world.look(100)
    assert (world.status(), world.watcher.problem) == (before, "down")
    world.batch.down = None
    for _ in range(2):
        world.look()
    assert world.watcher.problem == ""
    told = ["the batch system does not answer", "the batch system answers again"]
    assert [text for text in caplog.messages if "batch system" in text] == told, "each change once"


def test_9_3_a_job_that_vanished_is_lost_after_two_looks_and_a_while(world: Any) -> None:
    world.run_job(1)
    del world.batch.table["1"]
    world.look(1, 30)
    assert (world.status().phase, world.status().missing) == ("running", False)
    world.look(31, 3)
    assert (world.status().phase, world.status().missing) == ("running", True)
    assert not (world.folder.job(UID).path / "control" / "stop").exists(), "its script may still run"
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    world.look(1, 3)
    assert (world.status().phase, world.status().outcome) == ("ended", "Failed")
    assert (world.folder.job(UID).path / "control" / "stop").read_text() == "0 Deleted\n"


def test_a_job_that_the_batch_system_knows_again_is_missing_no_longer(world: Any) -> None:
    world.run_job(1)
    job = world.batch.table.pop("1")
    for _ in range(4):
        world.look(31)
    assert world.status().missing
    world.again()
    assert world.status().missing, "another submitter, which takes over, says the same"
    world.batch.table["1"] = job
    world.look(1)
    assert (world.status().phase, world.status().missing) == ("running", False)
    world.again()
    assert not world.status().missing
    del world.batch.table["1"]
    world.look(1)
    assert not world.status().missing
    for _ in range(4):
        world.look(31)
    assert world.status().missing
    world.finish()
    world.look(1)
    assert (world.status().outcome, world.status().missing) == ("Succeeded", False)


def test_a_job_that_vanished_and_ended_well_has(world: Any) -> None:
    world.run_job(1)
    del world.batch.table["1"]
    world.finish()
    world.look(1)
    assert world.status().outcome == "Succeeded"
    world.look(1)
    world.submitter.cancel(OWNER, UID, CancelMessage(forget=True))
    world.look(1)
    assert world.status() is None


def test_accounting_tells_how_a_vanished_job_ended(world: Any) -> None:
    world.run_job(1)
    job = world.batch.table.pop("1")
    world.batch.history["1"] = type(job)(id="1", uid=UID, phase="ended", reason="OOMKilled", started_at=5.0)
    world.look(1, 3)
    assert (world.status().outcome, world.status().reason) == ("Failed", "OOMKilled")
    assert world.status().containers[0].ended.reason == "OOMKilled"


def test_a_job_lost_before_it_began_is_submitted_again_three_times_at_most(world: Any) -> None:
    world.submit()
    for _ in range(12):
        world.look(35)
        world.batch.table.clear()
    assert len(world.batch.submits) == 3
    world.look(100, 3)
    assert (world.status().phase, world.status().reason) == ("ended", "JobLost")


def test_an_id_given_twice_is_not_taken_for_the_same_job(world: Any) -> None:
    """A slurmctld that lost its state counts from an older number again."""
    world.run_job(1)
    world.batch.table["1"] = type(world.batch.table["1"])(id="1", uid="another", phase="running")
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    world.look(1)
    assert (world.batch.cancelled, world.status().phase) == ([], "running")


def test_the_folder_may_lag_behind_the_batch_system(world: Any) -> None:
    world.run_job(1)
    world.batch.end("1", code=0)
    world.look(1)
    assert world.status().phase == "running"
    world.finish()
    world.look(1)
    assert world.status().outcome == "Succeeded"


def test_a_job_deleted_in_the_moment_of_its_start_is_over_when_the_batch_system_says_so(world: Any) -> None:
    world.submit()
    world.batch.run("1")
    world.look(1)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=30))
    world.batch.end("1", "Cancelled")
    world.look()
    assert (world.status().phase, world.status().reason) == ("ended", "Deleted")


def test_a_script_ended_by_a_signal_waits_for_the_batch_systems_reason(world: Any) -> None:
    world.submit()
    world.begin()
    world.terminate()
    world.look(1)
    assert world.status().phase == "running"
    world.batch.end("1", "DeadlineExceeded")
    world.look(1)
    assert (world.status().phase, world.status().reason) == ("ended", "DeadlineExceeded")


def test_a_deleted_job_whose_script_the_batch_system_ended_was_deleted(world: Any) -> None:
    world.run_job(1)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=5))
    world.terminate()
    world.batch.end("1", "Cancelled")
    world.look(1)
    assert (world.status().phase, world.status().reason) == ("ended", "Deleted")


def test_why_a_script_was_ended_is_found_out_by_a_submitter_that_was_not_there(world: Any) -> None:
    world.run_job(1)
    world.terminate()
    world.batch.end("1", "DeadlineExceeded")
    world.batch.history["1"] = world.batch.table.pop("1")
    world.clock.advance(3600)
    world.again()
    assert world.status().phase == "running"
    world.look(1)
    assert (world.status().phase, world.status().reason) == ("ended", "DeadlineExceeded")


def test_9_2_two_pods_of_one_name_are_two_jobs(world: Any) -> None:
    world.submit("a-1")
    world.submit("a-2")
    assert world.folder.job("a-1").path != world.folder.job("a-2").path
    assert len(world.batch.submits) == 2


def test_8101_and_1081_are_two_jobs(world: Any) -> None:
    world.submit("00008101")
    assert not world.submit("00001081").existed


def test_snapshots_come_in_pages_and_say_where_events_are(world: Any) -> None:
    uids = [f"u-{number:03d}" for number in range(25)]
    for uid in uids:
        world.submit(uid)
    world.look()
    seen, after = [], ""
    while True:
        page = world.submitter.snapshot(OWNER, "", Snapshot(after=after, limit=10))
        assert (page.submitter, page.sequence) == (world.watcher.name, world.watcher.index.sequences[OWNER])
        seen += [job.job for job in page.jobs]
        if not page.more:
            break
        after = page.jobs[-1].job
    assert seen == uids


def test_a_follower_answers_from_the_folders(world: Any) -> None:
    world.run_job()
    is_leader = world.submitter.snapshot(OWNER, "", Snapshot())
    world.watcher.release_leadership()
    assert world.submitter.snapshot(OWNER, "", Snapshot()) == is_leader


def test_flavor_and_site_limits(world: Any) -> None:
    world.submit("a", flavor="f", time_limit=1000)
    world.submit("b", flavor="f")
    world.submit("c", time_limit=7)
    assert [request.time_limit for request in world.batch.submits] == [100, 100, 7]
    assert world.batch.submits[0].memory == 2**30
    with pytest.raises(SiteRefusedError, match="no flavor 'x'"):
        world.submit("d", flavor="x")


def test_a_sites_caps_hold_whatever_a_hub_sends(world: Any) -> None:
    text = 'pool = "p"\n[limits]\nmax_time_seconds = 50\n[[flavors]]\nname = "f"\nmax_time_seconds = 100\n'
    world.config = parse(text + 'max_resources = {cpu = "4", memory = "1Gi", "nvidia.com/gpu" = "1"}\n')
    world.submit("a", flavor="f", cpus=4, memory=2**30, gpus=1, gpu_resource="nvidia.com/gpu")
    # the shorter of the two limits
    assert (world.batch.submits[0].time_limit, world.batch.submits[0].most_seconds) == (50, 50)
    for more, told in (
        ({"cpus": 5}, "flavor f: cpu 5 is not allowed at this site; allowed: at most 4"),
        ({"memory": 2**31}, "memory 2048Mi is not allowed at this site; allowed: at most 1Gi"),
        ({"gpus": 2, "gpu_resource": "nvidia.com/gpu"}, "allowed: at most 1"),
        ({"gpus": 1, "gpu_resource": "amd.com/gpu"}, "allowed: none"),
    ):
        with pytest.raises(SiteRefusedError, match=told):
            world.submit("b", flavor="f", **more)
    assert len(world.batch.submits) == 1


def test_one_query_for_any_number_of_jobs(world: Any) -> None:
    for number in range(50):
        world.submit(f"u-{number}")
    before = world.batch.queries
    world.look(1)
    assert world.batch.queries == before + 1


@pytest.mark.parametrize("offset", [-86400, -5])
@pytest.mark.parametrize("kind", ["alone", "group"])
def test_a_clock_that_is_set_back_withholds_no_end(world: Any, kind: str, offset: float) -> None:
    """As at the start of a machine: its own clock is hours wrong, until the network says what time it is."""
    uids = [UID]
    if kind == "group":
        test_gangs.run_all(world)
        uids = [test_gangs.pod(rank) for rank in range(3)]
    else:
        world.run_job(1)
    world.batch.end("1", "NodeFail")
    world.look(1)
    world.clock.offset = offset
    world.look(1, 3)
    assert {world.status(uid).reason for uid in uids} == {"NodeFail"}


def test_a_clock_that_is_set_back_keeps_no_secrets(world: Any) -> None:
    world.run_job(1)
    world.write("volumes/token/token", "secret")
    world.batch.end("1", "NodeFail")
    world.look(1, 3)
    world.clock.offset = -86400
    world.look(61)
    assert not (world.folder.job(UID).path / "volumes").exists()


def test_a_clock_that_is_set_back_delays_no_action(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run_job(1)
    world.submit("other")
    asked: list[str] = []
    monkeypatch.setattr(world.batch, "cancel", asked.extend)  # which does not end the job
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    world.look(1)
    world.clock.offset = -86400
    del world.batch.table["2"]
    world.look(1, CANCEL_PERIOD, 61, 61)
    assert asked.count("1") > 1
    assert len(world.batch.submits) == 3  # the job that was lost before it began


def test_a_clock_that_is_set_forward_loses_no_job(world: Any) -> None:
    """A list of the batch system may lack a job once or twice."""
    world.run_job(1)
    listed, world.batch.table = world.batch.table, {}
    world.look(1)
    world.clock.offset = 86400
    world.look(1)
    assert not world.status().missing
    world.batch.table = listed
    world.look(1)
    assert world.status().phase == "running"


def test_a_request_that_is_accepted_can_be_read_again(world: Any) -> None:
    """Else the next leader would not know the job."""
    world.submit(flags=["--comment=" + "x" * 500_000])
    world.again()
    assert world.status().job_id == "1"
    with pytest.raises(SiteRefusedError, match="525"):
        world.submit("other", flags=["--comment=" + "x" * 525_000])
    assert not world.folder.job("other").exists() and len(world.batch.submits) == 1


def test_a_large_configuration_is_described(world: Any) -> None:
    """A hub that starts later learns it in no other way."""
    content = {"config": "x" * 4 * 2**20}
    world.folder.note(BUILDCONFIG, content)
    assert world.folder.noted(BUILDCONFIG) == content
