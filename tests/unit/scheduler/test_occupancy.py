"""What a node holds, as its kubelet counts it, and how long a bind waits for room."""

from decimal import Decimal

import pytest

from bridge import clock
from bridge.config.hub import Config
from bridge.slurm.models import Node
from bridge.workload import eligibility
from scheduler import group_actions
from scheduler.conditions import waits_for
from scheduler.group_states import GroupStates
from scheduler.nodes.occupancy import Occupancy, PlannedOccupancy, prune
from scheduler.nodes.placement import Placements
from tests import builders
from tests.builders import observed, snapshot
from tests.unit.scheduler import decisions


def running(job_id, uid):
    return observed(job_id, "RUNNING", uid, nodes=["n1"], confirmations=2)


OURS = "ours"
OFFERED = {"cpu": "2", "memory": "8Gi", "pods": "3", "ephemeral-storage": "10Gi", "hugepages-2Mi": "4Mi"}
NOW = 1_000_000.0
TIMEOUT = Config().busy_node_timeout


def pod(uid, node=None, *, scheduler=OURS, phase="Running", until=None, job=None, **requests):
    asked = {name.replace("_", "-"): value for name, value in (requests or {"cpu": "1"}).items()}
    deleted = False if until is None else clock.rfc3339(until)
    more = {"phase": phase if node else "Pending", "job": job, "deleted": deleted, "requests": asked}
    return builders.pod(uid, node=node, schedulerName=scheduler, metadata={"name": uid}, **more)


def kube_node(taken=None):
    return eligibility.view(builders.node(allocatable=OFFERED), taken=taken or {})


def occupancy(*there):
    result = Occupancy(OURS)
    for one in there:
        result.changed("add", None, one)
    return result


def lacking(the_occupancy, the_pod):
    planned = PlannedOccupancy(the_occupancy)
    return list(planned.lacking("n1", planned.occupant(the_pod, "n1").requests, kube_node().offered))


def look(pods, jobs, the_occupancy, *, states=None, now=NOW, time=None):
    time = time if time is not None else now
    place = decisions.placements([kube_node(the_occupancy.lasting(time - TIMEOUT).get("n1"))])
    snap = snapshot(*jobs, began=now)
    return decisions.look(pods, snap, place, states=states, now=now, time=time, occupancy=the_occupancy)


@pytest.mark.parametrize(
    ("there", "asked", "lacks"),
    [
        ({"cpu": "1"}, {"cpu": "1"}, []),
        ({"cpu": "1500m"}, {"cpu": "501m"}, ["cpu"]),
        ({"memory": "6Gi"}, {"memory": "3Gi"}, ["memory"]),
        ({"memory": "6Gi"}, {"cpu": "2"}, []),
        ({"ephemeral_storage": "8Gi"}, {"ephemeral_storage": "3Gi"}, ["ephemeral-storage"]),
        ({"hugepages_2Mi": "2Mi"}, {"hugepages_2Mi": "4Mi"}, ["hugepages-2Mi"]),
    ],
)
def test_requests_are_summed_as_a_kubelet_does(there, asked, lacks):
    assert lacking(occupancy(pod("old", "n1", **there)), pod("new", **asked)) == lacks
    assert lacking(occupancy(pod("old", "n2", **there)), pod("new", **asked)) == []


def test_the_number_of_pods_counts():
    there = [pod(f"p{number}", "n1", cpu="0") for number in range(3)]
    assert lacking(occupancy(*there), pod("new", cpu="0")) == ["pods"]
    assert lacking(occupancy(*there[:2]), pod("new", cpu="0")) == []


def test_other_schedulers_pods_count_and_ended_ones_do_not():
    assert lacking(occupancy(pod("agent", "n1", scheduler="default-scheduler")), pod("new", cpu="2")) == ["cpu"]
    assert lacking(occupancy(pod("old", "n1", phase="Succeeded")), pod("new", cpu="2")) == []
    there = occupancy(pod("old", "n1"))
    there.changed("update", pod("old", "n1"), pod("old", "n1", until=NOW))
    assert lacking(there, pod("new", cpu="2")) == ["cpu"], "its grace period"
    there.changed("update", None, pod("old", "n1", until=NOW, phase="Failed"))
    assert lacking(there, pod("new", cpu="2")) == []
    there.changed("delete", pod("old", "n1"), None)
    assert there.of("n1") == []


def test_a_pod_that_is_being_bound_counts_until_its_bind_has_failed():
    there = occupancy()
    there.assume(there.occupant(pod("one", cpu="2"), "n1"))
    there.changed("update", None, pod("one", cpu="2"))
    assert lacking(there, pod("two")) == ["cpu"]
    there.correct({"one"}, lambda _: True)
    assert lacking(there, pod("two")) == ["cpu"]
    there.correct({"one"}, lambda _: False)
    assert lacking(there, pod("two")) == []
    there.assume(there.occupant(pod("one", cpu="2"), "n1"))
    there.changed("update", None, pod("one", "n1", cpu="2"))
    there.correct({"one"}, lambda _: False)
    assert lacking(there, pod("two")) == ["cpu"], "bound by now"


def test_what_slurm_can_not_count_on():
    there = occupancy(
        pod("agent", "n1", scheduler="default-scheduler", cpu="500m"),
        pod("leaves", "n1", scheduler="default-scheduler", until=NOW, cpu="100m"),
        pod("stuck", "n1", until=NOW - TIMEOUT - 1, cpu="1"),
        pod("runs", "n1", cpu="100m"),
    )
    assert there.lasting(NOW - TIMEOUT)["n1"] == {"cpu": Decimal("1.5"), "pods": Decimal(2)}
    there.changed("delete", pod("agent", "n1"), None)
    there.changed("delete", pod("stuck", "n1"), None)
    assert there.lasting(NOW - TIMEOUT) == {}


def test_requests_for_nothing_are_not_kept():
    """kube-scheduler binds a pod with any number of them, in any namespace."""
    whole = pod("agent", "n1", scheduler="default-scheduler", cpu="1")
    nothing = {f"example.com/r{number}": "0" for number in range(10_000)}
    whole["spec"]["containers"].append({"name": "b", "resources": {"requests": nothing, "limits": nothing}})
    (before,), (after,) = occupancy(whole).of("n1"), occupancy(prune(whole)).of("n1")
    assert prune(whole)["spec"]["resources"]["requests"] == {"cpu": "1"}
    assert {name: value for name, value in before.requests.items() if value} == after.requests


def test_a_pod_that_is_reduced_counts_as_before():
    whole = pod("agent", "n1", scheduler="default-scheduler", until=NOW, cpu="1500m", memory="1Gi")
    whole["spec"]["overhead"] = {"cpu": "100m"}
    whole["spec"]["initContainers"] = [{"name": "init", "resources": {"requests": {"memory": "2Gi"}}}]
    (before,), (after,) = occupancy(whole).of("n1"), occupancy(prune(whole)).of("n1")
    assert after == before
    assert after.requests == {"cpu": Decimal("1.6"), "memory": Decimal(2**31), "pods": Decimal(1)}
    assert not after.ours
    assert "containers" not in prune(whole)["spec"]


def test_a_change_is_announced_once():
    calls = []
    there = Occupancy(OURS, lambda: calls.append(1))
    there.changed("add", None, pod("one"))
    assert not calls
    for _ in range(2):
        there.changed("update", None, pod("one", "n1"))
    assert len(calls) == 1
    there.changed("update", None, pod("one", "n1", until=NOW))
    there.changed("delete", pod("one", "n1"), None)
    assert len(calls) == 3


def test_no_bind_while_a_pod_whose_job_is_over_still_runs_there():
    there = occupancy(pod("old", "n1", cpu="2"))
    new = pod("new", job=5, cpu="2")
    jobs = [observed(4, "CANCELLED", "old", confirmations=2), running(5, "new")]
    states = GroupStates()
    (tell,) = look([new], jobs, there, states=states)
    assert tell.reason == "NodeBusy"
    assert tell.message == "Slurm job 5 has node n1: too little cpu until these pods have ended: ns/old"
    assert waits_for(states.of("new")) == "node"
    there.changed("update", None, pod("old", "n1", cpu="2", phase="Failed"))
    (bind,) = look([new], jobs, there, states=states)
    assert isinstance(bind, group_actions.Bind)
    assert waits_for(states.of("new")) == "bind"


def test_the_job_is_on_the_pod_before_it_waits():
    there = occupancy(pod("old", "n1", cpu="2", until=NOW + 20))
    new = pod("new", cpu="2")
    assert look([new], [running(5, "new")], there) == [group_actions.Hold(new, 5)]


def test_two_pods_of_one_look_do_not_share_the_last_room():
    there = occupancy(pod("agent", "n1", scheduler="default-scheduler", cpu="500m"))
    first, second = pod("a", job=5), pod("b", job=6)
    bind, tell = look([first, second], [running(5, "a"), running(6, "b")], there)
    assert isinstance(bind, group_actions.Bind)
    assert bind.pod is first
    assert tell.reason == "NodeBusy"
    assert "too little cpu beside ns/a, ns/agent" in tell.message
    assert "CoreSpecCount" in tell.message


def test_a_wait_for_room_ends_after_its_time():
    there = occupancy(pod("old", "n1", cpu="2"))
    new, jobs, states = pod("new", job=5, cpu="2"), [running(4, "old"), running(5, "new")], GroupStates()
    assert isinstance(look([new], jobs, there, states=states)[0], group_actions.SetCondition)
    assert look([new], jobs, there, states=states, now=NOW + TIMEOUT - 1)[0].reason == "NodeBusy"
    (back,) = look([new], jobs, there, states=states, now=NOW + TIMEOUT)
    assert isinstance(back, group_actions.CancelAndResubmit)
    assert (back.pod, back.job_id, back.soon) == (new, 5, False)
    assert back.why.startswith(f"after {TIMEOUT:.0f} s: node n1: too little cpu beside ns/old. ")


YEAR = 31536000


@pytest.mark.parametrize("scheduler", [OURS, "default-scheduler"])
def test_a_grace_period_of_a_year_is_not_waited_for(scheduler):
    longest = Config().max_grace_period
    old = pod("old", "n1", cpu="2", scheduler=scheduler, until=NOW + YEAR)
    old["metadata"]["deletionGracePeriodSeconds"] = YEAR
    there = occupancy(old)
    new, jobs, states = pod("new", job=5, cpu="2"), [running(5, "new")], GroupStates()
    for now in (NOW, NOW + longest, NOW + longest + TIMEOUT - 1):
        assert not any(
            isinstance(a, group_actions.CancelAndResubmit) for a in look([new], jobs, there, states=states, now=now)
        )
    (back,) = look([new], jobs, there, states=states, now=NOW + longest + TIMEOUT)
    assert isinstance(back, group_actions.CancelAndResubmit)
    # Slurm counts the pod of its own job, and not that of another scheduler
    assert bool(there.lasting(NOW + longest + 1)) == (scheduler != OURS)
    assert not there.lasting(NOW + longest)


def test_the_grace_period_of_a_pod_of_another_scheduler_survives_the_reduction():
    old = pod("old", "n1", scheduler="theirs", until=NOW + YEAR)
    old["metadata"]["deletionGracePeriodSeconds"] = YEAR
    (whole,), (reduced,) = occupancy(old).of("n1"), occupancy(prune(old)).of("n1")
    assert whole == reduced
    assert whole.until == NOW + Config().max_grace_period


def test_a_grace_period_is_waited_for_and_no_longer():
    until = NOW + Config().max_grace_period
    there = occupancy(pod("old", "n1", cpu="2", until=until))
    new, jobs, states = pod("new", job=5, cpu="2"), [running(5, "new")], GroupStates()
    for now in (NOW, NOW + TIMEOUT + 1, until + TIMEOUT - 1):
        assert not any(
            isinstance(a, group_actions.CancelAndResubmit) for a in look([new], jobs, there, states=states, now=now)
        )
    (back,) = look([new], jobs, there, states=states, now=until + TIMEOUT + 1)
    assert isinstance(back, group_actions.CancelAndResubmit)
    assert eligibility.BESIDE in back.why
    # and Slurm is asked for another node
    placements = Placements([kube_node(there.lasting(until + 1)["n1"])], {"n1": Node("n1", frozenset({"IDLE"}))}, {})
    assert placements.of(new, "").refused == {"n1": f"too little cpu {eligibility.BESIDE}"}


def test_a_resize_in_place_is_counted():
    changes = []
    occupancy = Occupancy(OURS, lambda: changes.append(1))
    before, after = pod("daemon", "n1", scheduler="theirs", cpu="1"), pod("daemon", "n1", scheduler="theirs", cpu="2")
    occupancy.changed("add", None, before)
    occupancy.changed("update", before, after)
    (occupant,) = occupancy.of("n1")
    assert occupant.requests["cpu"] == 2 and len(changes) == 2
    occupancy.changed("update", after, {**after, "status": {"phase": "Running", "qosClass": "Burstable"}})
    assert len(changes) == 2
