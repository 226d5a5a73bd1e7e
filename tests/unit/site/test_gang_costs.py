"""What the pods of a group cost the hub and the site, compared with as many single pods."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bridge.protocol.model.requests import PlaceInJob
from bridge.protocol.nats.messages import SubmitMessage
from bridge.site import watcher
from bridge.site.jobs.job_folder import JobFolder
from tests.unit.site.conftest import OWNER

SIZE = 20
GANG = "9f000000-0000-4000-8000-000000000001"


def uid(rank: int) -> str:
    return f"a0000000-0000-4000-8000-{rank:012}"


def submit(world: Any, rank: int, *, grouped: bool) -> Any:
    place = PlaceInJob(gang=GANG, rank=rank, size=SIZE, per_node=SIZE, names=[f"w-{rank}"]) if grouped else None
    message = SubmitMessage(namespace="ns", name=f"w-{rank}", script="true\n", place=place)
    return world.submitter.submit(OWNER, uid(rank), message).status


def run_all(world: Any, *, grouped: bool) -> Counter[str]:
    """Submit pods and run them to their end; return the number of events of each."""
    for rank in range(SIZE):
        submit(world, rank, grouped=grouped)
        world.look(0.1)
    job_ids = [job.id for job in world.batch.table.values()]
    assert len(job_ids) == (1 if grouped else SIZE)
    for job_id in job_ids:
        world.batch.run(job_id)
    world.look()
    if grouped:
        world.write("started/job", "", GANG)
        world.write("state/pod.json", '{"phase":"Running","startedAt":7}', GANG)
        world.look()
    for rank in range(SIZE):
        world.write("started/job", "", uid(rank))
        world.write("state/pod.json", '{"phase":"Running","host":"n1","startedAt":7}', uid(rank))
        world.write("state/main.json", '{"state":"running","startedAt":7,"ready":true}', uid(rank))
    world.look()
    for rank in range(SIZE):
        world.finish(uid(rank))
        world.look()
        if grouped:
            world.write(f"ended/{rank}.{uid(rank)}", "0\n", GANG)
            world.folder.touch(uid(rank))
    world.look()
    if grouped:
        world.write("state/pod.json", '{"phase":"Succeeded","startedAt":7,"finishedAt":9}', GANG)
    for job_id in job_ids:
        world.batch.end(job_id, code=0)
    world.look(5, 5)
    assert [world.status(uid(rank)).outcome for rank in range(SIZE)] == ["Succeeded"] * SIZE
    return Counter(status.job for _, status in world.events)


def test_a_pod_of_a_group_has_no_more_events_than_a_single_pod(world: Any, tmp_path: Any) -> None:
    singles = run_all(world, grouped=False)
    groups = run_all(type(world)(tmp_path / "other"), grouped=True)
    assert groups.keys() == singles.keys() == {uid(rank) for rank in range(SIZE)}
    assert max(groups.values()) <= min(singles.values())


def test_pods_that_wait_for_the_others_have_no_events(world: Any) -> None:
    """The answer to its submission has told the hub what the first event would."""
    for rank in range(SIZE - 1):
        answer = submit(world, rank, grouped=True)
        assert (answer.reason, answer.message) == ("GangIncomplete", f"the site waits for all {SIZE} pods of the group")
        world.look(1)
    assert world.events == []
    submit(world, SIZE - 1, grouped=True)
    assert [(status.reason, status.job_id) for _, status in world.events] == [("", "1")] * SIZE


def test_a_pod_that_arrives_is_read_and_not_those_that_are_here(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for a group grows with its size, not with the square."""
    monkeypatch.setattr(watcher, "REREAD", 0)
    read, counts = JobFolder.read, Counter[int]()
    for rank in range(SIZE - 1):
        monkeypatch.setattr(JobFolder, "read", lambda folder, rank=rank: counts.update([rank]) or read(folder))
        submit(world, rank, grouped=True)
        world.look(1)
    assert counts[1] == counts[SIZE - 2] > 0
