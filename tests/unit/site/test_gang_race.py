"""The one job of a group that waits for its grant: it begins once each pod was granted, or is given back by all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Grant
from bridge.site.config.site_config import parse
from tests.unit.site.conftest import OWNER
from tests.unit.site.killer import Killer
from tests.unit.site.test_gangs import (
    GANG,
    cancel,
    cancel_all,
    check_nothing_left,
    close,
    end,
    end_all,
    message,
    pod,
    start,
    statuses,
    submit,
    submit_all,
)

TICKET = "11111111-2222-3333-4444-555555555555"
WAIT = 60.0
STEPS_OF_GRANT = 16


@pytest.fixture
def site(world: Any) -> Any:
    world.config = parse('pool = "p"\n[limits]\nallow_race = true\n')
    return world


def offer(site: Any, *ranks: int) -> None:
    for rank in ranks or range(3):
        submit(site, rank, grant_wait=WAIT)


def ask(site: Any) -> None:
    """What the launcher does first: it starts no pod."""
    site.look()
    (job_id,) = [job.id for job in site.batch.table.values() if job.phase == "queued"]
    site.batch.run(job_id)
    site.write("started/job", "", GANG)
    site.write("state/pod.json", f'{{"phase":"Asking","startedAt":7,"ticket":"{TICKET}"}}', GANG)
    site.look()


def offer_and_ask(site: Any) -> None:
    offer(site)
    ask(site)


def grant(site: Any, *ranks: int, ticket: str = TICKET) -> None:
    for rank in ranks:
        site.submitter.grant(OWNER, pod(rank), Grant(ticket=ticket))


def is_granted(site: Any) -> bool:
    return (site.folder.job(GANG).path / "control" / "grant").exists()


def begin(site: Any) -> None:
    """What the launcher and the scripts of the pods do once the job has its grant."""
    site.write("state/pod.json", '{"phase":"Running","startedAt":7,"ticket":""}', GANG)
    for rank in range(3):
        site.write("started/job", "", pod(rank))
        site.write("state/pod.json", '{"phase":"Running","startedAt":7,"ticket":""}', pod(rank))
    site.look()


def give_back(site: Any, reason: str = "NoGrant") -> None:
    text = f'{{"phase":"Failed","reason":"{reason}","startedAt":7,"finishedAt":9,"ticket":"{TICKET}"}}'
    site.write("state/pod.json", text, GANG)
    (job_id,) = [job.id for job in site.batch.table.values() if job.phase == "running"]
    site.batch.end(job_id, code=1)
    site.look(0, 5)


def withdraw(site: Any, rank: int) -> Any:
    return site.submitter.cancel(OWNER, pod(rank), CancelMessage(grace=0, withdrawn=True)).status


def withdraw_all(site: Any) -> None:
    for rank in range(3):
        withdraw(site, rank)


def test_every_pod_asks_with_the_ticket_of_the_job_and_the_last_grant_lets_it_begin(site: Any) -> None:
    offer(site)
    site.look()
    assert {(s.phase, s.asks, s.gang) for s in statuses(site)} == {("queued", "", GANG)}
    ask(site)
    told = {status.job: status for _, status in site.events}
    assert {(s.phase, s.asks, s.reason) for s in told.values()} == {("queued", TICKET, "AwaitingGrant")}
    grant(site, 1, 2)
    assert [s.asks for s in statuses(site)] == [TICKET, "", ""]
    assert not is_granted(site)
    grant(site, 0, ticket="0" * 36)
    assert not is_granted(site)
    grant(site, 0)
    assert is_granted(site)
    assert {(s.asks, s.reason) for s in statuses(site)} == {("", "Granted")}
    begin(site)
    assert {s.phase for s in statuses(site)} == {"running"}


@pytest.mark.parametrize("content", ['{"phase":"Asking","ticket":7}', '{"phase":"Asking"}', ""])
def test_a_launcher_without_a_ticket_has_no_grant(site: Any, content: str) -> None:
    offer_and_ask(site)
    grant(site, 0, 1, 2)
    site.write("state/pod.json", content, GANG)
    site.look()
    assert {site.watcher.index.entries[pod(rank)].record.grant for rank in range(3)} == {""}


def test_a_job_whose_pods_have_run_is_not_unused(site: Any) -> None:
    offer_and_ask(site)
    grant(site, 0, 1, 2)
    begin(site)
    for rank in range(3):
        end(site, rank, rank)
    close(site)
    site.look(0, 5)
    assert [(s.phase, s.unused) for s in statuses(site)] == [("ended", False)] * 3
    submit(site, 0)
    assert len(site.batch.submits) == 1
    cancel_all(site)
    check_nothing_left(site)


@pytest.mark.parametrize("granted", [(), (0,), (0, 1)])
@pytest.mark.parametrize("how", ["given back", "killed"])
def test_a_job_without_the_grant_of_all_is_unused_and_the_next_submissions_make_another(
    site: Any, granted: tuple[int, ...], how: str
) -> None:
    offer_and_ask(site)
    grant(site, *granted)
    if how == "given back":
        give_back(site)
    else:
        site.batch.end("1", "NodeFail")
        site.look(0, 5)
    assert {(s.phase, s.unused) for s in statuses(site)} == {("ended", True)}
    # the pods are bound one after the other: the others stay unused until they come
    assert submit(site, 0).reason == "GangIncomplete"
    site.look(5)
    assert [(s.phase, s.unused) for s in statuses(site)] == [("queued", False), ("ended", True), ("ended", True)]
    with pytest.raises(SiteRefusedError) as refused:
        submit(site, 1, grant_wait=WAIT)
    assert (refused.value.reason, refused.value.retryable) == ("GangIsBound", True)
    submit(site, 1)
    submit(site, 2)
    assert [request.uid for request in site.batch.submits] == [GANG, GANG]
    assert site.batch.submits[1].replaced == ("1",)
    start(site)
    site.look()
    assert {(s.phase, s.asks, s.job_id) for s in statuses(site)} == {("running", "", "2")}
    end_all(site)
    close(site)
    cancel_all(site)
    check_nothing_left(site)


def test_the_end_of_an_unused_job_that_the_leader_writes_late_is_not_that_of_the_next(site: Any) -> None:
    offer_and_ask(site)
    give_back(site)
    read = [site.folder.job(pod(rank)).read() for rank in range(3)]
    for rank in range(3):
        submit(site, rank)
    for record in read:
        assert record.end_confirmed
        site.watcher.index.store(record.uid, replace(record, batch_at=0.0))
    site.look()
    assert {(s.phase, s.unused) for s in statuses(site)} == {("queued", False)}
    start(site)
    site.look()
    assert {(s.phase, s.job_id) for s in statuses(site)} == {("running", "2")}


def test_a_job_that_was_killed_with_its_grant_may_have_begun(site: Any) -> None:
    offer_and_ask(site)
    grant(site, 0, 1, 2)
    site.batch.end("1", "NodeFail")
    site.look(0, 5)
    assert {(s.phase, s.unused) for s in statuses(site)} == {("ended", False)}
    site.again()
    assert {(s.phase, s.unused) for s in statuses(site)} == {("ended", False)}
    assert submit(site, 0).phase == "ended"
    assert len(site.batch.submits) == 1


def test_an_unused_job_is_offered_again_and_asks_again(site: Any) -> None:
    offer_and_ask(site)
    grant(site, 0)
    give_back(site)
    offer(site)
    ask(site)
    assert [s.asks for s in statuses(site)] == [TICKET] * 3, "the grant of the earlier job does not count"
    grant(site, 0, 1, 2)
    assert is_granted(site)


def test_a_pod_that_is_bound_here_needs_no_grant(site: Any) -> None:
    """A late withdrawal has ended its job, or it is the successor of a deleted pod."""
    offer_and_ask(site)
    withdraw(site, 2)
    cancel(site, 1)
    for _ in range(3):
        site.look(1)
    assert (statuses(site, 2)[0].phase, statuses(site, 2)[0].unused) == ("ended", True)
    grant(site, 0)
    submit(site, 1, 1, time_limit=50.0)
    assert not is_granted(site)
    submit(site, 2)
    assert is_granted(site)
    assert len(site.batch.submits) == 1


def test_a_late_withdrawal_does_not_end_a_job_with_its_grant(site: Any) -> None:
    offer_and_ask(site)
    grant(site, 0, 1, 2)
    before = statuses(site)
    withdraw_all(site)
    assert statuses(site) == before
    assert not (site.folder.job(GANG).path / "cancel.json").exists()


def test_a_withdrawn_pod_prevents_the_grant_of_the_others(site: Any) -> None:
    offer_and_ask(site)
    withdraw(site, 1)
    grant(site, 0, 1, 2)
    assert not is_granted(site)


@pytest.mark.parametrize("is_asking", [False, True])
@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_group_that_runs_elsewhere_leaves_the_queue(site: Any, is_asking: bool, is_withdrawn: bool) -> None:
    offer(site)
    if is_asking:
        ask(site)
    for rank in range(3):
        if is_withdrawn:
            withdraw(site, rank)
        else:
            site.submitter.cancel(OWNER, pod(rank), CancelMessage(grace=0))
    site.look(1, 1)
    if is_asking:
        assert (site.folder.job(GANG).path / "control" / "stop").exists()
        give_back(site, "Deleted")
    site.look(5)
    assert {(s.phase, s.unused) for s in statuses(site)} == {("ended", True)}
    assert all(job.phase == "ended" for job in site.batch.table.values())
    if is_withdrawn:  # they are bound here later
        submit_all(site)
        assert [job.phase for job in site.batch.table.values()] == ["ended", "queued"]
    cancel_all(site)
    check_nothing_left(site)


@pytest.mark.parametrize("had_job", [False, True])
def test_an_incomplete_group_that_runs_elsewhere_is_removed_soon(site: Any, had_job: bool) -> None:
    if had_job:
        offer_and_ask(site)
        give_back(site)
    offer(site, 0, 1)
    for rank in range(3 if had_job else 2):
        cancel(site, rank)
    for _ in range(3):
        site.look(5)
    assert site.folder.uids() == []


@pytest.mark.parametrize("is_asking", [False, True])
def test_a_group_that_was_forgotten_without_a_grant_comes_again(site: Any, is_asking: bool) -> None:
    """It ran nothing; its batch job is still listed, as ended."""
    offer(site)
    if is_asking:
        ask(site)
        give_back(site)
    for rank in range(3):
        withdraw(site, rank)
        cancel(site, rank)
    for _ in range(3):
        site.look(31)
    assert site.folder.uids() == []
    for rank in range(3):
        submit(site, rank, 1, grant_wait=WAIT)
        site.look(1)
    assert [(job.id, job.phase) for job in site.batch.table.values()] == [("1", "ended"), ("2", "queued")]
    assert site.batch.submits[1].replaced == ("1",)
    assert {site.status(pod(rank, 1)).job_id for rank in range(3)} == {"2"}


def test_while_an_unused_job_is_forgotten_its_pods_are_refused_for_now(site: Any) -> None:
    offer(site)
    cancel_all(site)
    while not (site.folder.job(GANG).path / "cancel.json").exists():
        site.look(1)
    with pytest.raises(SiteRefusedError) as refused:
        submit(site, 0, 1, grant_wait=WAIT)
    assert (refused.value.reason, refused.value.retryable) == ("GangOver", True)


def test_while_the_job_ends_its_pods_are_refused_for_now(site: Any) -> None:
    offer_and_ask(site)
    withdraw_all(site)
    site.look(1, 1)
    with pytest.raises(SiteRefusedError) as refused:
        submit(site, 0)
    assert (refused.value.reason, refused.value.retryable) == ("GangOver", True)


def test_an_unused_pod_comes_with_another_group(site: Any) -> None:
    """The group has a new first pod, so its job has a new name."""
    offer_and_ask(site)
    withdraw_all(site)
    site.look(1)
    other = "9f000000-0000-4000-8000-000000000002"
    for rank in range(3):
        body = offered(rank, other)
        assert site.submitter.submit(OWNER, pod(rank), body).status.gang == other
    site.look(1)
    assert {s.gang for s in statuses(site)} == {other}
    give_back(site, "Deleted")
    for _ in range(3):
        site.look(31)
    assert site.folder.uids() == sorted([other, *map(pod, range(3))]), "nothing of the earlier job is left"
    cancel_all(site)
    check_nothing_left(site)


def offered(rank: int, gang: str) -> Any:
    body = message(rank, grant_wait=WAIT)
    return body.model_copy(update={"place": body.place.model_copy(update={"gang": gang})})


@pytest.mark.parametrize("point", range(STEPS_OF_GRANT))
def test_killed_while_the_last_pod_is_granted(site: Any, killer: Killer, point: int) -> None:
    """The hub repeats its grant as long as the pod asks: then the job has its grant."""
    offer_and_ask(site)
    grant(site, 0, 1)
    killer.at(point, lambda: grant(site, 2))
    site.again()
    if statuses(site, 2)[0].asks:
        grant(site, 2)
    assert is_granted(site)


@pytest.mark.parametrize("point", range(40))
def test_killed_while_an_unused_job_is_replaced(site: Any, killer: Killer, point: int) -> None:
    offer_and_ask(site)
    give_back(site)
    killer.at(point, lambda: submit(site, 1))
    site.again()
    site.look(1)
    for rank in (1, 0, 2):
        submit(site, rank)
    site.look(61, 1)
    assert [job.uid for job in site.batch.table.values() if job.phase != "ended"] == [GANG]
    assert {(s.phase, s.unused) for s in statuses(site)} == {("queued", False)}
