"""The scheduler's decisions, one situation at a time, and a machine that tries all orders of crashes."""

import pytest

from bridge import names
from bridge.config import Config
from bridge.slurm.models import ApiVersion, Job, JobLink, Node, ObservedJob, PodRef, Snapshot
from bridge.workload import eligibility
from scheduler import decide
from scheduler.attempts import REFUSED, Attempts
from scheduler.occupancy import Occupancy
from scheduler.placement import Placements

VERSION = ApiVersion("v0.0.45", external_jobs=True)


def pod(uid="u1", *, job=None, held=None, deleted=False, node=None, phase="Pending", conditions=(), **spec):
    held = held if held is not None else job is not None
    metadata = {
        "namespace": "ns",
        "name": f"pod-{uid}",
        "uid": uid,
        "labels": {names.JOB_ID_LABEL: str(job)} if job else {},
        "finalizers": [names.FINALIZER] if held else [],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    if node:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}}


def known(job_id, state, uid="u1", *, confirmations=0, missing=False, nodes=(), **more):
    link = JobLink("c", (PodRef("ns", f"pod-{uid}", uid),))
    return ObservedJob(Job(job_id, frozenset(state.split("+")), link, tuple(nodes), **more), confirmations, missing)


def snapshot(*entries, began=1000.0, settled_since=0.0, error="", sequence=7):
    by_uid = {}
    for entry in entries:
        by_uid.setdefault(entry.job.link.pods[0].uid, []).append(entry.job.job_id)
    return Snapshot(
        sequence=sequence,
        began=began,
        settled_since=settled_since,
        jobs={entry.job.job_id: entry for entry in entries},
        by_uid={uid: tuple(sorted(ids)) for uid, ids in by_uid.items()},
        error=error,
    )


def kube_node(name, **spec):
    raw = {"metadata": {"name": name, "labels": {names.SLURM_NODENAME_LABEL: f"s-{name}"}}, "spec": spec}
    return eligibility.view(raw | {"status": {"allocatable": {"cpu": "8"}}})


def look(pods, snap, attempts=None, now=1000.0, nodes=None, version=VERSION, occupancy=None, **more):
    nodes = nodes if nodes is not None else [kube_node("n1"), kube_node("n2")]
    placements = Placements(nodes, {n.slurm_name: Node(n.slurm_name, frozenset({"IDLE"})) for n in nodes}, {})
    attempts = attempts if attempts is not None else Attempts()
    more |= {"now": now, "time": now, "occupancy": occupancy or Occupancy("ours")}
    return decide.decide(decide.SchedulerView(pods, snap, placements, attempts, version, Config(), **more))


def one(*args, **kwargs):
    (action,) = look(*args, **kwargs)
    return action


def test_nothing_before_the_first_complete_answer():
    assert look([pod()], snapshot(sequence=0)) == []


def test_nothing_on_a_view_older_than_the_leadership():
    assert look([pod()], snapshot(began=5), leading_since=6) == []


def test_a_new_pod_is_asked_for():
    the_pod = pod()
    assert one([the_pod], snapshot()) == decide.Submit(the_pod)


def test_bound_finished_and_gated_pods_are_left_alone():
    assert (
        look([pod(node="n1"), pod("u2", phase="Failed"), pod("u3", schedulingGates=[{"name": "g"}])], snapshot()) == []
    )


def test_a_job_found_by_uid_is_put_on_the_pod_instead_of_a_second_one():
    the_pod = pod()
    assert one([the_pod], snapshot(known(5, "PENDING"))) == decide.Hold(the_pod, 5)


def test_an_allocated_job_binds_to_the_node_by_its_kubernetes_name():
    the_pod = pod(job=5)
    action = one([the_pod], snapshot(known(5, "RUNNING", nodes=["s-n2"], start_time=77)))
    assert action == decide.Bind(the_pod, 5, "n2", 77, "s-n2")


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "SUSPENDED", "REQUEUED+PENDING", "SOMETHING_NEW"])
def test_no_bind_without_an_allocation(state):
    entry = known(5, state, nodes=["s-n1"])
    assert not any(isinstance(a, decide.Bind | decide.Submit) for a in look([pod(job=5)], snapshot(entry)))


def test_running_without_nodes_yet_waits():
    assert look([pod(job=5)], snapshot(known(5, "RUNNING"))) == []


def test_a_node_that_kubernetes_refuses_is_given_back():
    nodes = [kube_node("n1", unschedulable=True)]
    action = one([pod(job=5)], snapshot(known(5, "RUNNING", nodes=["s-n1"])), nodes=nodes)
    assert isinstance(action, decide.GiveBack)
    assert "cordoned" in action.why
    action = one([pod(job=5)], snapshot(known(5, "RUNNING", nodes=["bare"])))
    assert "not a Kubernetes node" in action.why


def test_two_jobs_of_one_pod_the_one_on_the_pod_stays():
    entries = [known(5, "RUNNING", nodes=["s-n1"]), known(9, "RUNNING", nodes=["s-n2"])]
    assert one([pod(job=9)], snapshot(*entries)).job_id == 5
    assert one([pod()], snapshot(*entries)) == decide.Cancel(pod(), 9)


def test_a_job_just_submitted_and_not_in_the_view_is_waited_for():
    attempts = Attempts()
    attempts.of("u1").succeeded(5, 999.0)
    assert look([pod()], snapshot(began=1000), attempts) == []
    assert one([pod()], snapshot(began=1005), attempts) == decide.Submit(pod())


def test_an_unknown_outcome_is_waited_for_until_slurm_has_settled():
    attempts = Attempts()
    attempts.of("u1").unknown_at = 990.0
    view = {"attempts": attempts, "now": 1000.0}
    assert one([pod()], snapshot(began=994.9), **view).reason == "SlurmUnknownOutcome"
    attempts.of("u1").told = ("SlurmUnknownOutcome", "told")
    attempts.of("u1").told_at = 1000.0
    assert look([pod()], snapshot(began=999, settled_since=996), **view) == []
    assert one([pod()], snapshot(began=1001, settled_since=996), **view) == decide.Submit(pod())


def test_a_successor_asks_for_nothing_that_its_predecessor_may_have_asked_for():
    the_pod = pod()
    for began in (100.0, 104.9):
        assert look([the_pod], snapshot(began=began), leading_since=100.0, inherited_at=100.0) == []
    assert look([the_pod], snapshot(began=106, settled_since=102), leading_since=100.0, inherited_at=100.0) == []
    assert one([the_pod], snapshot(began=105.0), leading_since=100.0, inherited_at=100.0) == decide.Submit(the_pod)
    assert one([the_pod], snapshot(began=100.0), leading_since=100.0) == decide.Submit(the_pod)
    late = snapshot(known(5, "PENDING"), began=101.0)
    assert one([the_pod], late, leading_since=100.0, inherited_at=100.0) == decide.Hold(the_pod, 5)
    going = pod(deleted=True)
    assert look([going], snapshot(began=101.0), inherited_at=100.0) == []
    assert one([going], late, inherited_at=100.0) == decide.Release(going, (5,))


def test_nothing_is_submitted_while_many_jobs_are_missing():
    told = one([pod()], snapshot(), braked=True)
    assert (type(told), told.reason) == (decide.Tell, "SlurmJobsMissing")
    started = pod(job=5)
    assert isinstance(one([started], snapshot(known(5, "RUNNING", nodes=["s-n1"])), braked=True), decide.Bind)


def test_an_unknown_outcome_that_turns_up_is_taken():
    attempts = Attempts()
    attempts.of("u1").unknown_at = 999.0
    assert one([pod()], snapshot(known(5, "PENDING"), began=999.5), attempts) == decide.Hold(pod(), 5)


def test_a_deleted_pod_is_released_at_once():
    the_pod = pod(job=5, deleted=True)
    assert one([the_pod], snapshot(known(5, "PENDING"))) == decide.Release(the_pod, (5,))
    assert one([the_pod], snapshot(known(5, "CANCELLED", confirmations=1))) == decide.Release(the_pod, ())


def test_a_deleted_pod_waits_for_a_submit_whose_outcome_is_unknown():
    attempts = Attempts()
    attempts.of("u1").unknown_at = 999.0
    the_pod = pod(held=True, deleted=True)
    assert look([the_pod], snapshot(began=999.5), attempts) == []
    assert one([the_pod], snapshot(began=1005), attempts) == decide.Release(the_pod, ())


def test_a_deleted_pod_releases_a_job_the_view_does_not_show_yet():
    attempts = Attempts()
    attempts.of("u1").succeeded(5, 999.9)
    assert one([pod(job=5, deleted=True)], snapshot(), attempts).job_ids == (5,)


def test_an_ended_job_is_asked_for_again_only_after_slurm_said_so_twice():
    assert look([pod(job=5)], snapshot(known(5, "NODE_FAIL", confirmations=1))) == []
    assert isinstance(one([pod(job=5)], snapshot(known(5, "NODE_FAIL", confirmations=2))), decide.Submit)
    assert look([pod(job=5)], snapshot(known(5, "RUNNING", confirmations=1, missing=True))) == []
    assert isinstance(one([pod(job=5)], snapshot(known(5, "RUNNING", confirmations=2, missing=True))), decide.Submit)


def test_a_job_cancelled_by_somebody_is_not_asked_for_again():
    assert look([pod(job=5)], snapshot(known(5, "CANCELLED", confirmations=9))) == []


def test_a_job_that_we_cancelled_counts_as_gone_at_once():
    attempts = Attempts()
    attempts.of("u1").cancelled.add(5)
    assert one([pod(held=True)], snapshot(known(5, "RUNNING", nodes=["s-n1"])), attempts) == decide.Submit(
        pod(held=True)
    )


def test_no_submit_while_slurm_is_silent():
    attempts = Attempts()
    assert one([pod()], snapshot(error="connection refused"), attempts).reason == "SlurmUnavailable"


def test_back_off_after_a_refusal_and_the_words_on_the_pod():
    attempts = Attempts()
    attempts.of("u1").failed(1000.0, REFUSED, "SlurmRefused", "Invalid account (2045)")
    assert one([pod()], snapshot(), attempts) == decide.Tell(pod(), "SlurmRefused", "Invalid account (2045)")
    attempts.of("u1").told = ("SlurmRefused", "Invalid account (2045)")
    assert look([pod()], snapshot(), attempts) == []
    assert one([pod()], snapshot(), attempts, now=1006.0) == decide.Submit(pod())


def test_a_waiting_pod_is_told_slurms_reason_once():
    attempts = Attempts()
    entry = known(5, "PENDING", reason="Resources", partition="main", start_time=3600 * 24.0, excluded="")
    assert look([pod(job=5)], snapshot(entry), attempts, now=1000) == []
    tell = one([pod(job=5)], snapshot(entry), attempts, now=1004)
    assert tell.message == "Slurm job 5 waits in partition main: Resources, estimated start 1970-01-02T00:00:00Z"
    told = [{"type": "PodScheduled", "status": "False", "reason": tell.reason, "message": tell.message}]
    assert look([pod(job=5, conditions=told)], snapshot(entry), attempts, now=1005) == []


def test_excluded_nodes_that_slurm_did_not_take_keep_no_pod_from_a_new_job():
    attempts = Attempts()
    attempts.of("u1").exclude_not_before = 1000
    assert isinstance(one([pod(job=5)], snapshot(known(5, "NODE_FAIL", confirmations=2)), attempts), decide.Submit)


def test_nodes_that_change_while_a_job_waits_are_told_to_slurm():
    entry = known(5, "PENDING", reason="Resources", excluded="s-n1")
    nodes = [kube_node("n1"), kube_node("n2", unschedulable=True)]
    assert one([pod(job=5)], snapshot(entry), nodes=nodes) == decide.Exclude(pod(job=5), 5, ("s-n2",))
    attempts = Attempts()
    attempts.of("u1").excluded = ("s-n2",)
    assert look([pod(job=5)], snapshot(entry), attempts, nodes=nodes) == []
    old = ApiVersion("v0.0.38", exclude_nodes=False)
    assert look([pod(job=5)], snapshot(entry), nodes=nodes, version=old) == []


def test_the_most_urgent_pod_comes_first():
    low, high = pod("u1"), pod("u2", priority=10)
    assert [a.pod["metadata"]["uid"] for a in look([low, high], snapshot())] == ["u2", "u1"]


def raw_node(name, slurm_node):
    metadata = {"name": name, "labels": {names.SLURM_NODENAME_LABEL: slurm_node}}
    return {"metadata": metadata, "status": {"allocatable": {"cpu": "8"}}}


@pytest.mark.parametrize("order", [1, -1])
def test_a_slurm_node_that_two_kubernetes_nodes_claim_is_not_used(order):
    raw = [raw_node("n1", "s-n1"), raw_node("rogue", "s-n1"), raw_node("n2", "s-n2")]
    nodes = eligibility.views(raw[::order])
    action = one([pod(job=5)], snapshot(known(5, "RUNNING", nodes=["s-n1"])), nodes=nodes)
    assert isinstance(action, decide.GiveBack)
    assert "Slurm node s-n1 is claimed by" in action.why
    action = one([pod(job=5)], snapshot(known(5, "RUNNING", nodes=["s-n2"])), nodes=nodes)
    assert isinstance(action, decide.Bind)
    placement = Placements(nodes, {n: Node(n, frozenset({"IDLE"})) for n in ("s-n1", "s-n2")}, {}).of(pod(), "")
    assert placement.eligible == ("s-n2",)
    assert list(placement.refused) == ["s-n1"]
