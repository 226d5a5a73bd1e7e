"""Either side's end ends the other, and only when slurmctld has said so twice."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.slurm.components import Component, joined
from bridge.slurm.models import GroupRef, Job, JobLink, ObservedJob, Snapshot
from bridge.slurm.states import BASE_STATES, FLAGS, Phase
from bridge.workload import links, pods
from controllers.workload import workload_actions, workload_decide
from controllers.workload.workload_act import WorkloadActor
from controllers.workload.workload_actions import (
    Ask,
    CancelRemainingComponents,
    CancelSecond,
    End,
    Label,
    Orphan,
    Release,
    Suspension,
)
from tests import builders
from tests.builders import observed, snapshot
from tests.fakes.memory_kube import MemoryCache


def pod(uid="u1", *, job=5, held=True, phase="Running", node="n1", deleted=False, grace=30):
    metadata = {"deletionGracePeriodSeconds": grace} if deleted else {}
    return builders.pod(uid, job=job, held=held, phase=phase, node=node, deleted=deleted, metadata=metadata)


def known(job_id, state, *uids, nodes=("n1",), **more):
    return observed(job_id, state, comment=builders.link(*(uids or ("u1",))), nodes=nodes, **more)


def look(pods, snap, displaced=None, slurm_names=None, silent=(), virtual=()):
    names_of = {"n1": "n1"} if slurm_names is None else slurm_names
    before = dict(displaced or {})
    view = workload_actions.WorkloadView(pods, snap, names_of, before, frozenset(silent), frozenset(virtual))
    decision = workload_decide.decide(view)
    assert workload_decide.decide(replace(view, waiting=decision.waiting)) == decision
    assert before == (displaced or {}), "a decision changes nothing that it is given"
    if displaced is not None:
        displaced.clear()
        displaced.update(decision.displaced)
    return decision.actions


def test_the_slurm_job_that_lost_to_a_pool_is_cancelled_and_its_end_does_not_end_the_pod():
    the_pod = pod(job=6, node="pool-1")
    for states in ("PENDING", "RUNNING"):
        assert look([the_pod], snapshot(known(6, states)), virtual={"pool-1"}) == [CancelSecond(the_pod, 6)]
    gone = [Release(the_pod, (), remote=True)]
    assert look([the_pod], snapshot(known(6, "CANCELLED")), virtual={"pool-1"}) == gone
    assert look([pod(job=6, node="pool-1", held=False)], snapshot(known(6, "CANCELLED")), virtual={"pool-1"}) == []


def test_a_pod_on_a_virtual_node_loses_the_finalizer_of_slurm():
    the_pod = pod(job=None, node="pool-1")
    assert look([the_pod], snapshot(), virtual={"pool-1"}) == [Release(the_pod, (), remote=True)]
    assert look([the_pod], snapshot(known(6, "RUNNING")), virtual={"pool-1"}) == [CancelSecond(the_pod, 6)]
    assert look([pod(job=None, node="pool-1", held=False)], snapshot(), virtual={"pool-1"}) == []


def test_a_pod_without_a_job_on_a_lost_node_is_released_after_its_forced_deletion():
    lost = pod(job=None, node="gone", deleted=True, grace=0)
    assert look([lost], snapshot()) == [Release(lost, ())]
    assert look([pod(job=None, node="n1", deleted=True, grace=0)], snapshot()) == []


def test_the_job_of_the_binding_counts_where_the_api_server_copies_no_label():
    the_pod = pod(job=None)
    the_pod["metadata"]["annotations"] = {names.JOB_ID_ANNOTATION: "5"}
    (end,) = look([the_pod], snapshot(known(5, "TIMEOUT", confirmations=2)))
    assert isinstance(end, End)
    for labels in ({}, {names.JOB_ID_LABEL: "4"}):
        the_pod["metadata"]["labels"] = labels
        assert look([the_pod], snapshot(known(5, "RUNNING"))) == [Label(the_pod, 5)]
    the_pod["metadata"]["labels"] = {names.JOB_ID_LABEL: "5"}
    assert look([the_pod], snapshot(known(5, "RUNNING"))) == []


def test_a_pod_shows_once_that_its_job_is_suspended_and_once_that_it_is_not():
    the_pod = pod()
    assert look([the_pod], snapshot(known(5, "SUSPENDED"))) == [Suspension(the_pod, 5, suspended=True)]
    the_pod["status"]["conditions"] = [{"type": names.JOB_SUSPENDED, "status": "True"}]
    assert look([the_pod], snapshot(known(5, "SUSPENDED"))) == []
    assert look([the_pod], snapshot(known(5, "COMPLETING"))) == [], "22.05 hides the state behind this flag"
    assert look([the_pod], snapshot(known(5, "RUNNING"))) == [Suspension(the_pod, 5, suspended=False)]
    assert look([pod(deleted=True)], snapshot(known(5, "SUSPENDED"))) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_releases_its_job(phase):
    the_pod = pod(phase=phase)
    assert look([the_pod], snapshot(known(5, "RUNNING"))) == [Release(the_pod, (5,))]
    assert look([the_pod], snapshot(known(5, "CANCELLED", confirmations=1))) == [Release(the_pod, ())]
    assert look([pod(phase=phase, held=False)], snapshot(known(5, "CANCELLED", confirmations=1))) == []


def test_a_finished_pod_whose_job_the_view_lacks_is_looked_up():
    the_pod = pod(phase="Succeeded")
    assert look([the_pod], snapshot()) == [Release(the_pod, (), unseen=5)]


def test_a_job_of_two_pods_is_kept_until_the_last_one_ends():
    entry = known(5, "RUNNING", "u1", "u2")
    first = pod(phase="Succeeded")
    assert look([first, pod("u2")], snapshot(entry)) == [Release(first, ())]
    both = look([first, pod("u2", phase="Failed")], snapshot(entry))
    assert [a.job_ids for a in both] == [(5,), (5,)]


@pytest.mark.parametrize("silent", [(), ("n1",)])
def test_a_pod_deleted_with_no_grace_keeps_its_job_until_its_containers_have_ended(silent):
    going = pod(deleted=True, grace=0)
    assert look([going], snapshot(known(5, "RUNNING")), silent=silent) == []
    assert look([going], snapshot(known(5, "RUNNING")), slurm_names={}) == []  # the node is gone
    ended = pod(deleted=True, grace=0, phase="Failed")
    assert look([ended], snapshot(known(5, "RUNNING")), silent=silent) == [Release(ended, (5,))]


def test_a_pod_deleted_by_force_on_a_silent_node_goes_when_slurm_has_ended_its_job():
    going = pod(deleted=True, grace=0)
    over = known(5, "NODE_FAIL", confirmations=2)
    assert look([going], snapshot(over)) == []  # its kubelet answers: it will say when the containers have ended
    assert look([going], snapshot(known(5, "NODE_FAIL", confirmations=1)), silent=["n1"]) == []
    assert look([going], snapshot(over), silent=["n1"]) == [Release(going, ())]
    assert look([going], snapshot(over), slurm_names={}) == [Release(going, ())]
    graceful = pod(deleted=True, grace=30)
    assert look([graceful], snapshot(over), silent=["n1"]) == []


YEAR = 31536000
FINAL = sorted(name for name, row in {**BASE_STATES, **FLAGS}.items() if row.phase is Phase.ENDED)


@pytest.mark.parametrize("link", ["a pod", "a member of a group"])
@pytest.mark.parametrize("state", FINAL)
def test_the_end_of_its_job_shortens_the_grace_period_of_a_pod_that_is_already_deleted(state, link):
    made, snap = pod, lambda **more: snapshot(known(5, state, **more))
    if link != "a pod":
        made, snap = member, lambda **more: snapshot(job_of_group(5, state, **more))
    late = made("u1", deleted=True, grace=301)
    assert look([late], snap(confirmations=1)) == []
    (action,) = look([late], snap(confirmations=2))
    assert (type(action), action.pod, action.job_id) == (End, late, 5)
    for grace in (0, 30, 300):
        assert look([made("u1", deleted=True, grace=grace)], snap(confirmations=2)) == []


def test_a_deleted_pod_with_a_long_grace_period_keeps_it_while_its_job_lives():
    late = pod(deleted=True, grace=YEAR)
    for state in ("RUNNING", "SUSPENDED", "RUNNING+COMPLETING", "A_STATE_OF_A_NEWER_SLURM"):
        assert not [a for a in look([late], snapshot(known(5, state))) if not isinstance(a, Label | Suspension)]


@pytest.mark.parametrize(
    ("entry", "answers"),
    [
        (known(5, "RUNNING", missing=True, confirmations=2), 1),
        (known(5, "RUNNING", "u9"), 3),
        (known(5, "PENDING"), 3),
        (known(5, "RUNNING", nodes=("n2",)), 3),
    ],
    ids=["the job is gone", "the ID is another job's", "it was requeued", "it lost the node"],
)
def test_a_job_that_leaves_a_deleted_pod_without_an_end_shortens_its_grace_period_too(entry, answers):
    displaced, late = {}, pod(deleted=True, grace=YEAR)
    for number in range(answers):
        found = look([late], snapshot(entry, sequence=7 + number), displaced)
        assert [type(action) for action in found if isinstance(action, End)] == ([End] if number + 1 == answers else [])


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("CANCELLED", "Cancelled"),
        ("TIMEOUT", "TimeLimit"),
        ("NODE_FAIL", "NodeFail"),
        ("PREEMPTED", "Preempted"),
        ("FAILED", "JobFailed"),
        ("COMPLETED", "JobCompleted"),
        ("OUT_OF_MEMORY", "OutOfMemory"),
        ("DEADLINE", "Deadline"),
        ("BOOT_FAIL", "BootFail"),
    ],
)
def test_a_pod_ends_with_its_job_when_said_twice(state, reason):
    assert look([pod()], snapshot(known(5, state, confirmations=1))) == []
    (action,) = look([pod()], snapshot(known(5, state, confirmations=2)))
    assert (action.job_id, action.end.reason) == (5, reason)


def test_a_job_that_is_gone_ends_the_pod_when_said_twice():
    assert look([pod()], snapshot(known(5, "RUNNING", confirmations=1, missing=True))) == []
    (action,) = look([pod()], snapshot(known(5, "RUNNING", confirmations=2, missing=True)))
    assert action.end.reason == "JobGone"


def test_a_job_the_view_does_not_show_is_asked_for_first():
    assert look([pod()], snapshot()) == [Ask(pod(), 5)]
    expecting = workload_actions.WorkloadView([pod()], snapshot(), {"n1": "n1"}, expected={5})
    assert workload_decide.decide(expecting).actions == [], "the poller will read it in any case"


def test_nothing_before_the_first_complete_answer():
    assert look([pod(), pod("u2", phase="Failed")], snapshot(sequence=0)) == []


def test_somebody_elses_job_on_the_label_ends_nothing():
    assert look([pod()], snapshot(known(5, "CANCELLED", "other", confirmations=5))) == []


def test_a_number_that_has_become_another_pods_job_ends_the_pod_after_three_answers():
    displaced = {}
    pods_of_it = [pod(), pod("u3", node=None, phase="Pending")]
    answers = [look(pods_of_it, snapshot(known(5, "RUNNING", "other"), sequence=n), displaced) for n in (7, 8, 9)]
    assert [len(actions) for actions in answers] == [1, 1, 2]  # and each time the other pod's orphan is looked into
    assert [a.end.reason for a in answers[-1] if isinstance(a, End)] == ["JobGone"]


def test_a_waiting_pod_ends_only_when_its_job_was_cancelled():
    waiting = pod(node=None, phase="Pending")
    (action,) = look([waiting], snapshot(known(5, "CANCELLED", confirmations=2)))
    assert isinstance(action, End)
    assert look([waiting], snapshot(known(5, "NODE_FAIL", confirmations=2))) == []


def test_a_requeued_job_ends_the_pod_after_three_answers():
    displaced = {}
    states = [look([pod()], snapshot(known(5, "PENDING", nodes=()), sequence=n), displaced) for n in (7, 7, 8)]
    assert states == [[], [], []]
    (action,) = look([pod()], snapshot(known(5, "PENDING", nodes=()), sequence=9), displaced)
    assert action.end.reason == "Requeued"


def test_a_lagging_view_that_catches_up_ends_nothing():
    displaced = {}
    look([pod()], snapshot(known(5, "PENDING", nodes=()), sequence=7), displaced)
    look([pod()], snapshot(known(5, "PENDING", nodes=()), sequence=8), displaced)
    assert look([pod()], snapshot(known(5, "RUNNING"), sequence=9), displaced) == []
    assert displaced == {}


@pytest.mark.parametrize(("restarts", "reason"), [(1, "Requeued"), (0, "NodeRemoved")])
def test_a_job_on_another_node_ends_the_pod_names_mapped(restarts, reason):
    displaced = {}
    assert look([pod()], snapshot(known(5, "RUNNING", nodes=["s1"])), displaced, {"n1": "s1"}) == []
    elsewhere = known(5, "RUNNING", nodes=["s2"], restarts=restarts)
    for sequence in (7, 8, 9):
        actions = look([pod()], snapshot(elsewhere, sequence=sequence), displaced, {"n1": "s1"})
    assert actions[0].end.reason == reason


@pytest.mark.parametrize("slurm_names", [{}, {"n1": "n1"}, {"n1": "s2"}])
def test_a_pod_whose_node_lost_its_label_or_was_made_again_is_left_alone(slurm_names):
    bound = pod()
    bound["metadata"]["annotations"] = {names.SLURM_NODE_ANNOTATION: "s1"}
    displaced = {}
    for sequence in range(7, 12):
        assert (
            look([bound], snapshot(known(5, "RUNNING", nodes=["s1"]), sequence=sequence), displaced, slurm_names) == []
        )
    for sequence in range(12, 15):
        actions = look([bound], snapshot(known(5, "RUNNING", nodes=["s2"]), sequence=sequence), displaced, slurm_names)
    assert actions[0].end.reason == "NodeRemoved"


def test_a_second_job_of_a_bound_pod_is_cancelled_and_the_pods_own_is_not():
    two = snapshot(known(5, "RUNNING"), known(9, "PENDING", nodes=()))
    assert look([pod()], two) == [CancelSecond(pod(), 9)]
    assert look([pod(job=9)], snapshot(known(5, "RUNNING"), known(9, "RUNNING"))) == [CancelSecond(pod(job=9), 5)]
    assert look([pod(deleted=True)], two) == [CancelSecond(pod(deleted=True), 9)]
    assert look([pod()], snapshot(known(5, "RUNNING"), known(9, "CANCELLED", confirmations=1))) == []
    assert look([pod(node=None, phase="Pending")], two) == []  # the scheduler's


def test_no_second_job_is_cancelled_while_the_pods_own_is_in_doubt():
    for own in (known(5, "RUNNING", confirmations=1, missing=True), known(5, "NODE_FAIL", confirmations=1)):
        assert look([pod()], snapshot(own, known(9, "RUNNING"))) == []
    assert look([pod(job=None)], snapshot(known(9, "RUNNING"))) == []
    shared = snapshot(known(5, "RUNNING"), known(9, "RUNNING", "u1", "u2"))
    assert look([pod(), pod("u2", job=9)], shared) == []


def test_a_job_whose_pods_are_all_unknown_is_looked_into():
    assert look([], snapshot(known(5, "RUNNING"))) == [Orphan(5, builders.link("u1"))]
    assert look([], snapshot(known(5, "COMPLETED", confirmations=1))) == []
    assert look([pod("u2", job=6)], snapshot(known(6, "RUNNING", "u1", "u2"))) == []


def test_a_job_that_a_waiting_pod_is_about_to_get_does_not_hide_the_orphans_after_it():
    orphans = [known(job_id, "RUNNING", f"gone-{job_id}") for job_id in (4, 9)]
    awaited = known(6, "RUNNING", "u2")
    assert [type(action) for action in look([pod("u2", job=6)], snapshot(orphans[0], awaited, orphans[1]))] == [
        Orphan,
        Orphan,
    ]


def member(uid, **more):
    the_pod = pod(uid, **more)
    the_pod["metadata"]["annotations"] = builders.group(2)
    return the_pod


def job_of_group(job_id, state, **more):
    link = JobLink("c", (), GroupRef("jobset", "ns", "train", "o1"), 2)
    return observed(job_id, state, comment=link, nodes=("n1",), **more)


def test_the_job_of_a_group_is_kept_until_its_last_member_ends():
    first = member("u1", phase="Succeeded")
    snap = snapshot(job_of_group(5, "RUNNING"))
    assert look([first, member("u2")], snap) == [Release(first, ())]
    assert look([first, member("u2", phase="Pending", node="")], snap) == [Release(first, ())]
    both = look([first, member("u2", phase="Failed")], snap)
    assert [action.job_ids for action in both] == [(5,), (5,)]


def test_an_unseen_job_of_a_group_is_not_cancelled_while_a_member_runs():
    first = member("u1", phase="Succeeded")
    everything = look([first, member("u2", job=None)], snapshot())
    assert everything == [Release(first, ())]


def test_the_end_of_a_job_ends_every_member():
    snap = snapshot(job_of_group(5, "TIMEOUT", confirmations=2))
    assert [(a.pod["metadata"]["uid"], type(a)) for a in look([member("u1"), member("u2")], snap)] == [
        ("u1", End),
        ("u2", End),
    ]


def test_a_second_job_of_a_running_group_is_cancelled():
    snap = snapshot(job_of_group(5, "RUNNING"), job_of_group(6, "RUNNING"))
    assert look([member("u1", job=6)], snap) == [CancelSecond(member("u1", job=6), 5)]


def component(number, state):
    link = JobLink("c", (), GroupRef("job", "ns", "train", "o1"), 2, f"s{number}", number, 2)
    return Component(5, number, Job(5 + number, frozenset({state}), link, (f"n{number}",)))


@pytest.mark.parametrize("states", [["CANCELLED", "RUNNING"], ["RUNNING", "TIMEOUT"], ["PENDING", "CANCELLED"]])
def test_what_is_left_of_a_heterogeneous_job_is_cancelled_when_the_end_of_a_component_is_confirmed(states):
    (job,) = joined(component(number, state) for number, state in enumerate(states))

    def view(**more):
        return Snapshot(sequence=7, jobs={5: ObservedJob(job, **more)}, by_uid={job.link.keys[0]: (5,)})

    assert look([], view(confirmations=1)) == []
    assert look([], view(confirmations=2)) == [CancelRemainingComponents(5, job.link)]
    assert look([], view(confirmations=2, missing=True)) == []
    (over,) = joined(component(number, "CANCELLED") for number in (0, 1))
    assert look([], replace(view(), jobs={5: ObservedJob(over, 2)})) == []
    (lives,) = joined(component(number, "RUNNING") for number in (0, 1))
    assert look([], replace(view(), jobs={5: ObservedJob(lives)})) == [Orphan(5, lives.link)]


def test_a_pod_and_its_pending_job_are_not_read_again_until_one_of_them_changes():
    waits, entry = pod(node=None, phase="Pending"), known(5, "PENDING", nodes=())
    view = workload_actions.WorkloadView([waits], snapshot(entry), {})
    first = workload_decide.decide(view)
    assert first.waiting == {"u1": (waits, entry, "u1")}
    assert workload_decide.decide(replace(view, waiting=first.waiting)).waiting["u1"] is first.waiting["u1"]
    ended = known(5, "CANCELLED", confirmations=2, nodes=())
    later = workload_decide.decide(replace(view, snapshot=snapshot(ended), waiting=first.waiting))
    assert [type(action) for action in later.actions] == [End]
    assert not later.waiting


_PODS = st.builds(
    pod,
    st.sampled_from(["u1", "u2"]),
    job=st.sampled_from([None, 5, 6]),
    held=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
    node=st.sampled_from([None, "n1"]),
    deleted=st.booleans(),
    grace=st.sampled_from([0, 30]),
)
_JOBS = st.builds(
    known,
    st.sampled_from([5, 6]),
    st.sampled_from(["PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED"]),
    st.sampled_from(["u1", "u2"]),
    confirmations=st.integers(0, 2),
    missing=st.booleans(),
    nodes=st.sampled_from([(), ("n1",), ("n2",)]),
)


@given(st.lists(st.tuples(st.lists(_PODS, max_size=2), st.lists(_JOBS, max_size=2)), max_size=6), st.data())
def test_what_a_decision_leaves_out_has_no_action(steps, data):
    seen_pods: dict = {}
    seen_jobs: dict = {}
    displaced, waiting = {}, {}
    for number, (changed_pods, changed_jobs) in enumerate(steps, 1):
        seen_pods |= {each["metadata"]["uid"]: each for each in changed_pods}
        seen_jobs |= {entry.job.job_id: entry for entry in changed_jobs}
        for seen in (seen_pods, seen_jobs):
            if seen and data.draw(st.integers(0, 4)) == 0:
                del seen[data.draw(st.sampled_from(sorted(seen)))]
        view = workload_actions.WorkloadView(
            [*seen_pods.values()], snapshot(*seen_jobs.values(), sequence=number), {"n1": "n1"}, displaced
        )
        whole = workload_decide.decide(view)
        assert workload_decide.decide(replace(view, waiting=waiting)) == whole
        displaced, waiting = whole.displaced, whole.waiting


@pytest.mark.parametrize(("new", "is_there"), [({}, True), ({"deleted": True}, False), ({"node": "n1"}, False)])
def test_the_end_of_a_gang_looks_for_a_new_member_among_the_open_pods_alone(new, is_there, monkeypatch):
    """Each of thousands of members that end together does."""
    member = {"annotations": builders.group(2), "metadata": {"resourceVersion": "1"}}
    ended = builders.pod("u1", phase="Succeeded", node="n1", **member)
    other = builders.pod("u3", metadata={"resourceVersion": "1"})
    cache = MemoryCache([ended, builders.pod("u2", **member, **new), other], pods.is_open)
    monkeypatch.setattr(cache, "items", lambda: pytest.fail("all pods are looked at"))
    assert WorkloadActor._has_new_member(SimpleNamespace(_cache=cache), links.key(ended)) is is_there
