"""Nodes that Slurm's power saving stops and starts, and whose Kubernetes node may come and go."""

import pytest

from scheduler import group_actions, node_waits
from scheduler.group_states import GroupStates
from scheduler.nodes.placement import Placements
from tests import builders
from tests.builders import node_view, observed, slurm_nodes, snapshot
from tests.unit.scheduler import decisions

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
GPU_TAINT = {"key": "gpu", "effect": "NoSchedule"}
CLOUD_OFF = "IDLE+CLOUD+POWERED_DOWN"


def kube_node(name="n1", *, ready=True, taints=(), **spec):
    taints = [*taints, *([] if ready else [NOT_READY])]
    return node_view(name, labels={"zone": "a"}, ready="True" if ready else "Unknown", taints=taints, **spec)


def pod(job=None, cpu="1", **spec):
    return builders.pod(job=job, requests={"cpu": cpu}, **spec)


def placements(nodes, slurm_states, remembered=None):
    return Placements(nodes, slurm_nodes("n1", states=slurm_states), {}, remembered)


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
    snap = snapshot(observed(7, "RUNNING", nodes=["n1"]))
    (action,) = decisions.look([pod(7)], snap, placements(nodes, slurm_states), states=states, now=now)
    return action


def test_the_bind_waits_until_the_machine_and_its_kubelet_are_up():
    states = GroupStates()
    for nodes, slurm_states, why in (
        ([], "ALLOCATED+CLOUD+POWERING_UP", "Slurm starts node n1"),
        ([kube_node()], "ALLOCATED+CLOUD+POWERING_UP", "Slurm starts node n1"),  # Ready from before
        ([], "ALLOCATED+CLOUD", "Kubernetes has no node for Slurm's n1 yet"),
        ([kube_node(ready=False)], "ALLOCATED+CLOUD", "the kubelet of node n1 is not ready yet"),
    ):
        action = look(nodes, slurm_states, states)
        assert (type(action), action.reason) == (group_actions.SetCondition, "SlurmNodeStarting")
        assert action.message.endswith(why)
    assert isinstance(look([kube_node()], "ALLOCATED+CLOUD", states), group_actions.Bind)


def test_a_machine_that_is_not_of_a_cloud_is_waited_for_from_its_start_on():
    states = GroupStates()
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED+POWERING_UP", states), group_actions.SetCondition)
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED", states), group_actions.SetCondition)
    assert isinstance(look([kube_node()], "ALLOCATED", states), group_actions.Bind)
    assert isinstance(look([kube_node(ready=False)], "ALLOCATED", GroupStates()), group_actions.CancelAndResubmit)


def test_a_node_that_never_comes_up_is_given_back():
    states = GroupStates()
    assert isinstance(look([], "ALLOCATED+CLOUD", states), group_actions.SetCondition)
    assert isinstance(
        look([], "ALLOCATED+CLOUD", states, 1000 + node_waits.WAKE_LIMIT), group_actions.CancelAndResubmit
    )
