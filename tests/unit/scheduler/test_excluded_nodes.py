"""Updates of the excluded nodes of pending jobs: which are needed, and how many are sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from scheduler import excluded_nodes, group_actions
from scheduler.excluded_nodes import BURST, FASTEST, SHARE, SLOWEST, QueueHead, UpdatePace
from scheduler.group_states import GroupState, GroupStates
from scheduler.nodes.placement import Placements
from tests import builders
from tests.builders import node_view, slurm_nodes, snapshot
from tests.fakes.clock import FakeClock
from tests.unit.scheduler import decisions


def node(name, *, mirrored=False, **spec):
    return node_view(name, annotations={names.SLURM_REASON: "DRAIN: disk"} if mirrored else {}, **spec)


def observed(job_id, state="PENDING", **more):
    return builders.observed(job_id, state, f"u{job_id}", reason="Resources", **more)


def look(entries, nodes, drained=(), **more):
    slurm = {}
    for one in nodes:
        slurm |= slurm_nodes(one.slurm_name, states="IDLE+DRAIN" if one.name in drained else "IDLE")
    ids = [entry.job.job_id for entry in entries]
    pods = [builders.pod(f"u{job_id}", job=job_id, requests={"cpu": "1"}) for job_id in ids]
    return decisions.look(pods, snapshot(*entries), Placements(nodes, slurm, {}), **more)


def excluded(found):
    return {action.job_id: action.nodes for action in found if isinstance(action, group_actions.Exclude)}


def test_a_node_that_is_drained_in_slurm_causes_no_updates():
    nodes = [node("n1"), node("n2", unschedulable=True)]
    entry, states = observed(5), GroupStates()
    assert excluded(look([entry], nodes)) == {5: ("n2",)}
    assert look([entry], nodes, drained=["n2"], states=states) == []
    # nor does the end of its cordon
    assert look([entry], [node("n1"), node("n2")], drained=["n2"], states=states) == []
    # drained no longer, but still cordoned: now Slurm could allocate it
    assert excluded(look([entry], nodes, states=states)) == {5: ("n2",)}


def test_a_drained_node_that_the_job_excludes_already_causes_no_update():
    nodes = [node("n1"), node("n2", unschedulable=True), node("n3")]
    assert look([observed(5, excluded="n[2-3]")], nodes, drained=["n2", "n3"]) == []


def test_podbridges_own_cordon_refuses_no_node_that_slurm_has_resumed():
    nodes = [node("n1"), node("n2", mirrored=True, unschedulable=True)]
    assert look([observed(5)], nodes) == []
    (bind,) = look([observed(5, "RUNNING", nodes=("n2",))], nodes)
    assert isinstance(bind, group_actions.Bind)
    (back,) = look([observed(5, "RUNNING", nodes=("n2",))], nodes, drained=["n2"])
    assert isinstance(back, group_actions.CancelAndResubmit)


def test_the_jobs_that_probably_start_first_are_updated_first():
    nodes = [node("n1"), node("n2", unschedulable=True)]
    entries = [
        observed(1, priority=1),
        observed(2, priority=5),
        observed(3, priority=5, start_time=900.0),
        observed(4, priority=5, start_time=800.0),
    ]
    assert list(excluded(look(entries, nodes, updates=2))) == [3, 4]
    assert len(excluded(look(entries, nodes, updates=4))) == 4


def test_without_updates_the_pods_get_their_conditions():
    nodes = [node("n1"), node("n2", unschedulable=True)]
    states = GroupStates()
    states.update("u5", lambda _: GroupState(waiting_since=0.0))
    (action,) = look([observed(5)], nodes, states=states, updates=0)
    assert isinstance(action, group_actions.SetCondition)


def test_only_the_jobs_that_slurm_considers_next_are_updated(monkeypatch):
    monkeypatch.setattr(excluded_nodes, "HEAD", 2)
    nodes = [node("n1"), node("n2", unschedulable=True)]
    entries = [observed(1, partition="a"), observed(2, partition="a", priority=5), observed(3, partition="b")]
    entries += [observed(4, partition="a", priority=7), observed(5, "RUNNING", nodes=("n1",), partition="a")]
    states = GroupStates()
    states.update("u1", lambda _: GroupState(waiting_since=0.0))
    kept, jobs = QueueHead(), lambda: {entry.job.job_id: entry for entry in entries}
    found = look(entries, nodes, states=states, head=kept.of(jobs(), 0.0))
    assert set(excluded(found)) == {2, 3, 4}
    # the pod of the other job gets its condition
    assert [action.pod["metadata"]["uid"] for action in found if isinstance(action, group_actions.SetCondition)] == [
        "u1"
    ]
    # the job that was first has started: another one is considered after a moment
    entries[3] = observed(4, "RUNNING", nodes=("n1",), partition="a")
    assert 1 not in excluded(look(entries, nodes, head=kept.of(jobs(), excluded_nodes.PERIOD - 0.01)))
    assert 1 in excluded(look(entries, nodes, head=kept.of(jobs(), excluded_nodes.PERIOD)))


def test_few_jobs_are_all_updated():
    nodes = [node("n1"), node("n2", unschedulable=True)]
    head = QueueHead().of({5: observed(5)}, 0.0)
    assert head is None
    assert 5 in excluded(look([observed(5)], nodes, head=head))


def test_a_thousand_updates_take_less_than_a_minute_if_slurmctld_answers_fast():
    assert seconds_for(1000, answer=0.003) == pytest.approx((1000 - BURST) / FASTEST, abs=6)


def test_a_slow_slurmctld_gets_few_updates():
    assert seconds_for(100, answer=0.05) == pytest.approx((100 - BURST) * 0.05 / SHARE, rel=0.2)
    assert seconds_for(50, answer=30.0) == pytest.approx((50 - BURST) / SLOWEST, rel=0.3)


def seconds_for(count, answer):
    """The seconds for ``count`` updates of jobs, if slurmctld takes ``answer`` seconds for each."""
    pace, sent, now = UpdatePace(), 0, 0.0
    while sent < count:
        allowed = min(pace.allowed(now), count - sent)
        pace.sent(allowed)
        for _ in range(allowed):
            pace.took(answer)
        sent += allowed
        now += 0.25
    return now


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 100), st.floats(0, 100)), max_size=30))
def test_never_more_updates_than_the_pace(steps):
    pace, sent, now = UpdatePace(), 0, 1000.0
    for wait, wanted, answer in steps:
        now += wait
        allowed = pace.allowed(now)
        pace.sent(min(wanted, allowed))
        pace.took(answer)
        sent += min(wanted, allowed)
        assert 0 <= allowed <= BURST
        assert SLOWEST <= pace.rate <= FASTEST
        assert sent <= BURST + FASTEST * (now - 1000.0) + 0.001


def test_an_update_that_fails_is_measured():
    pace, clock = UpdatePace(), FakeClock()
    with pytest.raises(ValueError, match="x"), pace.measured(clock):
        clock.advance(60)
        raise ValueError("x")
    assert pace.rate == SLOWEST
