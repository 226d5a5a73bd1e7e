"""The scheduler's decisions for gangs, and a machine that kills the scheduler between any two writes of a gang."""

import math
from dataclasses import replace
from functools import partial
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.config.hub import Config
from bridge.kube.cache import Cache
from bridge.kube.kube_client import KubeClient
from bridge.slurm.models import GroupRef, Job, JobLink, ObservedJob
from bridge.workload import links
from scheduler import group_actions, group_decide, member_places, pod_group, rules
from scheduler.conditions import waits_for
from scheduler.group_states import GroupState, GroupStates, ReportedCondition, Wait
from scheduler.nodes.occupancy import Occupancy
from scheduler.waiting_groups import WaitingGroups
from tests.builders import group, node_view, observed, pod, snapshot
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import MemoryCache
from tests.unit.scheduler import decisions

REF = GroupRef("jobset", "ns", "train", "o1", "workers")
NODES = ("n0", "n1", "n2", "n3")


def member(slot, *, node=None, cpu="1", size=3, minimum=None, completed=0, uid="", annotations=None, **more):
    fields = {key: more.pop(key) for key in ("name", "finalizers", "creationTimestamp") if key in more}
    own = group(size, minimum, index="workers", completed=completed, slot=slot)
    own |= {names.SLURM_NODE_ANNOTATION: node} if node else {}
    return pod(
        uid or f"u{slot}",
        node=node,
        requests={"cpu": cpu},
        annotations=own if annotations is None else annotations,
        metadata={"name": f"train-{slot}"} | fields,
        **more,
    )


def sharing_nodes(pod, together):
    pod["metadata"]["annotations"][names.MEMBERS_PER_NODE] = str(together)
    return pod


def gang_of(*pods):
    return pod_group.make((pod, links.membership(pod)) for pod in pods)


def known(job_id, state, **more):
    return observed(job_id, state, comment=JobLink("c", (), REF, 3), **more)


def view_of(pods, snap, states=None, now=1000.0, refused=(), silent=(), **more):
    nodes = [
        node_view(
            name,
            labels={names.SLURM_NODENAME_LABEL: name},
            allocatable={"cpu": "8", "pods": "10"},
            ready="Unknown" if name in silent else "True",
            unschedulable=name in refused,
        )
        for name in NODES
    ]
    return decisions.view([], snap, decisions.placements(nodes), states=states, now=now, gangs=[gang_of(*pods)], **more)


def look(pods, snap, states=None, *args, **more):
    states = states if states is not None else GroupStates()
    decision = group_decide.decide(view_of(pods, snap, states, *args, **more))
    states.merge(decision.states)
    return decision.actions


def kinds(found):
    return [type(action).__name__ for action in found]


def test_a_gang_short_of_members_waits_and_says_how_many_are_here():
    (first, second) = look([member(0), member(1)], snapshot())
    assert (first.reason, first.message) == ("GangIncomplete", "2 of 3 pods of jobset train are present")
    assert second.pod["metadata"]["name"] == "train-1"


def test_a_gang_submits_one_job_for_all():
    (submit,) = look([member(2), member(0), member(1)], snapshot())
    assert isinstance(submit, group_actions.Submit)
    assert [pod["metadata"]["name"] for pod in submit.group.waiting] == ["train-0", "train-1", "train-2"]


def test_a_gang_may_start_with_its_minimum():
    assert kinds(look([member(0, minimum=2), member(1, minimum=2)], snapshot())) == ["Submit"]


def with_claim(pod):
    return {**pod, "spec": {**pod["spec"], "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "two-gpus"}]}}


def test_members_with_claims_are_bound_by_one_action_that_allocates_first():
    pods = [with_claim(member(slot, job=5)) for slot in range(3)]
    (action,) = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])))
    assert isinstance(action, group_actions.BindTogether)
    assert [(bind.pod, bind.node) for bind in action.binds] == list(zip(pods, NODES, strict=False))
    assert kinds(look([member(slot, job=5) for slot in range(3)], snapshot(known(5, "RUNNING", nodes=NODES[:3])))) == [
        "Bind",
        "Bind",
        "Bind",
    ]


def test_a_job_of_a_gang_is_kept_for_a_limited_time_while_its_devices_are_not_ready():
    members, states = [with_claim(member(slot, job=5)) for slot in range(3)], GroupStates()
    job = snapshot(known(5, "RUNNING", nodes=NODES[:3]))
    states.update(
        REF.key, lambda _: replace(decisions.ALLOCATED, claim_wait=Wait("DevicesNotReady", "card-0 is taken"))
    )
    assert {action.reason for action in look(members, job, states)} == {"DevicesNotReady"}
    told = ReportedCondition("DevicesNotReady", "card-0 is taken", 1000.0)
    states.merge({f"u{slot}": GroupState(condition=told) for slot in range(3)})
    assert kinds(look(members, job, states)) == ["BindTogether"]
    late = 1000.0 + Config().busy_node_timeout
    assert kinds(look(members, job, states, now=late)) == ["CancelAndResubmit"]


def test_a_job_is_kept_for_a_limited_time_for_a_successor_whose_devices_are_not_ready():
    ended = bound_at(member(1, job=5, node="n1", phase="Succeeded"), 1)
    again, states = with_claim(member(0, job=5, creationTimestamp="2026-01-01T00:00:07Z")), GroupStates()
    told = ReportedCondition("DevicesNotReady", "Slurm job 5: card-0 is taken", 1000.0)
    late = 1000.0 + Config().busy_node_timeout
    states.merge({"u0": GroupState(claim_wait=Wait(told.reason, "card-0 is taken"), condition=told)})
    job, running = snapshot(known(5, "RUNNING", nodes=NODES[:3])), member(2, job=5, node="n2", phase="Running")
    for now in (1000.0, late):
        assert kinds(look([again, ended, running], job, states, now)) == ["Bind"], "another one runs"
    assert kinds(look([again, ended], job, states, late)) == ["Bind"]
    assert kinds(look([again, ended], job, states, late + Config().busy_node_timeout)) == ["CancelAndResubmit"]


def test_a_pod_with_other_claims_is_not_of_the_shape_of_the_job():
    assert links.shape(with_claim(member(0))) != links.shape(member(0))
    assert links.shape(with_claim(member(0))) == links.shape(with_claim(member(1)))


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_every_member_is_held_before_the_first_is_bound(state):
    pods = [member(0, job=5), member(1), member(2)]
    found = look(pods, snapshot(known(5, state, nodes=NODES[:3])))
    assert found == [group_actions.Hold(pods[1], 5), group_actions.Hold(pods[2], 5)]


def test_a_submitted_job_is_put_on_the_members_before_a_poll_shows_it():
    states = GroupStates()
    states.update(REF.key, lambda _: decisions.submitted(5, 1000.0))
    assert kinds(look([member(0), member(1), member(2)], snapshot(), states)) == ["Hold"] * 3


def test_a_submitted_job_that_slurm_lists_but_no_poll_has_read_is_not_submitted_again():
    states = GroupStates()
    states.update(REF.key, lambda _: decisions.submitted(5, 900.0))
    members = [member(slot, job=5) for slot in range(3)]
    assert look(members, snapshot(unread=frozenset({5})), states) == []


def test_no_member_is_bound_if_one_node_is_refused_and_the_whole_job_is_given_back():
    pods = [member(slot, job=5) for slot in range(3)]
    (action,) = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])), refused=("n2",))
    assert isinstance(action, group_actions.CancelAndResubmit)
    assert len(action.group.waiting) == 3
    assert "ns/train-2" in action.why


def test_no_member_is_bound_if_one_node_has_no_room_and_no_room_is_planned():
    occupancy = Occupancy("ours")
    other = {"metadata": {"namespace": "ns", "name": "big", "uid": "b"}, "status": {"phase": "Running"}}
    other["spec"] = {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "8"}}}]}
    occupancy.changed("add", None, other)
    pods, states = [member(slot, job=5) for slot in range(3)], GroupStates()
    snap, last = snapshot(known(5, "RUNNING", nodes=NODES[:3])), {"refused": ("n3",), "occupancy": occupancy}
    found = look(pods, snap, states, **last)
    assert kinds(found) == ["SetCondition"] * 3
    assert {action.reason for action in found} == {"NodeBusy"}
    assert waits_for(states.of(REF.key)) == "node"
    late = look(pods, snap, states, now=1000.0 + Config().busy_node_timeout, **last)
    assert kinds(late) == ["CancelAndResubmit"]
    # with another node for the job, there is nothing to wait for
    (back,) = look(pods, snap, occupancy=occupancy)
    assert (back.soon, back.why) == (True, "node n1 has too little cpu beside ns/big")


def test_a_crash_in_the_middle_goes_on_with_the_same_nodes():
    pods = [member(0, job=5), member(1, job=5, node="n1", phase="Running"), member(2, job=5)]
    found = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])))
    assert [(a.pod["metadata"]["name"], a.node) for a in found] == [("train-0", "n0"), ("train-2", "n2")]


def test_a_gang_that_lost_a_member_between_two_bindings_gives_the_job_back_after_a_while():
    pods, states = [member(0, job=5, node="n0", phase="Running"), member(1, job=5)], GroupStates()
    snap = snapshot(known(5, "RUNNING", nodes=NODES[:3]))
    assert {action.reason for action in look(pods, snap, states)} == {"GangIncomplete"}
    assert kinds(look(pods, snap, states, now=1000.0 + Config().busy_node_timeout)) == ["CancelAndResubmit"]


def test_a_replacement_takes_the_place_of_its_slot_while_the_job_runs():
    ended = member(1, job=5, node="n1", phase="Failed", name="train-1-old", uid="old")
    pods = [member(0, job=5, node="n0", phase="Running"), ended, member(1, job=5), member(2, job=5, node="n2")]
    (bind,) = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])))
    assert (bind.pod["metadata"]["uid"], bind.node) == ("u1", "n1")


def test_a_replacement_whose_node_is_refused_gets_a_job_of_its_own_and_the_others_go_on():
    ended = member(1, job=5, node="n1", phase="Failed", name="train-1-old", uid="old")
    pods = [member(0, job=5, node="n0", phase="Running"), ended, member(1, job=5), member(2, job=5, node="n2")]
    (action,) = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])), refused=("n1",))
    assert (type(action), action.pod) == (group_actions.SetApart, pods[2])
    assert "node n1, which Kubernetes refuses: cordoned" in action.why


def bound_at(pod, seconds):
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"2026-01-01T00:00:{seconds:02}Z"}
    ]
    return pod


@pytest.mark.parametrize("refused", [(), ("n2",)])
def test_a_replacement_is_bound_though_the_pod_of_a_succeeded_member_is_deleted(refused):
    """Member 0 has succeeded and its pod is gone; the job runs on, whatever happens to the successor of member 2."""
    running = bound_at(member(1, job=5, node="n1", phase="Running"), 1)
    first, states = member(2, creationTimestamp="2026-01-01T00:00:07Z"), GroupStates()
    snap = snapshot(known(5, "RUNNING", nodes=NODES[:3]))
    look([running, first], snap, states, refused=refused)
    later = Config().busy_node_timeout + 1001
    successor = member(2, job=5, creationTimestamp="2026-01-01T00:00:07Z")
    (action,) = look([running, successor], snap, states, later, refused)
    if refused:
        assert (type(action), action.pod) == (group_actions.SetApart, successor)
    else:
        assert (action.pod["metadata"]["uid"], action.node) == ("u2", "n2")


def test_a_member_that_waited_before_the_first_was_bound_is_no_replacement():
    pods, states = [bound_at(member(0, job=5, node="n0", phase="Running"), 1), member(1, job=5)], GroupStates()
    found = look(pods, snapshot(known(5, "RUNNING", nodes=NODES[:3])), states)
    assert {action.reason for action in found} == {"GangIncomplete"}


def test_members_that_have_succeeded_are_not_needed_again_after_their_pods_are_deleted():
    """Admission has read from the Job that one member had succeeded when these two were created again."""
    first, second = member(1, completed=1), member(2, completed=1)
    assert [action.reason for action in look([first], snapshot())] == ["GangIncomplete"]
    (submit,) = look([first, second], snapshot())
    assert submit.group.succeeded() == 1
    done = member(0, job=5, node="n0", phase="Succeeded")
    assert [action.reason for action in look([done, first], snapshot())] == ["GangIncomplete"], "counted once"


def test_a_job_starts_with_the_members_that_were_needed_when_it_was_submitted():
    """The pod of member 0 was deleted while the second job, for members 1 and 2, was pending."""
    entry = known(6, "RUNNING", nodes=NODES[:2])
    job = replace(entry, job=replace(entry.job, link=JobLink("c", (), REF, 2, completed=1)))
    found = look([member(1, job=6), member(2, job=6)], snapshot(job))
    assert [(type(action), action.node) for action in found] == [(group_actions.Bind, "n1"), (group_actions.Bind, "n0")]


def test_a_late_member_of_a_smaller_job_gets_a_job_of_its_own_unless_a_place_becomes_free():
    pods = [member(slot, job=5, node=f"n{slot}", phase="Running", minimum=2) for slot in range(2)]
    late, job = member(2, job=5, minimum=2), snapshot(known(5, "RUNNING", nodes=NODES[:2]))
    (action,) = look([*pods, late], job)
    assert (type(action), action.pod) == (group_actions.SetApart, late)
    leaving = member(1, job=5, node="n1", phase="Running", minimum=2, deleted=True)
    (action,) = look([pods[0], leaving, late], job)
    assert (type(action), action.reason) == (group_actions.SetCondition, "GangFull")
    assert kinds(look([pods[0], leaving, late], job, silent=("n1",))) == ["SetApart"], "its kubelet reports no end"
    again = member(3, job=5, minimum=2, size=4)
    found = look([pods[0], leaving, late, again], job)
    assert [(type(action), action.pod) for action in found] == [
        (group_actions.SetCondition, late),
        (group_actions.SetApart, again),
    ]
    late = member(2, job=5, minimum=2)
    ended = member(1, job=5, node="n1", phase="Failed", minimum=2)
    (bind,) = look([pods[0], ended, late], job)
    assert (bind.pod, bind.node) == (late, "n1")


def test_a_deleted_member_goes_and_the_job_stays_for_its_successor():
    pods = [member(0, job=5), member(1, job=5, deleted=True), member(2, job=5)]
    found = look(pods, snapshot(known(5, "PENDING")))
    assert found[0] == group_actions.Unhold(pods[1])
    assert not any(isinstance(action, group_actions.CancelSecond | group_actions.CancelAndResubmit) for action in found)


def test_the_last_deleted_members_cancel_the_job():
    pods = [member(slot, job=5, deleted=True) for slot in range(3)]
    assert look(pods, snapshot(known(5, "PENDING"))) == [group_actions.Release(gang_of(*pods), (5,))]


def test_a_second_job_is_cancelled_before_the_bindings():
    pods = [member(slot, job=6) for slot in range(3)]
    snap = snapshot(known(5, "RUNNING", nodes=NODES[:3]), known(6, "RUNNING", nodes=NODES[1:4]))
    assert look(pods, snap) == [group_actions.CancelSecond(gang_of(*pods), 5)]


def test_members_wait_until_the_pods_of_the_last_job_have_ended():
    pods = [member(0, job=5, node="n0", phase="Running"), member(1), member(2)]
    assert {action.reason for action in look(pods, snapshot())} == {"GangEnding"}


def test_no_member_is_bound_to_a_second_job_while_pods_of_the_first_have_not_ended():
    """The first job has ended, and slurmctld has carried out another request late."""
    old = [member(slot, job=5, node=f"n{slot}", phase="Running", deleted=True, name=f"old{slot}") for slot in range(3)]
    new, states = [member(slot, uid=f"new{slot}") for slot in range(3)], GroupStates()
    ended = replace(known(5, "NODE_FAIL", nodes=NODES[:3]), confirmations=2)
    for state, nodes in (("PENDING", ()), ("RUNNING", NODES[:3])):
        found = look([*old, *new], snapshot(ended, known(6, state, nodes=nodes)), states)
        assert [(action.pod, action.reason) for action in found] == [(pod, "GangEnding") for pod in new]
    second = snapshot(ended, known(6, "RUNNING", nodes=NODES[:3]))
    held = [{**pod, "metadata": {**pod["metadata"], "finalizers": [names.FINALIZER]}} for pod in new]
    assert kinds(look(held, second, states)) == ["Bind"] * 3
    assert kinds(look([*old, *new], snapshot(known(5, "RUNNING", nodes=NODES[:3]), second.jobs[6]))) == ["CancelSecond"]
    # the nodes of the second job are not kept for long
    states = GroupStates()
    look([*old, *new], second, states)
    late = look([*old, *new], second, states, now=1000.0 + Config().busy_node_timeout)
    assert [(type(action), action.job_id) for action in late] == [(group_actions.CancelAndResubmit, 6)]


def test_a_member_made_again_after_the_others_have_succeeded_gets_a_job_of_its_own():
    done = [member(slot, job=5, node=f"n{slot}", phase="Succeeded") for slot in range(2)]
    (submit,) = look([*done, member(2)], snapshot())
    assert isinstance(submit, group_actions.Submit)
    held = member(2, job=6)
    (bind,) = look([*done, held], snapshot(known(6, "RUNNING", nodes=("n3",))))
    assert (bind.pod, bind.node) == (held, "n3")


def test_a_refused_gang_tells_all_members():
    states = GroupStates()
    states.update(REF.key, lambda _: decisions.refused(2000.0))
    assert [a.reason for a in look([member(0), member(1), member(2)], snapshot(), states)] == ["SlurmRefused"] * 3


def test_jobs_of_a_gang_that_end_before_the_bind_are_replaced_after_a_pause_except_the_first():
    members, ended = [member(slot) for slot in range(3)], snapshot(replace(known(5, "FAILED"), confirmations=2))
    for unused, reasons in ((0, []), (1, ["JobFailed"] * 3)):
        states = GroupStates()
        states.update(REF.key, lambda _, unused=unused: replace(decisions.submitted(5, 999.0), unused_jobs=unused))
        found = look(members, ended, states)
        assert [action.reason for action in found if isinstance(action, group_actions.SetCondition)] == reasons
        assert kinds(look(members, ended, states, now=1005.0)) == ["Submit"]
        assert states.of(REF.key).unused_jobs == unused + 1


def test_a_job_of_a_gang_cancelled_before_the_first_poll_ends_its_members():
    states, members = GroupStates(), [member(slot) for slot in range(3)]
    states.update(REF.key, lambda _: decisions.submitted(5, 999.0))
    ended = snapshot(replace(known(5, "CANCELLED"), confirmations=2))
    assert look(members, ended, states) == [group_actions.Hold(pod, 5) for pod in members]


@given(st.data())
def test_assign_never_fills_a_place_twice_and_continues_after_any_crash(data):
    together = data.draw(st.integers(1, 3))
    size = data.draw(st.integers(1, 8))
    sharing = partial(sharing_nodes, together=together)
    nodes = [f"n{i}" for i in range(-(-size // together))]
    slots = data.draw(st.permutations(range(size)))
    with_slots = data.draw(st.booleans())
    entries = [(pod, links.membership(pod)) for pod in (sharing(member(slot, job=5, size=size)) for slot in slots)]
    if not with_slots:
        entries = [(pod, replace(place, slot=None)) for pod, place in entries]
    plan = member_places.assign(pod_group.make(entries), nodes, size, together)
    assert len(plan) == size
    assert all(list(plan.values()).count(node) <= together for node in nodes)
    bound = data.draw(st.sets(st.sampled_from(sorted(plan))))
    half = [
        (sharing(member(slot, job=5, size=size, node=plan[f"u{slot}"], phase="Running")), place)
        if f"u{slot}" in bound
        else (pod, place)
        for slot, (pod, place) in zip(slots, entries, strict=True)
    ]
    rest = member_places.assign(pod_group.make(half), nodes, size, together)
    assert set(rest) == plan.keys() - bound
    used = [plan[uid] for uid in bound] + list(rest.values())
    assert all(used.count(node) <= together for node in nodes)
    if with_slots:
        assert rest == {uid: node for uid, node in plan.items() if uid not in bound}
    more = [
        (sharing(member(slot, job=5, size=size, uid=f"more{slot}", name=f"more-{slot}")), place)
        for slot, (_, place) in zip(slots, entries, strict=True)
    ]
    assert len(member_places.assign(pod_group.make([*half, *more]), nodes, size, together)) == size - len(bound)


def test_an_index_follows_the_cache():
    first, second = member(0), member(1)
    cache, kube = cast(Cache, MemoryCache([])), cast(KubeClient, None)
    index = WaitingGroups(cache, kube, FakeClock(), GroupStates(), lambda _: False)
    for one in (first, second):
        index.changed("add", None, one)
    index.changed("update", first, first)
    assert index.keys() == {REF.key}
    assert index.uids == {"u0": REF.key, "u1": REF.key}
    index.changed("delete", first, None)
    index.changed("delete", second, None)
    assert (index.keys(), index.uids) == (set(), {})


def test_a_job_that_no_member_can_use_any_more_is_given_back():
    """Member 1 has succeeded, and the node for the successor of member 0 is cordoned."""
    ended = bound_at(member(1, job=5, node="n1", phase="Succeeded"), 1)
    again, states = member(0, job=5, creationTimestamp="2026-01-01T00:00:07Z"), GroupStates()
    job = snapshot(known(5, "RUNNING", nodes=NODES[:3]))
    (told,) = look([again, ended], job, states, refused=("n0",))
    assert told.reason == "NodeRefused"
    late = 1000.0 + Config().busy_node_timeout
    running = member(2, job=5, node="n2", phase="Running")
    assert kinds(look([again, ended, running], job, states, late, refused=("n0",))) == ["SetApart"], "another one runs"
    look([again, ended], job, states, late, refused=("n0",))
    (back,) = look([again, ended], job, states, late + Config().busy_node_timeout, refused=("n0",))
    assert isinstance(back, group_actions.CancelAndResubmit)
    assert "n0" in back.why


def test_a_cancelled_job_ends_its_members_but_not_the_pods_that_are_created_in_their_place():
    """Found by the state machine: Slurm lists the cancelled job for minutes, and each new member got its id again."""
    states, ended = GroupStates(), snapshot(replace(known(5, "CANCELLED"), confirmations=2))
    states.update(REF.key, lambda _: decisions.PENDING)
    first = [member(slot) for slot in range(3)]
    assert look(first, ended, states) == [group_actions.Hold(pod, 5) for pod in first]
    labelled = [member(slot, job=5) for slot in range(3)]
    assert look(labelled, ended, states) == []
    new = [member(slot, uid=f"new{slot}") for slot in range(3)]
    assert look([*labelled[:1], *new[1:]], ended, states) == []
    assert kinds(look(new, ended, states)) == ["Submit"]


def test_a_job_cancelled_before_its_id_is_on_the_members_is_put_on_them():
    waiting = [member(slot, finalizers=[names.FINALIZER]) for slot in range(3)]
    states = GroupStates()
    assert look(waiting, snapshot(known(5, "PENDING")), states) == []
    ended = ObservedJob(Job(5, frozenset({"CANCELLED"}), JobLink("c", (), REF, 3)), confirmations=2)
    assert look(waiting, snapshot(ended), states) == [group_actions.Hold(pod, 5) for pod in waiting]
    states = GroupStates()
    assert look(waiting, snapshot(known(5, "RUNNING")), states) == []
    (action,) = look(waiting, snapshot(ended), states)
    assert isinstance(action, group_actions.Submit), (
        "members that are created again after the end of a job get a new one"
    )


def test_the_jobs_of_others_are_read_for_new_members_of_a_gang_with_an_old_pod():
    ended = member(0, job=5, phase="Failed", node="n0")
    members = [ended, *(member(slot, uid=f"new-{slot}") for slot in range(3))]
    more = {"leading_since": 500.0, "new": {"new-0", "new-1", "new-2"}}
    unread = snapshot(list_age=math.inf, partial_age=100.0, partial_since=0.0)
    assert look(members, unread, **more) == []
    assert rules.waits_for_jobs(view_of(members, unread, **more))
    assert not rules.waits_for_jobs(view_of(members, snapshot(known(7, "PENDING"), list_age=math.inf), **more))
    assert not rules.waits_for_jobs(view_of(members, snapshot(list_age=100.0), **more))
