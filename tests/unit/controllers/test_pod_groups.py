"""The condition PodGroupScheduled of PodGroups, from their pods."""

import pytest

from bridge import names
from controllers.workload import pod_groups
from tests import builders


def member(number, node=None, message="", kind="workload", phase="Pending", minimum=2):
    group = builders.group(3, minimum, kind=kind, name="native")
    conditions = [{"type": names.POD_SCHEDULED, "status": "False", "message": message}] if message else []
    return builders.pod(f"u{number}", node=node, phase=phase, conditions=conditions, annotations=group)


def one(*members):
    (condition,) = pod_groups.conditions(members).values()
    return condition


def test_a_group_with_its_minimum_on_nodes_is_scheduled():
    assert one(member(0, "n0"), member(1)).scheduled is False
    condition = one(member(0, "n0", phase="Succeeded"), member(1, "n1"), member(2))
    assert (condition.scheduled, condition.reason, condition.group.name) == (True, "Scheduled", "native")


def test_a_group_stays_scheduled_when_members_that_have_ended_are_deleted():
    running = member(1, "n1", phase="Running")
    running["status"]["conditions"] = [
        {"type": names.POD_SCHEDULED, "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"}
    ]
    old, new = member(0), member(2)
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:09Z"
    assert one(running).scheduled
    assert one(running, new).scheduled
    assert not one(running, old).scheduled


def test_a_minimum_that_changes_later_counts_when_most_pods_have_it():
    pods = [member(0, "n0", minimum=3), member(1, "n1"), member(2)]
    condition = one(*pods)
    assert (condition.scheduled, condition.message) == (True, "2 pods are bound to nodes")
    assert not one(*pods[:2], member(2, minimum=3)).scheduled


def test_a_waiting_group_has_the_message_of_its_first_member():
    condition = one(member(1, message="second"), member(0, message="Slurm job 5 is pending"))
    assert (condition.reason, condition.message) == ("Unschedulable", "Slurm job 5 is pending")


@pytest.mark.parametrize("kind", ["job", "podgroup"])
def test_other_kinds_have_no_such_object(kind):
    assert pod_groups.conditions([member(0, kind=kind)]) == {}
