"""Writes to nodes in Slurm, after the node has been read again."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bridge.slurm.models import Node
from controllers.node import external, node_actions
from controllers.node.node_act import NodeActor

OURS = "slurm-bridge: Kubernetes node n1 is cordoned"
KUBE_NODE = {"metadata": {"name": "n1"}}


class Slurm:
    """One node; ``writes`` are the calls that changed it."""

    def __init__(self, states, reason=""):
        self.found = Node("n1", frozenset(states.split("+")), reason)
        self.writes = []

    def node(self, name):
        return self.found

    def set_node(self, name, state, reason=""):
        self.writes.append((state, reason))


def carry_out(slurm, action):
    ignore = SimpleNamespace(event=lambda *_, **__: None, wake=lambda **_: None, fenced=lambda _: None)
    dependencies = SimpleNamespace(
        kube=ignore, slurm=slurm, poller=ignore, nodes=None, events=ignore, cluster="c", config=None
    )
    NodeActor(dependencies, nullcontext).act(action)
    return slurm.writes


def test_the_reason_of_a_resumed_node_is_not_that_of_a_drain():
    (write,) = carry_out(Slurm("IDLE+DRAIN", OURS), node_actions.Undrain(KUBE_NODE, "n1"))
    assert write == ("UNDRAIN", external.RESUME_REASON)
    # slurmctld 24.11 keeps it, also when slurmctld drains the node itself
    assert not external.is_ours(Node("n1", frozenset({"IDLE", "DRAIN"}), write[1]))


@pytest.mark.parametrize(("states", "reason"), [("IDLE+DRAIN", "disk"), ("ALLOCATED+POWERING_UP", "")])
def test_a_node_that_has_changed_since_the_decision_is_not_drained(states, reason):
    assert carry_out(Slurm(states, reason), node_actions.Drain(KUBE_NODE, "n1", OURS)) == []
    assert carry_out(Slurm("ALLOCATED"), node_actions.Drain(KUBE_NODE, "n1", OURS)) == [
        ("DRAIN", f"{OURS} [podbridge-c]")
    ]


@pytest.mark.parametrize(("asleep", "value"), [(True, "true"), (False, None)])
def test_the_mark_of_a_node_that_slurm_has_stopped_is_an_annotation(asleep, value):
    sent = []
    kube = SimpleNamespace(fenced=lambda _: kube, patch=lambda _, body, **__: sent.append(body))
    dependencies = SimpleNamespace(
        kube=kube, slurm=None, poller=None, nodes=SimpleNamespace(apply=lambda _: None), events=None, cluster="c"
    )
    node = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "7"}}
    NodeActor(dependencies, nullcontext).act(node_actions.MarkAsleep(node, asleep))
    metadata = {"annotations": {"bridge.vk.io/slurm-asleep": value}, "resourceVersion": "7", "uid": "u"}
    assert sent == [{"metadata": metadata}]
