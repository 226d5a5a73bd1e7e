"""Pods of a group become one job of the batch system: what the submitter and the leader do."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
from typing import Any

import pytest

from bridge.errors import BatchError, SiteRefusedError
from bridge.protocol.model.requests import PlaceInJob
from bridge.protocol.nats.envelope import pack
from bridge.protocol.nats.messages import CancelMessage, Empty, Snapshot, Status, SubmitMessage
from bridge.site.config.site_config import parse
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.member_record import GANG_OVER
from tests.unit.site.conftest import OWNER, UID

GANG = "9f000000-0000-4000-8000-000000000001"


def pod(rank: int, generation: int = 0) -> str:
    return f"a{rank}{generation}00000-0000-4000-8000-000000000000"


def message(rank: int, size: int = 3, **more: Any) -> SubmitMessage:
    per_node, mpi = more.pop("per_node", 1), more.pop("mpi", "none")
    place = PlaceInJob(gang=GANG, rank=rank, size=size, per_node=per_node, mpi=mpi, names=[f"w-{rank}"])
    return SubmitMessage(namespace="ns", name=f"w-{rank}", script="true\n", place=place, **more)


def submit(world: Any, rank: int, generation: int = 0, owner: str = OWNER, **more: Any) -> Any:
    return world.submitter.submit(owner, pod(rank, generation), message(rank, **more)).status


def submit_all(world: Any, size: int = 3, **more: Any) -> None:
    for rank in range(size):
        submit(world, rank, size=size, **more)


def statuses(world: Any, *ranks: int) -> list[Any]:
    return [world.status(pod(rank)) for rank in ranks or range(3)]


def start(world: Any, *ranks: int) -> None:
    """What the launcher and the scripts of the pods do first."""
    (job_id,) = [job.id for job in world.batch.table.values() if job.phase == "queued"]
    world.batch.run(job_id)
    world.write("started/job", "", GANG)
    world.write("state/pod.json", '{"phase":"Running","startedAt":7}', GANG)
    for rank in ranks or range(3):
        world.write("started/job", "", pod(rank))
        world.write("state/pod.json", f'{{"phase":"Running","host":"n{rank}","startedAt":7}}', pod(rank))


def run_all(world: Any) -> None:
    submit_all(world)
    start(world)
    world.look()


def end(world: Any, rank: int, code: int = 0) -> None:
    """What the script of a pod, and then its wrapper, do last."""
    world.finish(pod(rank), code)
    record_end(world, rank, code)


def end_all(world: Any) -> None:
    for rank in range(3):
        end(world, rank)


def record_end(world: Any, rank: int, code: int, generation: int = 0) -> None:
    world.write(f"ended/{rank}.{pod(rank, generation)}", f"{code}\n", GANG)
    world.folder.touch(pod(rank, generation))


def close(world: Any, phase: str = "Succeeded", reason: str = "", message: str = "") -> None:
    """What the launcher does last."""
    text = f'{{"phase":"{phase}","reason":"{reason}","message":"{message}","startedAt":7,"finishedAt":9}}'
    world.write("state/pod.json", text, GANG)
    (job_id,) = [job.id for job in world.batch.table.values() if job.phase == "running"]
    world.batch.end(job_id, code=int(phase != "Succeeded"))


def cancel(world: Any, rank: int, generation: int = 0, **more: Any) -> None:
    more = {"grace": 0, "forget": True, **more}
    world.submitter.cancel(OWNER, pod(rank, generation), CancelMessage(**more))


def cancel_all(world: Any, size: int = 3, **more: Any) -> None:
    for rank in range(size):
        cancel(world, rank, **more)


def check_nothing_left(world: Any) -> None:
    for _ in range(4):
        world.look(31)
    world.look(700)
    assert list((world.path / "jobs").iterdir()) == []
    assert all(job.phase == "ended" for job in world.batch.table.values())
    assert (world.watcher.index.entries, world.watcher.index.gangs) == ({}, {})


# --- gathering --------------------------------------------------------------------------------------------------------
def test_pods_wait_for_each_other_and_become_one_job(world: Any) -> None:
    assert submit(world, 0).reason == "GangIncomplete"
    assert submit(world, 2).message == "the site waits for all 3 pods of the group"
    world.look(5)
    assert [status.message for status in statuses(world, 0, 2)] == ["the site waits for all 3 pods of the group"] * 2
    assert world.batch.submits == []
    submit(world, 1)
    (request,) = world.batch.submits
    assert (request.uid, request.members, request.together, request.cpus) == (GANG, 3, 1, 1)
    world.look()
    assert [(s.phase, s.reason, s.job_id) for s in statuses(world)] == [("queued", "Priority", "1")] * 3
    told = {status.job: status for _, status in world.events}
    assert told.keys() == {pod(0), pod(1), pod(2)}
    assert all(status.reason == "Priority" for status in told.values())
    page = world.submitter.snapshot(OWNER, "", Snapshot())
    assert [status.job for status in page.jobs] == [pod(0), pod(1), pod(2)]
    assert world.watcher.index.counts() == {"queued": 3}


def test_pods_are_read_again_only_if_their_group_has_news_for_them(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_all(world)
    world.look()
    index, read = world.watcher.index, list[str]()
    refresh = index.refresh
    monkeypatch.setattr(index, "refresh", lambda uid, *record: read.append(uid) or refresh(uid, *record))

    def members_read() -> set[str]:
        world.watcher.read_changes()
        found = {*read} - {GANG}
        read.clear()
        return found

    world.write("started/job", "", GANG)
    world.write("state/pod.json", '{"phase":"Running","host":"n0","startedAt":7}', GANG)
    assert members_read() == set()
    world.write("state/pod.json", '{"phase":"Failed","reason":"MemberNotStarted","finishedAt":9}', GANG)
    assert members_read() == {pod(0), pod(1), pod(2)}
    assert {status.reason for status in statuses(world)} == {"MemberNotStarted"}


def test_each_pod_has_its_own_end(world: Any) -> None:
    run_all(world)
    assert [(s.phase, s.host, s.job_id) for s in statuses(world)] == [("running", f"n{r}", "1") for r in range(3)]
    end(world, 0)
    end(world, 1, 4)
    world.look(1)
    assert [(s.phase, s.outcome) for s in statuses(world)] == [
        ("ended", "Succeeded"),
        ("ended", "Failed"),
        ("running", ""),
    ]
    end(world, 2)
    close(world)
    world.look(5)
    assert statuses(world, 2)[0].outcome == "Succeeded"
    cancel_all(world)
    check_nothing_left(world)


def test_a_repeated_submission_changes_nothing(world: Any) -> None:
    submit(world, 0)
    assert world.submitter.submit(OWNER, pod(0), message(0)).existed
    submit_all(world)
    submit_all(world)
    assert len(world.batch.submits) == 1


@pytest.mark.parametrize(
    ("more", "reason", "text"),
    [
        ({"cpus": 2}, "GangDiffers", "cpus 2: .*allowed: 1"),
        ({"gpus": 1, "gpu_resource": "nvidia.com/gpu"}, "GangDiffers", "gpus 1"),
        ({"size": 4}, "GangDiffers", "place.size 4"),
        ({"per_node": 2}, "GangDiffers", "place.per_node 2"),
        ({"mpi": "pmix"}, "GangDiffers", "place.mpi 'pmix'"),
        ({"mpi": "pmi2"}, "MpiNotSupported", "mpi 'pmi2': .*allowed: none, pmix"),
        ({"owner": "c2"}, "NotOwner", "not the job of a group of this cluster"),
        ({"grant_wait": 5.0}, "RaceNotAllowed", "allow_race is false"),
    ],
)
def test_a_pod_that_differs_is_refused(world: Any, more: dict[str, Any], reason: str, text: str) -> None:
    submit(world, 0)
    with pytest.raises(SiteRefusedError, match=text) as refused:
        submit(world, 1, **more)
    assert refused.value.reason == reason
    assert not world.folder.job(pod(1)).exists()


def test_a_rank_has_one_pod(world: Any) -> None:
    submit(world, 0)
    with pytest.raises(SiteRefusedError, match=r"rank 0 of the group: pod ns/w-0") as refused:
        submit(world, 0, 1)
    assert (refused.value.reason, refused.value.retryable) == ("RankTaken", True)
    with pytest.raises(SiteRefusedError, match="rank 7; allowed: 0 to 2"):
        submit(world, 7)


def test_a_batch_system_without_groups_refuses_them(world: Any) -> None:
    world.batch.gangs = False
    with pytest.raises(SiteRefusedError, match="does not run a group of pods") as refused:
        submit(world, 0)
    assert refused.value.reason == "GangsNotSupported"
    assert list((world.path / "jobs").iterdir()) == []


def test_no_cluster_can_request_the_job_of_a_group(world: Any) -> None:
    submit(world, 0)
    for request in (
        lambda: world.submitter.status(OWNER, GANG, Empty()),
        lambda: world.submitter.cancel(OWNER, GANG, CancelMessage(grace=0)),
    ):
        with pytest.raises(SiteRefusedError, match="is the job of a group"):
            request()


# --- the batch system refuses or does not answer ----------------------------------------------------------------------
def test_a_refusal_is_the_end_of_all_pods(world: Any) -> None:
    world.batch.refuse = BatchError("too many nodes")
    submit_all(world)
    world.look()
    assert {(s.phase, s.reason, s.message) for s in statuses(world)} == {
        (
            "ended",
            "BatchSystemRefused",
            "too many nodes; the job of the group asks for 3 nodes for 3 pods (bridge.vk.io/members-per-node: 1)",
        )
    }
    cancel_all(world)
    check_nothing_left(world)


LIMITS = """
pool = "p"
default_flavor = "d"
[[flavors]]
name = "f"
max_resources = {cpu = "4", memory = "2Gi", "nvidia.com/gpu" = "2"}
[[flavors]]
name = "d"
max_resources = {cpu = "4", "nvidia.com/gpu" = "2"}
[[flavors]]
name = "g"
max_resources = {cpu = "2"}
max_group_resources = {cpu = "6"}
"""
GPU = {"gpus": 1, "gpu_resource": "nvidia.com/gpu"}


@pytest.mark.parametrize("heterogeneous", [False, True])
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"flavor": "f", "cpus": 2, "memory": 1}, "flavor f: cpu 6 is not allowed at this site; allowed: at most 4"),
        ({"flavor": "f", "memory": 2**30}, "flavor f: memory 3072Mi is not allowed at this site; allowed: at most 2Gi"),
        (
            {"flavor": "f", "memory": 1, **GPU},
            "flavor f: nvidia.com/gpu 3 is not allowed at this site; allowed: at most 2",
        ),
        ({"cpus": 4, **GPU}, "flavor d: nvidia.com/gpu 3 is not allowed at this site; allowed: at most 2"),
    ],
)
def test_the_limits_of_a_flavor_hold_for_the_sum_of_its_pods(
    world: Any, more: dict[str, Any], told: str, heterogeneous: bool
) -> None:
    world.config, world.batch.heterogeneous = parse(LIMITS), heterogeneous
    submit_all(world, **more)
    world.look()
    ends = {(end.phase, end.outcome, end.reason, end.message) for end in statuses(world)}
    assert ends == {("ended", "Failed", "OverLimit", f"{told} for the pods of a group together")}
    assert submit(world, 0, **more).reason == "OverLimit"
    assert world.batch.submits == []
    for rank in range(3):
        cancel(world, rank)
    check_nothing_left(world)


@pytest.mark.parametrize("more", [{"flavor": "g", "cpus": 2}, {"flavor": "f", "memory": 1}, {"cpus": 4}])
def test_a_group_within_the_limits_of_a_flavor_runs(world: Any, more: dict[str, Any]) -> None:
    world.config = parse(LIMITS)
    submit_all(world, **more)
    assert len(world.batch.submits) == 1


def test_each_flavor_of_a_heterogeneous_group_has_its_own_sum(world: Any) -> None:
    world.config, world.batch.heterogeneous = parse(LIMITS), True
    for rank, flavor in enumerate(("f", "f", "g")):
        submit(world, rank, flavor=flavor, cpus=2, memory=1)
    assert len(world.batch.submits) == 1


def test_a_refusal_for_now_is_repeated(world: Any) -> None:
    world.batch.refuse = BatchError("busy", retryable=True)
    submit_all(world)
    world.look(1)
    assert {s.phase for s in statuses(world)} == {"queued"}
    world.batch.refuse = None
    world.look(1)
    assert [job.uid for job in world.batch.table.values()] == [GANG]


@pytest.mark.parametrize("is_submitted", [False, True])
def test_a_submission_without_an_answer(world: Any, is_submitted: bool) -> None:
    world.batch.silent, world.batch.swallow = True, not is_submitted
    submit_all(world)
    world.batch.silent, world.batch.swallow = None, False
    world.look(1)
    assert len(world.batch.submits) == 1
    world.look(61, 1)
    assert [job.uid for job in world.batch.table.values()] == [GANG]
    assert {s.job_id for s in statuses(world)} == {next(iter(world.batch.table))}


def test_a_job_that_the_batch_system_loses_is_submitted_again(world: Any) -> None:
    submit_all(world)
    world.look()
    world.batch.table.clear()
    for _ in range(4):
        world.look(61)
    assert [job.uid for job in world.batch.table.values()] == [GANG]
    assert {s.phase for s in statuses(world)} == {"queued"}


def test_a_job_that_the_batch_system_loses_while_it_runs_is_missing(world: Any) -> None:
    run_all(world)
    world.batch.table.clear()
    for _ in range(3):
        world.look(61)
    assert [s.missing for s in statuses(world)] == [True] * 3
    cancel_all(world)
    for _ in range(4):
        world.look(61)
    check_nothing_left(world)


# --- the launcher ends the job ----------------------------------------------------------------------------------------
def test_pods_that_the_launcher_did_not_start_get_its_reason(world: Any) -> None:
    submit_all(world)
    world.batch.run("1")
    world.write("started/job", "", GANG)
    close(world, "Failed", "MemberNotStarted", "pod ns/w-1 (rank 1 of the group) did not start on machine n1")
    world.look(5)
    assert {(s.phase, s.outcome, s.reason) for s in statuses(world)} == {("ended", "Failed", "MemberNotStarted")}
    assert "n1" in statuses(world)[0].message


def test_pods_of_a_job_that_reached_its_time_limit(world: Any) -> None:
    run_all(world)
    world.batch.end("1", "DeadlineExceeded")
    world.look(1, 5)
    assert {(s.phase, s.outcome, s.reason) for s in statuses(world)} == {("ended", "Failed", "DeadlineExceeded")}


def test_the_cause_of_a_signal_to_all_pods_is_that_of_the_job(world: Any) -> None:
    run_all(world)
    for rank in range(3):
        text = f'{{"phase":"Failed","reason":"Terminated","finishedAt":{world.clock.time()}}}'
        world.write("state/pod.json", text, pod(rank))
        world.write(f"ended/{rank}.{pod(rank)}", "143 stopped\n", GANG)
        world.folder.touch(pod(rank))
    world.look(1)
    assert {s.phase for s in statuses(world)} == {"running"}
    world.batch.end("1", "Preempted")
    world.look(1)
    assert {(s.phase, s.reason) for s in statuses(world)} == {("ended", "Preempted")}


def test_a_script_that_was_killed(world: Any) -> None:
    run_all(world)
    record_end(world, 1, 137)
    world.look()
    assert statuses(world, 1)[0].phase == "running", "the shared file system may not show its end yet"
    world.look(10)
    assert [s.phase for s in statuses(world)] == ["running", "ended", "running"]
    assert statuses(world, 1)[0].reason == "Killed"


# --- cancellation and successors --------------------------------------------------------------------------------------
def test_a_pod_that_is_cancelled_before_the_start_is_over_at_once_and_has_a_successor(world: Any) -> None:
    submit_all(world)
    world.look()
    cancel(world, 1, forget=False)
    world.look(1)
    assert (statuses(world, 1)[0].phase, statuses(world, 1)[0].reason) == ("ended", "Deleted")
    assert world.batch.cancelled == []
    assert submit(world, 1, 1).job_id == "1"
    cancel(world, 1)
    world.look(1)
    assert world.status(pod(1)) is None
    assert len(world.batch.submits) == 1
    assert [s.phase for s in statuses(world, 0, 2)] == ["queued"] * 2


def test_a_running_pod_is_killed_without_the_others(world: Any) -> None:
    run_all(world)
    cancel(world, 1, grace=5)
    world.look(1)
    job = world.folder.job(GANG).path
    assert (world.folder.job(pod(1)).path / "control/stop").read_text().startswith("5 ")
    assert not (job / f"control/kill-{pod(1)}").exists()
    world.look(16)
    assert (job / f"control/kill-{pod(1)}").read_text() == "1\n"
    record_end(world, 1, 137)
    world.look(0, 5)
    assert world.status(pod(1)) is None
    assert (world.batch.cancelled, [s.phase for s in statuses(world, 0, 2)]) == ([], ["running"] * 2)
    assert submit(world, 1, 1).phase == "queued"


def test_cancelling_all_pods_ends_the_job(world: Any) -> None:
    submit_all(world)
    world.look()
    cancel_all(world)
    check_nothing_left(world)
    assert world.batch.cancelled == ["1"]
    with pytest.raises(SiteRefusedError) as refused:
        submit(world, 0, 1)
    assert refused.value.reason == "GangOver"


def test_a_full_disk_keeps_no_other_job_alive(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_all(world)
    world.submit()
    world.look()
    cancel_all(world)
    world.look(31)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as at_disk:
        world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
        at_disk.setattr(JobFolder, "write_cancel", full)
        world.look(31)
        assert world.batch.cancelled == ["2"]
    world.look(31)
    assert world.batch.cancelled == ["2", "1"]


def test_a_group_whose_pod_is_being_submitted_waits_without_the_others(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_all(world)
    with monkeypatch.context() as second:
        second.setitem(globals(), "GANG", GANG.replace("9f", "9e"))
        for rank in range(3):
            submit(world, rank, 1)
    world.look()
    for rank, generation in itertools.product(range(3), range(2)):
        cancel(world, rank, generation)
    with world.folder.locked(GANG):
        for _ in range(3):
            world.look(31)
        assert world.batch.cancelled == ["2"]
    world.look(31)
    assert world.batch.cancelled == ["2", "1"]


def test_an_incomplete_group_is_not_over_while_the_hub_submits_it(world: Any) -> None:
    submit(world, 0)
    cancel(world, 0)
    world.look(1, 1)
    assert world.status(pod(0)) is None
    submit(world, 1)
    submit(world, 2)
    assert submit(world, 0, 1).job_id == "1"


@pytest.mark.parametrize("forget", [False, True])
def test_pods_that_are_over_do_not_say_what_the_others_request(world: Any, forget: bool) -> None:
    submit(world, 0)
    submit(world, 1)
    cancel_all(world, 2, forget=forget)
    world.look(1, 1)
    submit(world, 1, 1, cpus=2, mpi="pmix")
    with pytest.raises(SiteRefusedError, match=r"cpus 1: .*allowed: 2"):
        submit(world, 0, 1, mpi="pmix")
    for rank, generation in ((0, 1), (1, 1), (2, 0)):
        submit(world, rank, generation, cpus=2, mpi="pmix")
    assert [(request.members, request.cpus) for request in world.batch.submits] == [(3, 2)]


def test_an_incomplete_group_is_removed_with_its_pods(world: Any) -> None:
    submit(world, 0)
    submit(world, 1)
    cancel_all(world, 2)
    check_nothing_left(world)
    assert world.batch.submits == []


def test_a_pod_that_comes_when_the_launcher_has_closed_is_refused(world: Any) -> None:
    submit_all(world)
    start(world)
    end_all(world)
    world.look()
    (world.folder.job(GANG).path / "closed").mkdir()
    with pytest.raises(SiteRefusedError) as refused:
        submit(world, 0, 1)
    assert refused.value.reason == "GangOver"
    assert not world.folder.job(pod(0, 1)).exists()


@pytest.mark.parametrize("key", ["reason", "message"])
def test_a_text_that_no_message_can_carry_spoils_no_snapshot(world: Any, key: str) -> None:
    """The code of a pod may have written the record of its group's launcher: JSON can name half a character."""
    run_all(world)
    record = {"phase": "Failed", "reason": "MemberNotStarted", "message": "m", "finishedAt": 9, key: "\ud800"}
    world.write("state/pod.json", json.dumps(record), GANG)
    world.batch.end("1", code=1)
    world.look(3, 3)
    page = world.submitter.snapshot(OWNER, "", Snapshot(after="", limit=10))
    assert pack(page) and [job.outcome for job in page.jobs] == ["Failed"] * 3
    assert all(pack(Status(status=status)) for _, status in world.events)


def test_a_pod_without_a_rank_ends_with_the_job_of_its_group(world: Any) -> None:
    """The submitter was killed after it had made the pod's directory; another pod ended the group meanwhile."""
    run_all(world)
    (world.folder.job(GANG).path / "ranks" / "1").unlink()
    for name in ("started", "state"):
        shutil.rmtree(world.folder.job(pod(1)).path / name)
    end(world, 0)
    end(world, 2)
    close(world)
    world.look(3, 61, 61)
    assert (world.status(pod(1)).phase, world.status(pod(1)).reason) == ("ended", GANG_OVER)
