"""The states of a waiting pod: the transitions of its lifecycle and of its node, and a decision that is pure."""

import copy
import gc
import random
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.core.job_lifecycle import State
from scheduler import group_actions, group_decide
from scheduler.conditions import WAITS, waits_for
from scheduler.group_states import NEW, REFUSED, GroupState, GroupStates
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import Placements
from tests.builders import node_view, observed, pod, slurm_nodes, snapshot
from tests.unit.scheduler import decisions

PAGE = Path(__file__).parents[3] / "docs/developers/architecture.md"
NODES = {"fits": {}, "cordoned": {"unschedulable": True}, "full": {}}
VIEWS = [node_view(name, **spec) for name, spec in NODES.items()]
SLURM_NODES = slurm_nodes(*NODES) | slurm_nodes("starting", states="ALLOCATED+CLOUD+POWERING_UP")
JOBS = ["PENDING", "NODE_FAIL", *SLURM_NODES]


WITHOUT_JOB = {State.KNOWN, State.STARTED, State.UNKNOWN}
LIFECYCLES = {
    State.WANTED: WITHOUT_JOB,
    State.ABSENT: WITHOUT_JOB,
    State.ENDED: WITHOUT_JOB,
    State.UNKNOWN: {State.ABSENT, State.KNOWN, State.STARTED},
    State.KNOWN: {State.ABSENT, State.ENDED, State.STARTED},
    State.STARTED: {State.ABSENT, State.ENDED, State.KNOWN},
}
"""What each state of the job is followed by until the binding."""


def view(state: GroupState, job: str | None, job_id: int, now: float):
    """Return a view of one pod; ``job`` is the state of its job, or the node on which it runs."""
    entries = []
    if job is not None:
        runs = job in SLURM_NODES
        confirmations = 2 if job == "NODE_FAIL" else 0
        found = observed(job_id, "RUNNING" if runs else job, nodes=[job] if runs else (), confirmations=confirmations)
        entries = [found]
    occupancy = Occupancy("ours")
    occupancy.changed("add", None, pod("old", node="full", requests={"cpu": "8"}, deleted="1970-01-01T00:00:01Z"))
    states = GroupStates()
    states.by_uid["u1"] = state
    waiting, snap = [pod(job=job_id, requests={"cpu": "1"})], snapshot(*entries, sequence=1, began=now)
    return decisions.view(
        waiting, snap, Placements(VIEWS, SLURM_NODES, {}), states=states, now=now, occupancy=occupancy
    )


def carried_out(
    action: group_actions.Action | None, answer: str, state: GroupState, now: float, job_id: int
) -> GroupState:
    """Return the state after a worker has carried out an action."""
    match action, answer:
        case group_actions.Submit(), "done":
            return state.submitted(job_id, now, ())
        case group_actions.Submit(), "refused":
            return state.failed(now, REFUSED, "SlurmRefused", "no")
        case group_actions.Submit(), "none":
            return state.without_answer(now, "SlurmUnknownOutcome", "no answer")
        case group_actions.Bind(), "done":
            return state.bound(now)
        case group_actions.CancelAndResubmit(), "done":
            cancelled = state.cancelled | {action.job_id}
            return replace(state, cancelled=cancelled).unusable(now, REFUSED, "NodeRefused", "cordoned")
    return state


def test_the_transitions_are_those_of_the_lifecycle_and_those_of_the_diagram():
    text = PAGE.read_text().split("stateDiagram-v2", 1)[1].split("```", 1)[0]
    drawn = set(re.findall(r"^ *(\w+) --> (\w+)", text, re.MULTILINE))
    luck = random.Random(15)
    seen, seen_with_job, waits = set(), set(), set()
    state, now, job_id = NEW, 1000.0, 1
    for _ in range(6000):
        now += luck.choice([0.1, 6.0, 400.0])
        job = luck.choice([None, None, *JOBS])
        decision = group_decide.decide(view(state, job, job_id, now))
        after = decision.states.get("u1", state)
        action = decision.actions[0] if decision.actions else None
        if isinstance(action, group_actions.Submit):
            job_id += 1
        last = carried_out(action, luck.choice(["done", "refused", "none"]), after, now, job_id)
        for old, new in ((state, after), (after, last)):
            pair = old.lifecycle.state, new.lifecycle.state
            if pair == (State.STARTED, State.STARTED) and waits_for(old) != waits_for(new):
                seen_with_job.add((waits_for(old), waits_for(new)))
            elif pair[0] is not pair[1] and new.bound_at is None:
                seen.add(pair)
            waits.add(waits_for(new))
        if last.bound_at is not None:
            states = GroupStates()
            states.merge({"u1": last})
            states.forget_bindings(now + 100, lambda _: False)
            assert (waits_for(last), waits_for(states.of("u1"))) == ("bind", "submit")
        state = NEW if last.bound_at is not None else last
    assert waits == {*WAITS} - {"gate", "release"}
    assert seen == {(old, new) for old, row in LIFECYCLES.items() for new in row}
    assert seen_with_job == drawn


def test_a_decision_changes_nothing_that_it_is_given():
    for job in (None, *JOBS):
        given = view(GroupState(), job, 5, 1000.0)
        inside = ("_by_uid", "_by_node", "_used", "_foreign", "_ending", "_assumed")
        before = copy.deepcopy(({k: getattr(given.occupancy, k) for k in inside}, dict(given.states), given.snapshot))
        first, second = group_decide.decide(given), group_decide.decide(given)
        assert first == second
        assert ({k: getattr(given.occupancy, k) for k in inside}, dict(given.states), given.snapshot) == before


def test_failures_count_until_a_submission_succeeds():
    state = NEW.failed(100.0, REFUSED, "SlurmRefused", "no").without_answer(200.0, "SlurmUnknownOutcome", "none")
    assert state.failure.count == 2
    with pytest.raises(ValueError, match="UNKNOWN"):
        state.submitted(7, 300.0, ("n1",))
    state = replace(state, lifecycle=state.lifecycle.denied(300.0)).submitted(7, 300.0, ("n1",))
    assert state.failed(400.0, REFUSED, "SlurmRefused", "no").failure.count == 1
    assert (state.excluded, state.exclude_retry_at) == (("n1",), None)


def test_jobs_that_end_unused_count_until_a_binding_and_the_first_one_is_replaced_at_once():
    state, delays = NEW, []
    for number in range(1, 11):
        state = state.submitted(number, 100.0, ()).ended(100.0, "JobFailed", "failed")
        delays.append(state.failure.retry_at - 100 if state.failure else 0)
    assert delays == [0, 5, 10, 20, 40, 80, 160, 300, 300, 300]
    state = state.submitted(11, 100.0, ()).unusable(100.0, REFUSED, "NodeRefused", "cordoned")
    assert state.failure.retry_at - 100 >= 300 * 0.8
    assert waits_for(state.allocated(100.0).bound().ended(100.0, "JobFailed", "failed")) == "submit"


def test_an_id_that_slurm_assigns_again_is_not_one_of_the_cancelled_jobs():
    state = GroupState(cancelled=frozenset({7, 8}), exclude_retry_at=5.0).submitted(7, 1.0, ())
    assert state.cancelled == {8}
    assert state.exclude_retry_at is None


def test_a_binding_is_forgotten_if_a_cache_that_was_current_long_after_it_does_not_show_it():
    states = GroupStates()
    states.merge({uid: NEW.bound(at) for uid, at in {"lost": 100.0, "new": 190.0, "busy": 100.0}.items()})
    states.forget_bindings(150.0, lambda uid: uid == "busy")
    assert all(states.of(uid).bound_at for uid in ("lost", "new", "busy"))
    states.forget_bindings(200.0, lambda uid: uid == "busy")
    assert [uid for uid in ("lost", "new", "busy") if not states.of(uid).bound_at] == ["lost"]


def test_states_of_pods_that_wait_no_more_are_deleted():
    states = GroupStates()
    for uid in ("a", "b"):
        states.update(uid, lambda state: state.without_answer(1.0, "SlurmUnknownOutcome", "none"))
    states.forget_all_but({"b"})
    assert (states.of("a"), states.unsettled) == (NEW, True)
    states.forget_all_but(set())
    assert not states.unsettled


def test_a_garbage_collection_while_states_are_read_lets_no_other_thread_change_them():
    """A collection may close a socket or run a finalizer, which releases the GIL."""
    states, stop = GroupStates(), threading.Event()
    for number in range(2000):
        states.update(f"uid-{number}", lambda state: state.bound(1.0))

    def write():
        number = 0
        while not stop.wait(0.0001):
            number += 1
            states.update(f"new-{number}", lambda state: state)

    def release_gil(*_):
        time.sleep(0.0001)

    writer, threshold = threading.Thread(target=write), gc.get_threshold()
    writer.start()
    gc.callbacks.append(release_gil)
    try:
        gc.set_threshold(500)
        for _ in range(50):
            assert states.allocated == set()
            assert not states.unsettled
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(release_gil)
        stop.set()
        writer.join()
