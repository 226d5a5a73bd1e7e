"""What users see of a pod that waits: the condition, its Event, and the reasons that have a meaning."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import scheduler
from bridge import errors
from bridge.apps.view.wait_reasons import OTHER, WAITING
from bridge.workload import allotted
from scheduler import conditions, node_waits
from scheduler.group_states import GroupState, ReportedCondition, Wait
from tests.builders import pod

FOLDER = Path(scheduler.__file__).parent


def _reasons():
    """Return the first argument of each Wait in the code of the scheduler, if it is a literal."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Wait" and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and part.value:
                        yield part.value


def test_each_reason_has_a_meaning_for_its_users():
    named = {conditions.NODE_BUSY, conditions.NODE_REFUSED, allotted.REASON}
    named |= {node_waits.NOT_READY, node_waits.IN_USE, node_waits.BINDING, errors.UnexpectedError.reason}
    found = {*_reasons()}
    assert {"GangFull", "Racing", "SlurmPending"} <= found
    assert found | named <= WAITING.keys() | OTHER.keys()


@pytest.mark.parametrize(
    ("written", "later", "is_due"),
    [
        (("A", "x"), 0.0, False),
        (("A", "y"), 0.0, False),
        (("A", "y"), conditions.MIN_INTERVAL, True),
        (("B", "x"), 0.0, True),
    ],
)
def test_a_condition_that_differs_only_in_its_message_is_written_seldom(written, later, is_due):
    state = GroupState(condition=ReportedCondition(*written, 1000.0))
    view = SimpleNamespace(states={"u1": state}, now=1000.0 + later)
    assert bool(conditions.due(view, [pod("u1")], Wait("A", "x"))) is is_due


def test_after_a_warning_the_condition_with_its_reason_is_written_at_once_without_a_second_event():
    before = ReportedCondition("A", "x", 999.0)
    record = conditions.after_event(before, "B")
    assert not conditions.has_event(record, "B")
    assert conditions.after_event(record, "B") is record
    state = GroupState(condition=record)
    view = SimpleNamespace(states={"u1": state}, now=1000.0)
    assert conditions.due(view, [pod("u1")], Wait("B", "why"))
