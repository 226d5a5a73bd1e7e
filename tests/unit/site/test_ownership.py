"""Whose a job is: the cluster that submitted it sees and changes it, nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Empty, Files, Logs, Snapshot, SubmitMessage
from tests.unit.site.conftest import OWNER, UID

OTHER = "c2"


def refusals(world: Any, owner: str = OTHER) -> list[str]:
    """Ask for everything that can be asked about the job; gives the reasons of the refusals."""
    site, reasons = world.submitter, []
    for call in (
        lambda: site.submit(owner, UID, SubmitMessage(namespace="ns", name="pod", script="true\n")),
        lambda: site.cancel(owner, UID, CancelMessage(grace=0)),
        lambda: site.cancel(owner, UID, CancelMessage(grace=0, forget=True)),
        lambda: site.status(owner, UID, Empty()),
        lambda: site.files(owner, UID, Files(files=[])),
        lambda: site.logs(owner, UID, Logs(container="main", stream="s" * 8)),
    ):
        with pytest.raises(SiteRefusedError) as refused:
            call()
        reasons.append(refused.value.reason)
    return reasons


def test_another_cluster_sees_nothing_and_changes_nothing(world: Any) -> None:
    world.run_job(1)
    assert set(refusals(world)) == {"NotOwner"}
    assert world.submitter.snapshot(OTHER, "", Snapshot()).jobs == ()
    for _ in range(3):
        world.look(60)
    assert (world.batch.cancelled, world.status().phase) == ([], "running")
    assert [status.owner for _, status in world.events] == [OWNER] * len(world.events)


def test_another_cluster_is_refused_after_a_restart_and_while_the_folder_can_not_be_read(world: Any) -> None:
    world.submit()
    world.begin()
    world.again()
    assert set(refusals(world)) == {"NotOwner"}
    world.write("job.sh", "nonsense")
    with pytest.raises(SiteRefusedError, match="belongs to another cluster"):
        world.submitter.cancel(OTHER, UID, CancelMessage(grace=0, forget=True))
    for _ in range(3):
        world.look(60)
    assert world.batch.cancelled == []


def test_a_cluster_that_gives_up_a_job_that_is_not_there_does_not_keep_another_from_it(world: Any) -> None:
    assert world.submitter.cancel(OTHER, UID, CancelMessage(grace=0)).status is None
    world.submit()
    world.look(1)
    assert world.batch.cancelled == []
    with pytest.raises(SiteRefusedError, match="belongs to another cluster"):
        world.submitter.status(OTHER, UID, Empty())
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    for _ in range(3):
        world.look(60)
    with pytest.raises(SiteRefusedError, match="was cancelled"):
        world.submit()


def test_each_cluster_has_its_own_numbers_and_pages(world: Any) -> None:
    for number in range(4):
        owner = (OWNER, OTHER)[number % 2]
        world.submitter.submit(owner, f"job-{number}", SubmitMessage(namespace="ns", name="pod", script="true\n"))
    is_leader = {owner: world.submitter.snapshot(owner, "", Snapshot(limit=1)) for owner in (OWNER, OTHER)}
    for owner, uids in ((OWNER, ["job-0", "job-2"]), (OTHER, ["job-1", "job-3"])):
        page, found = is_leader[owner], []
        while True:
            found += [job.job for job in page.jobs]
            if not page.more:
                break
            page = world.submitter.snapshot(owner, "", Snapshot(after=found[-1], limit=1))
        assert found == uids
        numbers = [number for number, status in world.events if status.owner == owner]
        assert numbers == list(range(1, len(numbers) + 1))
        assert page.sequence == len(numbers)
    world.look(1)
    world.watcher.release_leadership()  # another submitter of the folder answers from what is on disk
    for owner, page in is_leader.items():
        standby = world.submitter.snapshot(owner, "", Snapshot(limit=1))
        assert ([job.job for job in standby.jobs], standby.more) == ([job.job for job in page.jobs], True)


def test_a_job_from_before_owners_is_in_no_snapshot_until_its_cluster_asks_for_it(world: Any) -> None:
    world.submit()
    world.look(1)
    job = world.folder.job(UID)
    job.write_meta(replace(job.meta(), owner=""))
    world.again()
    assert world.submitter.snapshot(OWNER, "", Snapshot()).jobs == ()
    assert (world.submitter.snapshot(OTHER, "", Snapshot()).jobs, world.status().owner) == ((), OWNER)
    assert [job.job for job in world.submitter.snapshot(OWNER, "", Snapshot()).jobs] == [UID]
    assert world.submitter.snapshot(OTHER, "", Snapshot()).jobs == ()
    assert set(refusals(world)) == {"NotOwner"}
    world.again()
    assert [job.job for job in world.submitter.snapshot(OWNER, "", Snapshot()).jobs] == [UID]
