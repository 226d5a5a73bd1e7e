"""Pods that only a label makes members of a gang: any user of the namespace may create one."""

from dataclasses import replace
from functools import partial

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.slurm.models import JobLink
from bridge.workload import links
from scheduler import conditions, group_actions, member_places
from scheduler.group_states import GroupStates
from tests.counted import Count, Items, Object
from tests.unit.scheduler import decisions
from tests.unit.scheduler.test_gang_decide import (
    NODES,
    REF,
    gang_of,
    kinds,
    known,
    look,
    member,
    sharing_nodes,
    snapshot,
)


def submitted(job_id, nodes, pod, size=3):
    """A running job that was submitted for ``size`` members like ``pod``."""
    entry = known(job_id, "RUNNING", nodes=nodes)
    together = min(member_places.together([pod]), size)
    return replace(entry, job=replace(entry.job, link=JobLink("c", (), REF, size, links.shape(pod), together=together)))


@pytest.mark.parametrize(("together", "nodes"), [(1000, NODES[:1]), (2, NODES[:2])])
def test_no_more_members_run_than_the_job_was_submitted_for(together, nodes):
    members = [sharing_nodes(member(slot, job=5), together) for slot in range(3)]
    more = [sharing_nodes(member(slot, job=5, name=f"x{slot}", uid=f"x{slot}"), together) for slot in range(3)]
    job = snapshot(submitted(5, nodes, members[0]))
    found = look([*members, *more], job)
    assert kinds(found) == ["SetCondition"] * 3 + ["Bind"] * 3
    assert {action.reason for action in found[:3]} == {"GangFull"}
    bound = [
        sharing_nodes(member(slot, job=5, node=nodes[slot // together], phase="Running"), together) for slot in range(3)
    ]
    assert kinds(look([*bound, *more], job)) == ["SetApart"] * 3


def test_the_members_on_a_node_are_those_of_the_submission():
    """The nodes of the job have the resources of one member each, whatever the pods say later."""
    changed = [sharing_nodes(member(slot, job=5), 3) for slot in range(3)]
    entry = submitted(5, NODES[:3], changed[0])
    entry = replace(entry, job=replace(entry.job, link=replace(entry.job.link, together=1)))
    found = look(changed, snapshot(entry))
    assert [(action.node, action.sharing) for action in found] == [(node, 1) for node in NODES[:3]]


@pytest.mark.parametrize("minimum", [2, 3])
def test_a_late_member_that_takes_the_place_of_a_deleted_one_does_not_end_the_others(minimum):
    """The minimum of the group may be raised meanwhile, above the number of nodes with which its job has started."""
    pods = [member(slot, job=5, node=f"n{slot}", phase="Running", minimum=2) for slot in range(2)]
    late, states, job = member(2, job=5, minimum=2), GroupStates(), known(5, "RUNNING", nodes=NODES[:2])
    assert kinds(look([*pods, late], snapshot(job), states)) == ["SetApart"]
    pods = [member(1, job=5, node="n1", phase="Running", minimum=minimum, uid="v1"), late]
    for now in (1000.0, 1000.0 + Config().busy_node_timeout + 1):
        assert kinds(look(pods, snapshot(job), states, now=now, refused=("n0",))) == ["SetApart"]
    found = look(pods, snapshot(job), states)
    assert [(type(action), action.node) for action in found] == [(group_actions.Bind, "n0")]


def test_a_surplus_member_gets_one_condition():
    """Two conditions in turn would be written without end."""
    members = [sharing_nodes(member(slot % 3, job=5, cpu="5", name=f"m{slot}", uid=f"u{slot}"), 2) for slot in range(4)]
    job = snapshot(submitted(5, NODES[:2], members[0]))
    told = look(members, job)  # a node has 8 CPUs
    assert sorted(action.pod["metadata"]["name"] for action in told) == ["m0", "m1", "m2", "m3"]
    assert sorted(action.reason for action in told) == ["GangFull", "NodeBusy", "NodeBusy", "NodeBusy"]


@pytest.mark.parametrize("more", [{"cpu": "8"}, {"annotations": {names.PARTITION: "others"}}])
def test_a_pod_that_joins_later_and_requests_something_else_gets_no_place(more):
    """Any user of the namespace may label a pod as a member: it must not use the job's partition, user or CPUs."""
    running = [member(n, job=5, node=NODES[n], phase="Running") for n in range(2)]
    stranger = member(2, cpu=more.get("cpu", "1"))
    stranger["metadata"]["annotations"] |= more.get("annotations", {})
    job = snapshot(submitted(5, NODES[:3], running[0]))
    (apart,) = look([*running, stranger], job)
    assert (type(apart), apart.pod) == (group_actions.SetApart, stranger)
    assert kinds(look([*running, member(2)], job)) == ["Hold"]
    held = {**stranger["metadata"], "labels": {names.JOB_ID_LABEL: "5"}, "finalizers": [names.FINALIZER]}
    assert kinds(look([*running, {**stranger, "metadata": held}], job)) == ["SetApart"]
    deleted = [{**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}} for pod in running]
    assert kinds(look([*deleted, stranger], job)) == ["SetCondition"], "no member stays in the job"


def test_a_job_for_other_members_than_those_that_wait_is_given_back():
    members = [member(n, cpu="2") for n in range(3)]
    (back,) = look(members, snapshot(submitted(5, NODES[:3], member(0))))
    assert (type(back), back.job_id) == (group_actions.CancelAndResubmit, 5)
    assert kinds(look(members, snapshot(submitted(5, NODES[:3], members[1])))) == ["Hold"] * 3


def pending(job_id, pod):
    """A pending job that was submitted for members like ``pod``."""
    entry = submitted(job_id, (), pod)
    return replace(entry, job=replace(entry.job, states=frozenset({"PENDING"})))


def test_a_pod_of_another_shape_gets_no_id_of_a_pending_job_and_excludes_no_node_of_it():
    waiting, states = [member(slot, finalizers=[names.FINALIZER]) for slot in range(3)], GroupStates()
    stranger = member(2, name="stranger", uid="s", cpu="9", finalizers=[names.FINALIZER])
    job = snapshot(pending(5, waiting[0]))
    (told,) = look([*waiting, stranger], job, states)
    assert (told.pod, told.reason) == (stranger, "GangDiffers")
    found = look([*waiting, stranger], job, states, now=1000.0 + conditions.TELL_UNKNOWN_AFTER)
    assert found == [told, *(group_actions.Hold(pod, 5) for pod in waiting)]
    ended = snapshot(replace(pending(5, waiting[0]), confirmations=2))
    ended.jobs[5] = replace(ended.jobs[5], job=replace(ended.jobs[5].job, states=frozenset({"CANCELLED"})))
    assert look([*waiting, stranger], ended, states) == [group_actions.Hold(pod, 5) for pod in waiting]


@pytest.mark.parametrize("of", [pending, partial(submitted, nodes=NODES[:3])])
def test_every_pod_with_the_id_of_a_job_that_is_given_back_loses_it(of):
    """The workload controller terminates pods whose job was cancelled."""
    waiting, stranger = [member(slot, job=5) for slot in range(3)], member(2, name="stranger", uid="s", cpu="8", job=5)
    job = snapshot(of(5, pod=waiting[0]))
    is_allocated = bool(job.jobs[5].job.nodes)
    (back,) = look([stranger if is_allocated else member(2, cpu="8")], job)
    assert isinstance(back, group_actions.CancelAndResubmit)
    assert len(back.group.waiting) == 1
    if is_allocated:
        _, back = look([*waiting, stranger], job, refused=NODES)
        assert isinstance(back, group_actions.CancelAndResubmit)
        assert len(back.group.waiting) == 4


def test_a_stranger_among_the_first_members_does_not_keep_the_others_from_their_job():
    stranger = member(2, name="stranger", uid="s", cpu="8")
    members = [member(0), member(1), stranger, member(2)]
    submit, told = look(members, snapshot())
    assert [pod["metadata"]["name"] for pod in submit.group.waiting] == ["train-0", "train-1", "train-2"]
    assert (told.pod, told.reason) == (stranger, "GangDiffers")


@pytest.mark.parametrize("refused", [(), NODES])
def test_a_stranger_has_one_reason_whatever_keeps_the_members_from_their_job(refused):
    """Two conditions in turn would be written without end."""
    members = [member(0), member(1), member(2, name="stranger", uid="s", cpu="8"), member(2)]
    states = GroupStates()
    if refused:
        states.update(REF.key, lambda _: decisions.refused(2000.0))
    told = [action for action in look(members, snapshot(), states) if isinstance(action, group_actions.SetCondition)]
    assert [action.reason for action in told] == ["SlurmRefused"] * len(refused[1:]) + ["GangDiffers"]
    assert (told[-1].pod, "next Slurm job" in told[-1].message) == (members[2], True)


def test_members_that_differ_are_all_requested_if_too_few_are_alike():
    """The translation refuses them and says how they differ."""
    (submit,) = look([member(0), member(1), member(2, cpu="8")], snapshot())
    assert len(submit.group.waiting) == 3


def test_the_size_and_the_minimum_are_those_of_most_pods_that_have_not_ended_else_of_the_oldest():
    """The size may come from an annotation or the owner of the pod, which any user of the namespace can create."""
    waiting, stranger = [member(slot) for slot in range(3)], member(7, size=1000, name="stranger", uid="s")
    (submit,) = look([*waiting, stranger], snapshot())
    assert (submit.group.size, submit.group.minimum) == (3, 3)
    late = {**stranger, "metadata": {**stranger["metadata"], "creationTimestamp": "2026-01-01T00:00:07Z"}}
    for pods in ([late, waiting[0]], [waiting[0], late]):
        assert (gang_of(*pods).size, gang_of(*pods).minimum) == (3, 3)
    ended = [member(slot % 2, size=2, name=f"old-{slot}", uid=f"old{slot}", phase="Failed") for slot in range(4)]
    assert gang_of(*ended, *waiting).size == 3
    assert gang_of(*ended).size == 2


def test_the_shape_of_a_pod_is_what_it_requests():
    same = [member(0), member(1), member(0, cpu="1000m"), member(0, job=7, node="n0")]
    named = member(0)
    named["metadata"]["annotations"][names.JOB_NAME] = "other"
    assert len({links.shape(pod) for pod in (*same, named)}) == 1
    late = member(0)
    late["spec"]["activeDeadlineSeconds"] = 60
    assert links.shape(late) != links.shape(same[0]) != links.shape(member(0, cpu="2"))


def test_the_members_of_a_group_are_not_compared_with_one_another():
    """Two Jobs of 5,000 pods, in one PodGroup, kept the scheduler busy for seconds in each look."""
    count, number = Count(), 40
    alike = [Object(member(slot, size=number), count) for slot in range(number)]
    others = [Object(member(slot, size=number, cpu="2", uid=f"x{slot}"), count) for slot in range(number)]
    group = gang_of(*alike, *others)
    chosen, left = member_places.choose_members(group)
    assert (len(chosen.waiting), len(left)) == (number, number)
    job = submitted(5, NODES[:1], alike[0], number).job
    matching, strangers = member_places.matching_members(group, job)
    assert (len(matching.waiting), len(strangers)) == (number, number)
    assert count.value == 0


def test_the_nodes_of_a_job_are_looked_at_once_for_all_members():
    count, number = Count(), 100
    group = gang_of(*(member(None, name=f"m{index}", uid=f"m{index}", size=number) for index in range(number)))
    nodes = Items([f"n{index}" for index in range(number)], count)
    assigned = member_places.assign(group, nodes, number, 1)
    assert count.value <= 3 * number
    assert sorted(assigned.values()) == sorted(nodes)
