"""Nodes that Slurm's power saving stops and starts, and whose Kubernetes node may come and go."""

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.slurm.models import ApiVersion, Job, JobLink, Node, ObservedJob, PodRef, Snapshot
from bridge.workload import eligibility
from scheduler import pod_actions, pod_decide, rules
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import Placements
from scheduler.pod_states import PodStates

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
GPU_TAINT = {"key": "gpu", "effect": "NoSchedule"}
CLOUD_OFF = "IDLE+CLOUD+POWERED_DOWN"


def kube_node(name="n1", *, ready=True, taints=(), **spec):
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    taints = [*taints, *([] if ready else [NOT_READY])]
    return eligibility.view(
        {
            "metadata": {"name": name, "labels": {"zone": "a"}},
            "spec": {"taints": taints, **spec},
            "status": {"allocatable": {"cpu": "8"}, "conditions": conditions},
        }
    )


def pod(job=None, cpu="1", **spec):
    metadata = {"namespace": "ns", "name": "p", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if job:
        metadata |= {"labels": {names.JOB_ID_LABEL: str(job)}, "finalizers": [names.FINALIZER]}
    spec["containers"] = [{"resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def placements(nodes, slurm_states, remembered=None):
    return Placements(nodes, {"n1": Node("n1", frozenset(slurm_states.split("+")))}, {}, remembered)


@pytest.mark.parametrize("state", ["IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+POWERING_UP", CLOUD_OFF])
def test_a_node_that_slurm_would_wake_is_eligible(state):
    assert placements([kube_node(ready=False)], state).of(pod(), "").eligible == ("n1",)


@pytest.mark.parametrize("state", ["IDLE", "DOWN+POWERED_DOWN", "IDLE+DRAIN+POWERED_DOWN"])
def test_a_node_that_slurm_would_not_wake_is_not(state):
    assert placements([kube_node(ready=False)], state).of(pod(), "").eligible == ()


def test_what_outlives_a_start_still_counts():
    assert placements([kube_node(ready=False, taints=[GPU_TAINT])], CLOUD_OFF).of(pod(), "").eligible == ()
    assert placements([kube_node(ready=False, unschedulable=True)], CLOUD_OFF).of(pod(), "").eligible == ()
    assert placements([kube_node(ready=False)], CLOUD_OFF).of(pod(cpu="9"), "").eligible == ()


def test_a_node_that_kubernetes_deleted_is_remembered():
    remembered = {"n1": kube_node()}
    assert placements([], CLOUD_OFF, remembered).of(pod(nodeSelector={"zone": "a"}), "").eligible == ("n1",)
    assert placements([], CLOUD_OFF, remembered).of(pod(nodeSelector={"zone": "b"}), "").eligible == ()
    assert placements([], CLOUD_OFF, remembered).of(pod(cpu="9"), "").eligible == ()


def test_a_cloud_node_never_seen_takes_pods_that_choose_no_node():
    assert placements([], CLOUD_OFF).of(pod(cpu="9"), "").eligible == ("n1",)
    assert placements([], CLOUD_OFF).of(pod(nodeSelector={"zone": "a"}), "").eligible == ()


def test_a_node_that_is_not_of_kubernetes_is_not_waited_for():
    assert placements([], "IDLE+POWERED_DOWN").of(pod(), "").eligible == ()
    assert placements([], "IDLE+CLOUD").of(pod(), "").eligible == ()


def look(nodes, slurm_states, states, now=1000.0):
    job = Job(7, frozenset({"RUNNING"}), JobLink("c", (PodRef("ns", "p", "u1"),)), ("n1",))
    snapshot = Snapshot(sequence=7, began=1000.0, jobs={7: ObservedJob(job)}, by_uid={"u1": (7,)})
    version = ApiVersion("v0.0.45", external_jobs=True)
    more = {"now": now, "time": now, "occupancy": Occupancy("ours")}
    view = pod_decide.SchedulerView(
        [pod(7)], snapshot, placements(nodes, slurm_states), states.by_uid, version, Config(), **more
    )
    decision = pod_decide.decide(view)
    states.merge(decision.states)
    (action,) = decision.actions
    return action


def test_the_bind_waits_until_the_machine_and_its_kubelet_are_up():
    states = PodStates()
    for nodes, slurm_states, why in (
        ([], "ALLOCATED+CLOUD+POWERING_UP", "Slurm starts node n1"),
        ([kube_node()], "ALLOCATED+CLOUD+POWERING_UP", "Slurm starts node n1"),  # Ready from before
        ([], "ALLOCATED+CLOUD", "Kubernetes has no node for Slurm's n1 yet"),
        ([kube_node(ready=False)], "ALLOCATED+CLOUD", "the kubelet of node n1 is not ready yet"),
    ):
        action = look(nodes, slurm_states, states)
        assert isinstance(action, pod_actions.SetCondition)
        assert action.reason == "SlurmNodeStarting"
        assert action.message.endswith(why)
    assert isinstance(look([kube_node()], "ALLOCATED+CLOUD", states), pod_actions.Bind)


def test_a_machine_that_is_not_of_a_cloud_is_waited_for_from_its_start_on():
    states = PodStates()
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED+POWERING_UP", states), pod_actions.SetCondition)
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED", states), pod_actions.SetCondition)
    assert isinstance(look([kube_node()], "ALLOCATED", states), pod_actions.Bind)
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED", PodStates()), pod_actions.CancelAndResubmit)


def test_a_node_that_never_comes_up_is_given_back():
    states = PodStates()
    assert isinstance(look([], "ALLOCATED+CLOUD", states), pod_actions.SetCondition)
    assert isinstance(look([], "ALLOCATED+CLOUD", states, 1000 + rules.WAKE_LIMIT), pod_actions.CancelAndResubmit)
