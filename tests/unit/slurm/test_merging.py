import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.merging import FORGET_AFTER, is_busy, merge, started, with_nodes
from bridge.slurm.models import Job, JobLink, Node, ObservedJob, Partition, PodRef, Snapshot
from bridge.slurm.poll_state import Answers, Expected, Identity, PollState, Witness
from bridge.slurm.query_plan import (
    AGAIN,
    BULK_FACTOR,
    LARGEST_BULK,
    LARGEST_SINGLES,
    MOST_CONFIRMED,
    MOST_SINGLES,
    QueryPlan,
    doubted,
    forgotten,
    most_singles,
    plan_queries,
    witnesses,
)
from bridge.slurm.states import end_of

OURS = JobLink("here", (PodRef("ns", "pod", "uid"),))
THEIRS = JobLink("elsewhere", (PodRef("ns", "pod", "uid"),))


def word(text: str) -> frozenset[str]:
    return frozenset(text.split())


def job(job_id: int, states: str, link: JobLink | None = OURS, **more: Any) -> Job:
    return Job(job_id, word(states), link, **more)


def step(
    view: PollState,
    states: Mapping[int, str],
    details: Mapping[int, Job] | None = None,
    unknown: tuple[int, ...] = (),
    expected: Mapping[int, Expected] | None = None,
    began: float | None = None,
) -> PollState:
    at = view.snapshot.began + 1 if began is None else began
    listed = {job_id: word(text) for job_id, text in states.items()}
    return merge(view, Answers(at, listed, details or {}, unknown), expected or {}, "here")


def needs(view: PollState, states: Mapping[int, str], budget: int = 0, **more: Any) -> QueryPlan:
    listed = {job_id: word(text) for job_id, text in states.items()}
    return plan_queries(view, listed, more.get("expected", {}), more.get("began", 1e9), budget)


def test_the_first_snapshot_knows_whose_each_job_is() -> None:
    states = {1: "PENDING", 2: "RUNNING", 3: "RUNNING"}
    assert needs(PollState(), states).jobs == (1, 3, 2)  # the newest first, after the lowest
    details = {1: job(1, "PENDING"), 2: job(2, "RUNNING", THEIRS), 3: job(3, "RUNNING", None)}
    view = step(PollState(), states, details)
    assert view.snapshot.sequence == 1
    assert view.snapshot.jobs.keys() == {1}
    assert view.snapshot.by_uid == {"uid": (1,)}
    assert needs(view, states) == QueryPlan()


def test_running_jobs_of_podbridge_are_read_first_then_the_newest() -> None:
    expected = {job_id: Expected(OURS, since=1, sure=False) for job_id in (2, 4, 6, 8)}
    states = {2: "PENDING", 4: "RUNNING", 6: "PENDING", 8: "PENDING"} | dict.fromkeys((1, 3, 5, 7, 9), "PENDING")
    assert needs(PollState(), states, expected=expected).jobs == (4, 1, 9, 8, 7, 6, 5, 2, 3)


def test_one_poll_reads_jobs_alone_for_about_a_second() -> None:
    assert most_singles(60_000, 300, 0, cheap=False) == 300
    assert most_singles(60_000, 9000, 0, cheap=False) == LARGEST_SINGLES
    assert most_singles(60_000, 3, 0, cheap=False) == MOST_SINGLES
    assert most_singles(1000, 300, 0, cheap=True) == MOST_SINGLES
    assert most_singles(6000, 300, 0, cheap=True) == 120
    assert most_singles(60_000, 50, 4, cheap=False) == 200
    assert most_singles(60_000, 50, 60, cheap=False) == 250


def test_a_job_of_others_is_asked_for_once() -> None:
    view = step(PollState(), {2: "PENDING"}, {2: job(2, "PENDING", THEIRS, submit_time=7)})
    for now in ("RUNNING CONFIGURING", "RUNNING", "COMPLETED COMPLETING", "COMPLETED"):
        assert needs(view, {2: now}) == QueryPlan()
        view = step(view, {2: now})
        assert view.listed == {2: word(now)}
    # states that go backwards: a requeue, or another job
    assert needs(view, {2: "PENDING"}).jobs == (2,)
    # an id that was gone in between is another job's
    assert needs(step(view, {}), {2: "COMPLETED"}).jobs == (2,)
    # our own job with that id
    hope = {2: Expected(OURS, since=1)}
    assert step(view, {2: "PENDING"}, expected=hope).snapshot.by_uid == {"uid": (2,)}
    assert needs(view, {2: "COMPLETED"}, expected=hope).jobs == (2,)


def test_a_job_of_others_is_forgotten_when_it_leaves_the_list() -> None:
    view = step(PollState(), {1: "RUNNING", 2: "RUNNING"}, {i: job(i, "RUNNING", THEIRS) for i in (1, 2)})
    assert view.foreign.keys() == {1, 2}
    assert step(view, {2: "RUNNING"}).foreign.keys() == {2}


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETED"])
@pytest.mark.parametrize("other", [None, THEIRS])
def test_another_users_job_with_the_id_of_ours_ends_the_old_entry(state: str, other: JobLink | None) -> None:
    view = step(PollState(), {1: "RUNNING"}, {1: job(1, "RUNNING", submit_time=5)})
    view = step(view, {1: state}, {1: job(1, state, other, submit_time=9)})
    known = view.snapshot.jobs[1]
    assert (known.job.link, known.confirmations, known.missing) == (OURS, 1, True)
    view = step(view, {1: "COMPLETED"})
    assert (view.snapshot.jobs[1].confirmations, view.snapshot.jobs[1].missing) == (2, True)


def test_our_next_pods_job_with_the_id_of_the_last_one_is_its_own() -> None:
    next_one = JobLink("here", (PodRef("ns", "next", "uid-2"),))
    before = step(PollState(), {1: "RUNNING"}, {1: job(1, "RUNNING", submit_time=5, nodes=("n1",))})
    hope = {1: Expected(next_one, since=2)}
    for view in (
        step(before, {1: "PENDING"}, expected=hope),
        step(before, {}, expected=hope, began=1),
        step(before, {1: "PENDING"}, {1: job(1, "PENDING", next_one, submit_time=9)}),
        step(step(before, {}, unknown=(1,)), {1: "PENDING"}, expected=hope),
    ):
        known = view.snapshot.jobs[1]
        assert (known.job.link, known.job.nodes, known.confirmations, known.missing) == (next_one, (), 0, False)
        assert view.snapshot.by_uid == {"uid-2": (1,)}
    assert started(before, hope, 1, word("RUNNING")) == job(1, "RUNNING", next_one)


def test_a_resubmitted_job_of_the_same_pod_with_the_same_id_lives() -> None:
    before = step(PollState(), {1: "CANCELLED"}, {1: job(1, "CANCELLED", submit_time=5)})
    view = step(before, {1: "PENDING"}, expected={1: Expected(OURS, since=2)})
    assert view.snapshot.jobs[1] == ObservedJob(job(1, "PENDING"))
    view = step(before, {1: "CANCELLED COMPLETING"}, {1: job(1, "CANCELLED COMPLETING", submit_time=9)})
    assert view.snapshot.jobs[1].confirmations == 1


def test_a_witness_is_the_highest_id_of_each_kind() -> None:
    details = {1: job(1, "RUNNING", submit_time=5), 2: job(2, "RUNNING", None, submit_time=6)}
    view = step(PollState(), {1: "RUNNING", 2: "RUNNING"}, details)
    hope = {8: Expected(OURS, 1), 9: Expected(OURS, 1, sure=False)}
    listed = {i: word("RUNNING") for i in (1, 2, 8, 9)}
    found = witnesses(view, listed, hope)
    assert found == {2: Witness(Identity(6, 0), None), 8: Witness(Identity(), OURS)}
    assert witnesses(view, {1: word("RUNNING")}, hope) == {1: Witness(Identity(5, 0), OURS)}
    assert witnesses(PollState(), listed, {}) == {}
    ours, others = Witness(Identity(), OURS), Witness(Identity(5, 0), None)
    assert ours.agrees(job(1, "RUNNING"))
    assert not ours.agrees(job(1, "RUNNING", THEIRS))
    assert not ours.agrees(job(1, "RUNNING", None))
    assert others.agrees(job(1, "RUNNING", None, submit_time=5))
    assert not others.agrees(job(1, "RUNNING", None, submit_time=6))
    # Slurm gives a requeued job a new submit time
    assert others.agrees(job(1, "PENDING", None, submit_time=6, restarts=1))


def test_forgotten_all_is_asked_for_ours_first_and_nothing_is_believed() -> None:
    details = {1: job(1, "RUNNING", None), 2: job(2, "PENDING"), 3: job(3, "RUNNING")}
    view = forgotten(step(PollState(), {1: "RUNNING", 2: "PENDING", 3: "RUNNING"}, details))
    states = {i: word("RUNNING") for i in (1, 2, 3)}
    assert plan_queries(view, states, {}, 1e9, 1, allocations=True) == QueryPlan(jobs=(2, 3, 1))
    # until they are read, jobs of ours stay what they were, and nobody counts on what may be hidden in the rest
    after = step(view, {1: "RUNNING", 2: "RUNNING", 3: "RUNNING"}, {2: job(2, "RUNNING")})
    assert after.snapshot.jobs.keys() == {2, 3}
    assert after.snapshot.listed_for(after.snapshot.began) == -math.inf
    assert needs(after, {1: "RUNNING", 2: "RUNNING", 3: "RUNNING"}).jobs == (3, 1)


def test_after_a_failed_poll_a_job_that_never_proved_to_be_ours_is_asked_for() -> None:
    view = step(
        PollState(), {5: "PENDING", 6: "PENDING"}, {6: job(6, "PENDING")}, expected={5: Expected(OURS, since=1)}
    )
    running = {5: word("RUNNING"), 6: word("RUNNING")}
    assert plan_queries(view, running, {}, 1e9, 0, allocations=True).started == (5, 6)
    asked = plan_queries(doubted(view), running, {}, 1e9, 0, allocations=True)
    assert (asked.jobs, asked.started) == ((5,), (6,))


def test_running_jobs_on_several_nodes_are_read_again_in_turn() -> None:
    states = dict.fromkeys((1, 2, 3), "RUNNING") | {4: "PENDING"}
    nodes = {1: ("n1", "n2"), 2: ("n3",), 3: ("n4", "n5"), 4: ()}
    first = {job_id: job(job_id, states[job_id], nodes=nodes[job_id]) for job_id in states}
    view, asked = step(PollState(), states, first), []
    for _ in range(2 * AGAIN + 2):
        assert needs(view, states, budget=1).jobs == (4,)  # the reason of a pending job comes first
        wanted = needs(view, states, budget=2).jobs
        asked += [job_id for job_id in wanted if job_id != 4]
        view = step(view, states, {job_id: first[job_id] for job_id in wanted})
    assert asked == [1, 3, 1]


def test_a_job_of_which_only_the_nodes_were_read_proves_later_that_it_is_ours() -> None:
    view = step(PollState(), {1: "PENDING"}, {1: job(1, "PENDING")})
    states = {5: word("RUNNING"), 1: word("PENDING")}
    running = {5: job(5, "RUNNING", nodes=("n1",))}
    view = merge(view, Answers(9, states, started=running), {5: Expected(OURS, since=1)}, "here")
    assert view.snapshot.jobs[5].job.nodes == ("n1",)
    assert needs(view, {1: "PENDING", 5: "RUNNING"}, budget=2).jobs == (1, 5)
    assert needs(view, {1: "PENDING", 5: "RUNNING", 6: "PENDING"}, budget=2).jobs == (6, 1)
    view = step(view, {1: "PENDING", 5: "RUNNING"}, {5: job(5, "RUNNING", None)})
    assert view.snapshot.jobs[5].missing


def test_a_first_list_read_in_parts_is_published_whole() -> None:
    states = {1: "RUNNING", 2: "RUNNING"}
    view = step(PollState(), states, {1: job(1, "RUNNING", None)})
    assert (view.snapshot.sequence, needs(view, states).jobs) == (0, (2,))
    view = step(view, states, {2: job(2, "RUNNING")})
    assert (view.snapshot.sequence, view.snapshot.jobs.keys(), view.foreign.keys()) == (1, {2}, {1})


def test_only_what_changed_is_asked_for() -> None:
    view = step(PollState(), {1: "PENDING", 2: "PENDING"}, {1: job(1, "PENDING"), 2: job(2, "PENDING")})
    assert needs(view, {1: "PENDING", 2: "RUNNING"}).jobs == (2,)
    after = step(view, {1: "PENDING", 2: "RUNNING"}, {2: job(2, "RUNNING", nodes=("n1",))})
    assert after.snapshot.jobs[2].job.nodes == ("n1",)
    assert after.snapshot.jobs[1] is view.snapshot.jobs[1]
    assert needs(after, {1: "PENDING", 2: "RUNNING"}) == QueryPlan()


def test_the_budget_goes_round() -> None:
    ids = range(1, 8)
    states = dict.fromkeys(ids, "PENDING")
    view = step(PollState(), states, {i: job(i, "PENDING") for i in ids})
    seen: list[int] = []
    for _ in range(4):
        jobs = needs(view, states, budget=3).jobs
        assert len(jobs) == 3
        seen += jobs
        view = step(view, states, {i: job(i, "PENDING", reason="Priority") for i in jobs})
    assert seen == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]


def test_an_expected_job_needs_no_details_while_it_waits() -> None:
    hope = {5: Expected(OURS, since=10)}
    # the list was asked for before the job was there
    view = step(PollState(), {}, expected=hope, began=9)
    assert view.snapshot.jobs[5].job.link == OURS
    assert needs(view, {}, expected=hope, began=9) == QueryPlan()
    assert needs(view, {5: "PENDING"}, expected=hope) == QueryPlan()
    view = step(view, {5: "PENDING"}, expected=hope)
    assert view.snapshot.jobs[5].confirmations == 0
    # never asked for: first in the round
    assert needs(view, {5: "PENDING"}, budget=1).jobs == (5,)
    assert needs(view, {5: "RUNNING"}).jobs == (5,)


def test_an_expected_job_that_runs_already_is_asked_for_until_its_nodes_are_known() -> None:
    hope = {5: Expected(OURS, since=1)}
    assert needs(PollState(), {5: "RUNNING"}, expected=hope).jobs == (5,)
    view = step(PollState(), {5: "RUNNING"}, expected=hope)
    assert needs(view, {5: "RUNNING"}, expected=hope).jobs == (5,)


def test_an_expected_job_that_slurmctld_does_not_know() -> None:
    hope = {5: Expected(OURS, since=1)}
    assert needs(PollState(), {}, expected=hope, began=2).absent == (5,)
    view = step(PollState(), {}, unknown=(5,), expected=hope, began=2)
    assert (view.snapshot.jobs[5].confirmations, view.snapshot.jobs[5].missing) == (1, True)
    assert needs(view, {}).absent == (5,)
    view = step(view, {}, unknown=(5,))
    assert view.snapshot.jobs[5].confirmations == 2


def test_a_job_that_somebody_only_says_to_be_ours_must_prove_it() -> None:
    hope = {5: Expected(OURS, since=1, sure=False)}
    assert needs(PollState(), {5: "PENDING"}, expected=hope).jobs == (5,)
    foreign = step(PollState(), {5: "PENDING"}, {5: job(5, "PENDING", None)}, expected=hope)
    assert (foreign.snapshot.jobs[5].confirmations, foreign.snapshot.jobs[5].missing) == (1, True)
    again = step(foreign, {5: "PENDING"})
    assert (again.snapshot.jobs[5].confirmations, again.snapshot.jobs[5].missing) == (2, True)
    proven = step(PollState(), {5: "PENDING"}, {5: job(5, "PENDING")}, expected=hope)
    assert proven.snapshot.jobs[5].missing is False
    # known for somebody else's already: no question needed
    known = step(PollState(), {5: "PENDING"}, {5: job(5, "PENDING", None)})
    assert known.snapshot.jobs == {}
    assert step(known, {5: "PENDING"}, expected=hope).snapshot.jobs[5].missing


def test_an_end_is_counted_in_separate_polls() -> None:
    view = step(PollState(), {1: "RUNNING"}, {1: job(1, "RUNNING")})
    view = step(view, {1: "CANCELLED COMPLETING"}, {1: job(1, "CANCELLED COMPLETING")})
    assert view.snapshot.jobs[1].confirmations == 1
    assert is_busy(view.snapshot)
    view = step(view, {1: "CANCELLED"}, {1: job(1, "CANCELLED")})
    assert view.snapshot.jobs[1].confirmations == 2
    assert not is_busy(view.snapshot)
    assert step(view, {1: "CANCELLED"}).snapshot.jobs[1].confirmations == 2


def test_another_end_is_counted_anew_and_a_requeued_job_lives() -> None:
    view = step(PollState(), {1: "PREEMPTED"}, {1: job(1, "PREEMPTED")})
    assert step(view, {1: "TIMEOUT"}, {1: job(1, "TIMEOUT")}).snapshot.jobs[1].confirmations == 1
    back = step(view, {1: "PENDING REQUEUED"}, {1: job(1, "PENDING REQUEUED")})
    assert back.snapshot.jobs[1].confirmations == 0


def test_a_vanished_job_is_confirmed_twice_then_kept_then_forgotten() -> None:
    view = step(PollState(), {1: "RUNNING"}, {1: job(1, "RUNNING", nodes=("n1",))})
    assert needs(view, {}).absent == (1,)
    not_asked = step(view, {})
    assert not_asked.snapshot.jobs[1] == view.snapshot.jobs[1]
    view = step(view, {}, unknown=(1,))
    assert (view.snapshot.jobs[1].confirmations, view.snapshot.jobs[1].missing) == (1, True)
    view = step(view, {}, unknown=(1,))
    assert (view.snapshot.jobs[1].confirmations, view.snapshot.jobs[1].job.nodes) == (2, ("n1",))
    assert needs(view, {}) == QueryPlan()
    first = view.snapshot.jobs[1].since
    assert 1 in step(view, {}, began=first + FORGET_AFTER).snapshot.jobs
    assert 1 not in step(view, {}, began=first + FORGET_AFTER + 1).snapshot.jobs


def test_a_list_that_leaves_out_a_living_job_ends_nothing() -> None:
    view = step(PollState(), {1: "RUNNING"}, {1: job(1, "RUNNING")})
    view = step(view, {}, {1: job(1, "RUNNING")})
    assert (view.snapshot.jobs[1].confirmations, view.snapshot.jobs[1].missing) == (0, False)
    # and one told to be missing once that comes back lives again
    view = step(step(view, {}, unknown=(1,)), {1: "RUNNING"}, {1: job(1, "RUNNING")})
    assert (view.snapshot.jobs[1].confirmations, view.snapshot.jobs[1].missing) == (0, False)


def test_an_ended_job_that_slurmctld_forgets_stays_ended() -> None:
    view = step(PollState(), {1: "TIMEOUT"}, {1: job(1, "TIMEOUT")})
    view = step(view, {}, unknown=(1,))
    known = view.snapshot.jobs[1]
    assert (known.confirmations, known.missing, end_of(known.job.states)) == (2, True, end_of({"TIMEOUT"}))


def test_an_empty_list_is_confirmed_a_few_at_a_time() -> None:
    ids = range(1, MOST_CONFIRMED * 2)
    states = dict.fromkeys(ids, "RUNNING")
    view = step(PollState(), states, {i: job(i, "RUNNING") for i in ids})
    asked = needs(view, {}).absent
    assert asked == tuple(range(1, MOST_CONFIRMED + 1))
    view = step(view, {}, unknown=asked)
    # those told once come first: they are nearly done
    assert needs(view, {}).absent == asked
    view = step(view, {}, unknown=asked)
    assert needs(view, {}).absent == tuple(range(MOST_CONFIRMED + 1, MOST_CONFIRMED * 2))


def test_a_detail_that_did_not_come_is_asked_for_again() -> None:
    view = step(PollState(), {1: "PENDING"}, {1: job(1, "PENDING")})
    view = step(view, {1: "RUNNING", 2: "RUNNING"})
    assert view.snapshot.jobs[1].job.states == {"PENDING"}
    assert needs(view, {1: "RUNNING", 2: "RUNNING"}).jobs == (1, 2)


def test_of_a_job_of_ours_that_starts_only_the_nodes_are_news() -> None:
    view = step(PollState(), {1: "PENDING", 2: "PENDING"}, {1: job(1, "PENDING"), 2: job(2, "PENDING", THEIRS)})
    hope = {3: Expected(OURS, 0.0), 4: Expected(OURS, 0.0, sure=False)}
    states = {number: word("RUNNING") for number in (1, 2, 3, 4)}
    asked = plan_queries(view, states, hope, 1e9, 0, allocations=True)
    assert asked.started == (1, 3)
    assert asked.jobs == (4,)
    assert plan_queries(view, states, hope, 1e9, 0).jobs == (1, 3, 4)
    assert started(view, hope, 1, word("RUNNING")) == job(1, "RUNNING")
    assert started(view, hope, 3, word("RUNNING")) == job(3, "RUNNING")
    # another change of a job that runs is looked at whole
    running = step(view, {1: "RUNNING"}, {1: job(1, "RUNNING", nodes=("n1",))})
    again = plan_queries(running, {1: word("RUNNING CONFIGURING")}, {}, 1e9, 0, allocations=True)
    assert (again.jobs, again.started) == ((1,), ())


def test_a_bulk_list_where_it_is_cheaper() -> None:
    assert QueryPlan(jobs=(1, 2)).in_bulk(2 * BULK_FACTOR - 1, 9000)
    assert not QueryPlan(jobs=(1, 2)).in_bulk(2 * BULK_FACTOR - 1, LARGEST_BULK)
    assert not QueryPlan(jobs=(1, 2)).in_bulk(2 * BULK_FACTOR, 9000)
    assert not QueryPlan(jobs=(1,)).in_bulk(1, 9000)
    assert not QueryPlan(absent=(1, 2, 3)).in_bulk(3, 9000)


def test_settled_since_begins_anew_after_an_error() -> None:
    view = step(PollState(), {}, began=5)
    assert step(view, {}, began=6).snapshot.settled_since == 5
    broken = replace(view, snapshot=replace(view.snapshot, error="x"))
    after = step(broken, {}, began=9).snapshot
    assert (after.settled_since, after.error, after.sequence) == (9, "", 2)


def test_nodes_and_partitions_stay_until_they_are_read_again() -> None:
    read = Answers(1, {}, nodes={"n1": Node("n1", word("IDLE"))}, partitions={"main": Partition("main", ("n1",))})
    view = with_nodes(PollState(), read)
    assert with_nodes(view, Answers(2, {})) is view
    without_node = with_nodes(view, Answers(2, {}, nodes={})).snapshot
    assert (without_node.nodes, without_node.partitions) == ({}, read.partitions)
    without_partition = with_nodes(view, Answers(2, {}, partitions={})).snapshot
    assert (without_partition.nodes, without_partition.partitions) == (read.nodes, {})


def test_busy() -> None:
    def one(states: str, confirmations: int = 0) -> Snapshot:
        return Snapshot(jobs={1: ObservedJob(job(1, states), confirmations)})

    assert not is_busy(Snapshot())
    assert is_busy(one("PENDING"))
    assert is_busy(one("COMPLETING"))
    assert is_busy(one("TIMEOUT", 1))
    assert not is_busy(one("TIMEOUT", 2))
    assert not is_busy(one("RUNNING CONFIGURING"))
    assert not is_busy(one("SUSPENDED"))


STATES = st.sampled_from(["PENDING", "RUNNING", "CANCELLED", "TIMEOUT", "COMPLETING", "PENDING REQUEUED"])


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(1, 4), STATES), st.sets(st.integers(1, 4)), st.booleans()), max_size=12
    )
)
def test_nothing_is_ended_before_it_was_told_twice(polls: list[tuple[dict[int, str], set[int], bool]]) -> None:
    """``confirmations`` grows by one at most, and only with a terminal state or a "no such job"."""
    view = PollState()
    for states, really_gone, bulk in polls:
        asked = needs(view, states, budget=1)
        details = {i: job(i, states[i]) for i in (states if bulk else asked.jobs) if i in states}
        unknown = tuple(i for i in asked.absent if i in really_gone)
        details |= {i: job(i, "RUNNING") for i in asked.absent if i not in really_gone}
        before, view = view, step(view, states, details, unknown)
        for job_id, known in view.snapshot.jobs.items():
            earlier = before.snapshot.jobs.get(job_id)
            assert known.confirmations <= (earlier.confirmations if earlier else 0) + 1
            if known.confirmations:
                assert known.missing or end_of(known.job.states)
            else:
                assert not known.missing
            if job_id in states and not known.missing:
                assert known.job.states == word(states[job_id])
        assert set(states) <= view.snapshot.jobs.keys()
        for uid, ids in view.snapshot.by_uid.items():
            assert uid == "uid"
            assert ids == tuple(sorted(view.snapshot.jobs))


# --- the newest jobs of a list that is read in parts ------------------------------------------------------------------
def partial(*read: Job, unread: tuple[int, ...] = (), link: JobLink | None = THEIRS) -> float:
    states = dict.fromkeys((*(job.job_id for job in read), *unread), "PENDING")
    details = {job.job_id: replace(job, link=link) for job in read}
    return step(PollState(snapshot=Snapshot(sequence=1)), states, details).snapshot.partial_since


def test_jobs_are_read_back_to_the_submission_of_the_first_one_above_all_unread_ones() -> None:
    read = [job(1, "PENDING", submit_time=10), job(7, "PENDING", submit_time=70), job(8, "PENDING", submit_time=80)]
    assert partial(*read, unread=(2, 6)) == 70
    assert partial(*read, unread=(2, 6), link=OURS) == 70
    assert partial(*read, unread=(9,)) == math.inf
    assert partial(*read) == math.inf  # all jobs are read


def test_a_requeue_makes_the_time_later_and_a_task_of_an_array_does_not_count() -> None:
    requeued = job(7, "PENDING", submit_time=95, restarts=1)
    task = job(8, "PENDING", submit_time=5, is_array_task=True)
    normal = job(9, "PENDING", submit_time=90)
    assert partial(requeued, unread=(6,)) == 95
    assert partial(task, normal, unread=(6,)) == 90
    assert partial(task, unread=(6,)) == math.inf


def test_ids_that_do_not_ascend_prove_nothing() -> None:
    high = job(7, "PENDING", submit_time=70)
    assert partial(job(1, "PENDING", submit_time=71), high, unread=(6,)) == math.inf
    assert partial(job(1, "PENDING", submit_time=71, restarts=1), high, unread=(6,)) == 70
    assert partial(job(1, "PENDING", submit_time=71, is_array_task=True), high, unread=(6,)) == 70
    # in a federation, the highest bits are those of the cluster
    assert partial(high, job(1 << 26, "PENDING", submit_time=80), unread=(6,)) == math.inf
    assert partial(high, unread=(6, 1 << 26)) == math.inf


def test_a_new_job_of_podbridge_has_not_the_submit_time_of_an_earlier_job_of_others_with_its_id() -> None:
    earlier = PollState(Snapshot(sequence=1), listed={9: word("COMPLETED")}, foreign={9: Identity(submit_time=20)})
    states = {6: "PENDING", 8: "PENDING", 9: "RUNNING"}
    details = {8: job(8, "PENDING", THEIRS, submit_time=80)}
    after = step(earlier, states, details, expected={9: Expected(OURS, since=1)})
    assert after.snapshot.jobs[9].job.link == OURS
    assert after.snapshot.partial_since == 80


@given(st.lists(st.tuples(st.floats(1, 100), st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_every_job_submitted_after_that_time_has_been_read(jobs: list[tuple[float, bool, bool, bool]]) -> None:
    """Jobs in the order of their ids: seconds since the one before, whether read, requeued later, a late array task."""
    now, listed, submitted = 100.0, [], {}
    for job_id, (wait, read, again, late) in enumerate(jobs, start=1):
        now += wait
        submitted[job_id] = 1.0 if late else now
        shown = now + 500 if again and not late else submitted[job_id]
        listed.append((read, job(job_id, "PENDING", submit_time=shown, restarts=int(again), is_array_task=late)))
    unread = tuple(found.job_id for read, found in listed if not read)
    since = partial(*(found for read, found in listed if read), unread=unread)
    assert not [job_id for job_id in unread if submitted[job_id] > since]
