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


def takes(nodes, slurm_states, the_pod, remembered=None):
    found = placements(nodes, slurm_states, remembered).of(the_pod, "").eligible
    assert found in ((), ("n1",))
    return found == ("n1",)


@pytest.mark.parametrize(
    ("states", "eligible"),
    [
        *((state, True) for state in ("IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN", "IDLE+POWERING_UP", CLOUD_OFF)),
        *((state, False) for state in ("IDLE", "DOWN+POWERED_DOWN", "IDLE+DRAIN+POWERED_DOWN")),
    ],
)
def test_a_node_is_eligible_if_slurm_would_wake_it(states, eligible):
    assert takes([kube_node(ready=False)], states, pod()) is eligible


def test_what_outlives_a_start_still_counts():
    assert not takes([kube_node(ready=False, taints=[GPU_TAINT])], CLOUD_OFF, pod())
    assert not takes([kube_node(ready=False, unschedulable=True)], CLOUD_OFF, pod())
    assert not takes([kube_node(ready=False)], CLOUD_OFF, pod(cpu="9"))


REMEMBERED = {"n1": kube_node()}


@pytest.mark.parametrize(
    ("states", "remembered", "more", "eligible"),
    [
        (CLOUD_OFF, REMEMBERED, {"nodeSelector": {"zone": "a"}}, True),
        (CLOUD_OFF, REMEMBERED, {"nodeSelector": {"zone": "b"}}, False),
        (CLOUD_OFF, REMEMBERED, {"cpu": "9"}, False),
        (CLOUD_OFF, {"n1": kube_node(unschedulable=True)}, {}, True),  # its cordon was deleted with it
        (CLOUD_OFF, {"n1": kube_node(taints=[GPU_TAINT])}, {}, False),
        (CLOUD_OFF, None, {"cpu": "9"}, True),  # never seen: it takes pods that choose no node
        (CLOUD_OFF, None, {"nodeSelector": {"zone": "a"}}, False),
        ("IDLE+POWERED_DOWN", None, {}, False),  # no node of a cloud
        ("IDLE+CLOUD", None, {}, False),
    ],
)
def test_a_node_that_kubernetes_does_not_have(states, remembered, more, eligible):
    assert takes([], states, pod(**more), remembered) is eligible


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
