"""The scheduler's decisions, one situation at a time, and a machine that tries all orders of crashes."""

import math
from dataclasses import replace

import pytest

from bridge import clock, names
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Node
from bridge.slurm.versions import ApiVersion
from bridge.workload import eligibility, links
from scheduler import group_actions, group_decide, rules
from scheduler.group_states import NEW, REFUSED, GroupStates, ReportedCondition
from scheduler.nodes.placement import Placements
from scheduler.pod_group import of_one
from tests import builders
from tests.builders import node_view, observed, pod, snapshot
from tests.unit.scheduler import decisions
from tests.unit.scheduler.decisions import ALLOCATED, submitted, unknown


def kube_node(name, **spec):
    return node_view(name, labels={names.SLURM_NODENAME_LABEL: f"s-{name}"}, **spec)


def view(pods, snap, states=None, nodes=None, **more):
    nodes = nodes if nodes is not None else [kube_node("n1"), kube_node("n2")]
    return decisions.view(pods, snap, decisions.placements(nodes), states=states, **more)


def look(pods, snap, states=None, **more):
    states = states if states is not None else GroupStates()
    decision = group_decide.decide(view(pods, snap, states, **more))
    states.merge(decision.states)
    return decision.actions


def in_state(state=NEW, **more):
    states = GroupStates()
    states.update("u1", lambda _: replace(state, **more))
    return states


def one(*args, **kwargs):
    (action,) = look(*args, **kwargs)
    return action


def test_nothing_before_the_first_complete_answer():
    assert look([pod()], snapshot(sequence=0)) == []


def test_nothing_on_a_view_older_than_the_leadership():
    assert look([pod()], snapshot(began=5), leading_since=6) == []


def test_nothing_is_submitted_before_all_jobs_are_listed_under_this_leadership():
    known_job, the_pod = observed(5, "RUNNING", nodes=["s-n1"]), pod()
    partial = replace(snapshot(known_job), list_age=901.0)
    assert look([pod("u2")], partial, leading_since=100.0) == []
    assert look([pod("u2", deleted=True)], partial, leading_since=100.0) == []
    assert one([pod("u2")], replace(partial, list_age=900.0), leading_since=100.0)
    # a pod whose job is known is bound
    assert one([the_pod], partial, leading_since=100.0) == group_actions.Bind(the_pod, 5, "n1", 0, "s-n1")


CREATED = clock.parse_rfc3339("2026-01-01T00:00:00Z")


def waits(found, snap, **more):
    return rules.waits_for_jobs(view(found, snap, **more))


def partly_read(since, *entries, age=900.0, **more):
    """A snapshot of which only the jobs submitted after ``since`` have been read; the list is from 100.0."""
    return replace(snapshot(*entries, **more), list_age=math.inf, partial_age=age, partial_since=since)


def test_a_pod_is_submitted_when_the_jobs_as_new_as_it_have_been_read():
    early, late = partly_read(CREATED - rules.CLOCKS), partly_read(CREATED - rules.CLOCKS - 1)
    assert look([pod()], early, leading_since=100.0) == []
    assert one([pod()], late, leading_since=100.0) == decisions.submit(pod())
    assert look([pod(deleted=True, held=True)], early, leading_since=100.0) == []
    assert isinstance(one([pod(deleted=True, held=True)], late, leading_since=100.0), group_actions.Release)
    assert waits([pod()], early, leading_since=100.0)
    assert not waits([pod()], late, leading_since=100.0)
    assert not waits([pod()], early, leading_since=100.0, new={"u1"})
    assert not waits([pod("u5")], partly_read(math.inf, observed(5, "PENDING", uid="u5")), leading_since=100.0)
    ended = partly_read(math.inf, observed(5, "NODE_FAIL", confirmations=2))
    assert waits([pod()], ended, leading_since=100.0)
    gated = pod(schedulingGates=[{"name": "hold"}])
    assert not waits([gated], early, leading_since=100.0)
    assert not waits([pod()], snapshot(), leading_since=100.0)
    # the list must be from this leadership, and as late as the requests of a former leader may take effect
    assert look([pod()], late, leading_since=101.0) == []
    settled = partly_read(CREATED - rules.CLOCKS - 1, age=900.0 - rules.SETTLE)
    assert look([pod()], late, leading_since=100.0, inherited_at=100.0) == []
    down = replace(settled, error="down")
    assert look([pod(deleted=True, held=True)], down, leading_since=100.0, inherited_at=100.0) == []
    assert one([pod()], settled, leading_since=100.0, inherited_at=100.0) == decisions.submit(pod())


def test_a_pod_with_an_unread_job_is_not_submitted():
    late = partly_read(CREATED - rules.CLOCKS - 1)
    assert look([pod(job=5)], late, leading_since=100.0) == []
    gone = observed(5, "PENDING", missing=True, confirmations=2)
    again = partly_read(CREATED - rules.CLOCKS - 1, gone)
    assert isinstance(one([pod(job=5)], again, leading_since=100.0), group_actions.Submit)


def test_a_lost_answer_about_a_pod_is_known_when_the_jobs_as_new_as_it_have_been_read():
    states, since = in_state(unknown(100.0)), CREATED - rules.CLOCKS
    settled = 900.0 - rules.SETTLE
    assert one([pod()], partly_read(since, age=settled), states).reason == "SlurmUnknownOutcome"
    assert look([pod()], partly_read(since - 1, age=settled), states, leading_since=50.0) == [decisions.submit(pod())]


def test_a_pod_created_under_this_leadership_is_submitted_before_any_list():
    never = partly_read(math.inf, age=math.inf)
    assert one([pod(), pod("u2")], never, leading_since=100.0, inherited_at=100.0, new={"u2"}) == decisions.submit(
        pod("u2")
    )
    assert one([pod("u2")], never, in_state(), leading_since=100.0, new={"u2"}) == decisions.submit(pod("u2"))
    assert look([pod("u1")], never, in_state(unknown(200.0)), leading_since=100.0, new={"u1"})[0].reason == (
        "SlurmUnknownOutcome"
    )


def test_bound_finished_and_gated_pods_are_left_alone():
    assert (
        look([pod(node="n1"), pod("u2", phase="Failed"), pod("u3", schedulingGates=[{"name": "g"}])], snapshot()) == []
    )


def test_an_allocated_job_binds_to_the_node_by_its_kubernetes_name():
    the_pod = pod(job=5)
    action = one([the_pod], snapshot(observed(5, "RUNNING", nodes=["s-n2"], start_time=77)))
    assert action == group_actions.Bind(the_pod, 5, "n2", 77, "s-n2")


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "SUSPENDED", "REQUEUED+PENDING", "SOMETHING_NEW"])
def test_no_bind_without_an_allocation(state):
    entry = observed(5, state, nodes=["s-n1"])
    assert not any(
        isinstance(a, group_actions.Bind | group_actions.Submit) for a in look([pod(job=5)], snapshot(entry))
    )


def test_running_without_nodes_yet_waits():
    assert look([pod(job=5)], snapshot(observed(5, "RUNNING"))) == []


def test_a_node_that_kubernetes_refuses_is_given_back():
    nodes = [kube_node("n1", unschedulable=True)]
    action = one([pod(job=5)], snapshot(observed(5, "RUNNING", nodes=["s-n1"])), nodes=nodes)
    assert isinstance(action, group_actions.CancelAndResubmit)
    assert "cordoned" in action.why
    action = one([pod(job=5)], snapshot(observed(5, "RUNNING", nodes=["bare"])))
    assert "not a Kubernetes node" in action.why


def test_two_jobs_of_one_pod_the_one_on_the_pod_stays():
    entries = [observed(5, "RUNNING", nodes=["s-n1"]), observed(9, "RUNNING", nodes=["s-n2"])]
    assert one([pod(job=9)], snapshot(*entries)).job_id == 5
    assert one([pod()], snapshot(*entries)) == group_actions.CancelSecond(of_one(pod()), 9)


def test_a_job_just_submitted_and_not_in_the_view_is_waited_for():
    states = in_state(submitted(5, 999.0))
    assert look([pod(held=True)], snapshot(began=1000), states) == []
    # it was created without admission
    assert look([pod()], snapshot(began=1000), states) == [group_actions.Hold(pod(), 5)]
    assert one([pod()], snapshot(began=1005), states) == decisions.submit(pod())


def test_a_submitted_job_that_slurm_lists_but_no_poll_has_read_is_waited_for():
    """After a failed poll, the comments of the jobs just submitted are read again, some in each poll."""
    states, listed = in_state(submitted(5, 900.0)), replace(snapshot(), unread=frozenset({5}))
    assert look([pod(held=True)], listed, states) == []
    deleted = pod(deleted=True, held=True)
    assert one([deleted], listed, states) == group_actions.Release(of_one(deleted), (5,))
    assert one([pod()], snapshot(), states) == decisions.submit(pod())


def test_an_unknown_outcome_is_waited_for_until_slurm_has_settled():
    states = in_state(unknown(990.0))
    view = {"states": states, "now": 1000.0}
    assert one([pod()], snapshot(began=994.9), **view).reason == "SlurmUnknownOutcome"
    states.update(
        "u1", lambda state: replace(state, condition=ReportedCondition("SlurmUnknownOutcome", "told", 1000.0))
    )
    assert look([pod()], snapshot(began=999, settled_since=996), **view) == []
    assert one([pod()], snapshot(began=1001, settled_since=996), **view) == decisions.submit(pod())


def test_a_successor_asks_for_nothing_that_its_predecessor_may_have_asked_for():
    the_pod = pod()
    for began in (100.0, 104.9):
        assert look([the_pod], snapshot(began=began), leading_since=100.0, inherited_at=100.0) == []
    assert look([the_pod], snapshot(began=106, settled_since=102), leading_since=100.0, inherited_at=100.0) == []
    assert one([the_pod], snapshot(began=105.0), leading_since=100.0, inherited_at=100.0) == decisions.submit(the_pod)
    assert one([the_pod], snapshot(began=100.0), leading_since=100.0) == decisions.submit(the_pod)
    late = snapshot(observed(5, "PENDING"), began=101.0)
    assert one([the_pod], late, leading_since=100.0, inherited_at=100.0) == group_actions.Hold(the_pod, 5)
    going = pod(deleted=True)
    assert look([going], snapshot(began=101.0), inherited_at=100.0) == []
    assert one([going], late, inherited_at=100.0) == group_actions.Release(of_one(going), (5,))


def test_nothing_is_submitted_while_many_jobs_are_missing():
    told = one([pod()], snapshot(), braked=True)
    assert (type(told), told.reason) == (group_actions.SetCondition, "SlurmJobsMissing")
    started = pod(job=5)
    assert isinstance(one([started], snapshot(observed(5, "RUNNING", nodes=["s-n1"])), braked=True), group_actions.Bind)


def test_an_unknown_outcome_that_turns_up_is_taken():
    states = in_state(unknown(999.0))
    assert one([pod()], snapshot(observed(5, "PENDING"), began=999.5), states) == group_actions.Hold(pod(), 5)


def test_a_deleted_pod_is_released_at_once():
    the_pod = pod(job=5, deleted=True)
    assert one([the_pod], snapshot(observed(5, "PENDING"))) == group_actions.Release(of_one(the_pod), (5,))
    assert one([the_pod], snapshot(observed(5, "CANCELLED", confirmations=1))) == group_actions.Release(
        of_one(the_pod), ()
    )


def test_a_deleted_pod_waits_for_a_submit_whose_outcome_is_unknown():
    states = in_state(unknown(999.0))
    the_pod = pod(held=True, deleted=True)
    assert look([the_pod], snapshot(began=999.5), states) == []
    assert one([the_pod], snapshot(began=1005), states) == group_actions.Release(of_one(the_pod), ())


def test_a_deleted_pod_releases_a_job_the_view_does_not_show_yet():
    states = in_state(submitted(5, 999.9))
    assert one([pod(job=5, deleted=True)], snapshot(), states).job_ids == (5,)


def test_an_ended_job_is_asked_for_again_only_after_slurm_said_so_twice():
    assert look([pod(job=5)], snapshot(observed(5, "NODE_FAIL", confirmations=1))) == []
    assert isinstance(one([pod(job=5)], snapshot(observed(5, "NODE_FAIL", confirmations=2))), group_actions.Submit)
    assert look([pod(job=5)], snapshot(observed(5, "RUNNING", confirmations=1, missing=True))) == []
    assert isinstance(
        one([pod(job=5)], snapshot(observed(5, "RUNNING", confirmations=2, missing=True))), group_actions.Submit
    )


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("FAILED", "JobFailed"),
        ("TIMEOUT", "TimeLimit"),
        ("BOOT_FAIL", "BootFail"),
        ("DEADLINE", "Deadline"),
        ("COMPLETED", "JobCompleted"),
        ("CANCELLED", "Cancelled"),
    ],
)
@pytest.mark.parametrize("before", [submitted(5, 999.0), ALLOCATED])
def test_jobs_that_end_before_the_bind_are_replaced_after_a_pause_except_the_first(state, reason, before):
    if state == "CANCELLED" and before.submitted_id:
        return  # a user has cancelled it: the pod is terminated
    ended, states = snapshot(observed(5, state, confirmations=2)), in_state(before)
    assert one([pod()], ended, states) == decisions.submit(pod())
    assert states.of("u1").unused_jobs == 1
    states = in_state(before, unused_jobs=2)
    told = one([pod()], ended, states)
    assert (told.reason, told.message.partition(" ")[0]) == (reason, "Slurm")
    assert "Slurm job 5" in told.message
    assert isinstance(one([pod()], ended, states, now=1009.0), group_actions.SetCondition)
    assert one([pod()], ended, states, now=1010.0) == decisions.submit(pod())
    assert states.of("u1").unused_jobs == 3, "an end counts once"


def test_jobs_that_podbridge_has_cancelled_or_slurm_has_lost_count_as_no_end():
    states = in_state(ALLOCATED, unused_jobs=2, cancelled=frozenset({5}))
    assert one([pod()], snapshot(observed(5, "CANCELLED", confirmations=2)), states) == decisions.submit(pod())
    lost = observed(6, "RUNNING", confirmations=2, missing=True)
    states = in_state(ALLOCATED, unused_jobs=2)
    assert one([pod()], snapshot(observed(5, "FAILED", confirmations=2), lost), states) == decisions.submit(pod())
    states = in_state(submitted(6, 990.0), unused_jobs=2)
    assert one([pod()], snapshot(observed(5, "FAILED", confirmations=2)), states) == decisions.submit(pod())
    assert states.of("u1").unused_jobs == 2


def test_an_admitted_pod_needs_no_patch_before_its_binding():
    the_pod = pod(held=True)
    assert look([the_pod], snapshot(observed(5, "PENDING"))) == []
    bind = group_actions.Bind(the_pod, 5, "n1", 0.0, "s-n1")
    assert one([the_pod], snapshot(observed(5, "RUNNING", nodes=["s-n1"]))) == bind
    earlier = pod(job=4)
    assert one([earlier], snapshot(observed(5, "RUNNING", nodes=["s-n1"]))) == replace(bind, pod=earlier)


def test_a_pod_that_waits_for_longer_gets_the_id_of_its_job_before_the_reason():
    states, snap = in_state(), snapshot(observed(5, "PENDING", reason="Resources"))
    the_pod = pod(held=True)
    assert look([the_pod], snap, states, now=1000) == []
    assert one([the_pod], snap, states, now=1004) == group_actions.Hold(the_pod, 5)
    labelled = pod(job=5)
    told = one([labelled], snap, states, now=1005)
    assert (type(told), told.message) == (group_actions.SetCondition, "Slurm job 5 is pending: Resources")


def test_a_job_cancelled_by_somebody_before_its_id_is_on_the_pod_is_put_on_the_pod():
    states = in_state()
    the_pod = pod(held=True)
    assert look([the_pod], snapshot(observed(5, "PENDING")), states) == []
    assert look([the_pod], snapshot(observed(5, "CANCELLED")), states) == []
    cancelled = snapshot(observed(4, "NODE_FAIL", confirmations=2), observed(5, "CANCELLED", confirmations=2))
    assert one([the_pod], cancelled, states) == group_actions.Hold(the_pod, 5)
    assert look([pod(job=5)], cancelled, states) == []
    # a successor cannot know whether podbridge itself has cancelled the job
    assert one([the_pod], cancelled) == decisions.submit(the_pod)


@pytest.mark.parametrize("field", [{"cpu": "2"}, {"deadline": 60}, {"partition": "other"}])
def test_a_pod_that_has_changed_since_its_submission_gets_no_node(field):
    def changed(cpu="1", deadline=None, partition="main"):
        spec = {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}
        found = pod(held=True, **spec, **({"activeDeadlineSeconds": deadline} if deadline else {}))
        found["metadata"]["annotations"] = {names.PARTITION: partition}
        return found

    entry = observed(5, "RUNNING", nodes=["s-n1"])
    entry = replace(entry, job=replace(entry.job, link=links.link(changed(), "c")))
    assert isinstance(one([changed()], snapshot(entry)), group_actions.Bind)
    given_back = one([changed(**field)], snapshot(entry))
    assert isinstance(given_back, group_actions.CancelAndResubmit)
    assert given_back.why == "the resources or settings of the pod have changed since its submission"


def test_a_job_that_we_cancelled_counts_as_gone_at_once():
    states = in_state(cancelled=frozenset({5}))
    assert one([pod(held=True)], snapshot(observed(5, "RUNNING", nodes=["s-n1"])), states) == decisions.submit(
        pod(held=True)
    )


def test_no_submit_while_slurm_is_silent():
    states = GroupStates()
    assert one([pod()], snapshot(error="connection refused"), states).reason == "SlurmUnavailable"


def test_back_off_after_a_refusal_and_the_words_on_the_pod():
    states = GroupStates()
    states.update("u1", lambda state: state.failed(1000.0, REFUSED, "SlurmRefused", "Invalid account (2045)"))
    assert one([pod()], snapshot(), states) == group_actions.SetCondition(
        pod(), "SlurmRefused", "Invalid account (2045)"
    )
    told = ReportedCondition("SlurmRefused", "Invalid account (2045)", 0.0)
    states.update("u1", lambda state: replace(state, condition=told))
    assert look([pod()], snapshot(), states) == []
    assert one([pod()], snapshot(), states, now=1006.0) == decisions.submit(pod())


def test_a_waiting_pod_is_told_slurms_reason_once():
    states = GroupStates()
    entry = observed(5, "PENDING", reason="Resources", partition="main", start_time=3600 * 24.0, excluded="")
    assert look([pod(job=5)], snapshot(entry), states, now=1000) == []
    tell = one([pod(job=5)], snapshot(entry), states, now=1004)
    assert tell.message == "Slurm job 5 is pending in partition main: Resources, estimated start 1970-01-02T00:00:00Z"
    told = [{"type": "PodScheduled", "status": "False", "reason": tell.reason, "message": tell.message}]
    assert look([pod(job=5, conditions=told)], snapshot(entry), states, now=1005) == []


def test_a_waiting_pod_is_told_what_its_job_asks_for_and_that_its_start_is_unknown():
    asks = Allotment(1, 512000)
    entry = observed(5, "PENDING", reason="Resources", start_time=1000 + 365 * 86400.0, request=asks)
    states = GroupStates()
    assert look([pod(job=5)], snapshot(entry), states, now=1000) == []
    assert one([pod(job=5)], snapshot(entry), states, now=1004).message == (
        "Slurm job 5 is pending: Resources, estimated start unknown: the jobs ahead have no time limit; "
        "it asks for 1 CPU, 500 GiB"
    )


def test_excluded_nodes_that_slurm_did_not_take_keep_no_pod_from_a_new_job():
    states = in_state(exclude_retry_at=1000.0)
    assert isinstance(
        one([pod(job=5)], snapshot(observed(5, "NODE_FAIL", confirmations=2)), states), group_actions.Submit
    )


def test_nodes_that_change_while_a_job_waits_are_told_to_slurm():
    entry = observed(5, "PENDING", reason="Resources", excluded="s-n1")
    nodes = [kube_node("n1"), kube_node("n2", unschedulable=True)]
    wanted = group_actions.Exclude(of_one(pod(job=5)), 5, ("s-n2",), before=("s-n1",))
    assert one([pod(job=5)], snapshot(entry), nodes=nodes) == wanted
    states = in_state(excluded=("s-n2",))
    assert look([pod(job=5)], snapshot(entry), states, nodes=nodes) == []
    old = ApiVersion("v0.0.38", exclude_nodes=False)
    assert look([pod(job=5)], snapshot(entry), nodes=nodes, version=old) == []


def test_the_most_urgent_pod_comes_first():
    low, high = pod("u1"), pod("u2", priority=10)
    assert [a.pod["metadata"]["uid"] for a in look([low, high], snapshot())] == ["u2", "u1"]


def raw_node(name, slurm_node):
    return builders.node(name, labels={names.SLURM_NODENAME_LABEL: slurm_node})


@pytest.mark.parametrize("order", [1, -1])
def test_a_slurm_node_that_two_kubernetes_nodes_claim_is_not_used(order):
    raw = [raw_node("n1", "s-n1"), raw_node("rogue", "s-n1"), raw_node("n2", "s-n2")]
    nodes = eligibility.views(raw[::order])
    action = one([pod(job=5)], snapshot(observed(5, "RUNNING", nodes=["s-n1"])), nodes=nodes)
    assert isinstance(action, group_actions.CancelAndResubmit)
    assert "Slurm node s-n1 is claimed by" in action.why
    action = one([pod(job=5)], snapshot(observed(5, "RUNNING", nodes=["s-n2"])), nodes=nodes)
    assert isinstance(action, group_actions.Bind)
    placement = Placements(nodes, {n: Node(n, frozenset({"IDLE"})) for n in ("s-n1", "s-n2")}, {}).of(pod(), "")
    assert placement.eligible == ("s-n2",)
    assert list(placement.refused) == ["s-n1"]


def test_pods_with_the_same_placement_share_the_names_of_excluded_nodes():
    nodes = [kube_node("n1"), kube_node("n2", unschedulable=True)]
    pods, states = [pod(f"u{number}", job=number) for number in (1, 2)], GroupStates()
    entries = [observed(number, "PENDING", f"u{number}", excluded="s-n2") for number in (1, 2)]
    assert look(pods, snapshot(*entries), states, nodes=nodes) == []
    first, second = (states.of(f"u{number}").excluded for number in (1, 2))
    assert first == ("s-n2",)
    assert first is second
