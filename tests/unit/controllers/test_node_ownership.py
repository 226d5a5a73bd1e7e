"""Two installations and one node: one of them gets it, the other leaves it alone, and nobody fights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.config.hub import parse
from bridge.slurm.models import Node, Snapshot
from bridge.slurm.versions import ApiVersion
from bridge.workload import eligibility
from controllers.node import node_actions, node_decide
from controllers.node.node_actions import NodeSyncView
from tests import builders

VERSION = ApiVersion("v0.0.45", external_nodes=True)
A, B = "scheduler-a", "scheduler-b"


def config(name, *, partitions=(), selector=None, taint=True):
    text = f"schedulerName: scheduler-{name}\nnodes: {{taint: {str(taint).lower()}"
    if selector is not None:
        text += f", selector: {{matchLabels: {{shard: {selector}}}}}"
    text += "}\n"
    if partitions:
        text += f"partitions: [{', '.join(partitions)}]\npartition: {partitions[0]}\n"
    return parse(text)


def node(*, holder="", labels=None, cordoned=False, mirrored=False):
    taints = [{"key": names.MANAGED_TAINT, "value": holder, "effect": "NoExecute"}] if holder else []
    annotations = {names.SLURM_REASON: "disk"} if mirrored else {}
    return builders.node(labels=labels, annotations=annotations, unschedulable=cordoned, taints=taints)


def in_slurm(states="IDLE", reason="", partitions=("p",)):
    return {"n1": Node("n1", frozenset(states.split("+")), reason, partitions=partitions)}


def decision(settings, the_node, nodes):
    return node_decide.decide(NodeSyncView([the_node], Snapshot(sequence=1, nodes=nodes), VERSION, settings))


def kinds(settings, the_node, nodes):
    return [type(action).__name__ for action in decision(settings, the_node, nodes).actions]


def test_a_node_that_another_scheduler_has_taken_is_left_alone_and_reported():
    taken = node(holder=B, cordoned=True)
    found = decision(config("a"), taken, in_slurm())
    assert not found.actions
    assert found.taken == {"n1": B}
    assert kinds(config("b"), taken, in_slurm()) == ["Drain"]


@pytest.mark.parametrize("settings", [config("a", partitions=["q"]), config("a", selector="x")])
def test_a_node_that_is_not_selected_is_left_alone_without_a_report(settings):
    for the_node in (node(cordoned=True), node(holder=B, cordoned=True), node(holder=B, mirrored=True)):
        found = decision(settings, the_node, in_slurm())
        assert not found.actions
        assert not found.taken


def test_a_node_of_another_slurm_keeps_the_cordon_of_its_scheduler():
    assert kinds(config("a"), node(holder=B, mirrored=True, cordoned=True), {"other": Node("o", frozenset())}) == []


def test_a_released_node_gets_rid_of_drain_cordon_and_then_taint():
    settings = config("a", partitions=["q"])
    drained = in_slurm("IDLE+DRAIN", f"{names.DRAIN_REASON_PREFIX} cordoned")
    assert kinds(settings, node(holder=A, mirrored=True), drained) == ["Undrain"]
    assert kinds(settings, node(holder=A, mirrored=True), in_slurm()) == ["Uncordon"]
    assert kinds(settings, node(holder=A), in_slurm()) == ["Taint"]
    assert kinds(settings, node(), in_slurm()) == []


def test_a_released_node_keeps_the_taints_of_others():
    released, other = node(holder=A), {"key": "maintenance", "effect": "NoSchedule"}
    released["spec"]["taints"].append(other)
    found = decision(config("a", partitions=["q"]), released, in_slurm())
    assert list(found.actions) == [node_actions.Taint(released, (other,))]


@pytest.mark.parametrize(("partitions", "expected"), [("p", ["Taint"]), ("q", []), ("", [])])
def test_an_external_node_belongs_to_the_installation_of_its_partitions(partitions, expected):
    the_node = node(labels={names.EXTERNAL_NODE_LABEL: ""})
    the_node["metadata"]["annotations"][names.EXTERNAL_NODE_PARTITIONS] = partitions
    the_node["status"] = {"allocatable": {"cpu": "4", "memory": "8Gi"}}
    snapshot = Snapshot(sequence=1, nodes={"other": Node("o", frozenset())}, partitions={"p": None, "q": None})
    found = node_decide.decide(NodeSyncView([the_node], snapshot, VERSION, config("a", partitions=["p"])))
    assert [type(action).__name__ for action in found.actions] == expected


def test_two_nodes_of_different_installations_may_have_one_slurm_name():
    nodes = []
    for name in "ab":
        the_node = node(holder=f"scheduler-{name}", labels={names.SLURM_NODENAME_LABEL: "n1", "shard": name})
        the_node["metadata"]["name"] = f"{name}1"
        nodes.append(the_node)
    view = NodeSyncView(nodes, Snapshot(sequence=1, nodes=in_slurm()), VERSION, config("a", selector="a"))
    assert not node_decide.decide(view).actions


def test_a_pod_does_not_get_a_node_of_another_scheduler():
    spec = {"schedulerName": A, "tolerations": [{"operator": "Exists"}]}
    assert eligibility.refusal(spec, {}, eligibility.view(node(holder=B))) == f"managed by scheduler {B}"
    assert eligibility.refusal(spec, {}, eligibility.view(node(holder=A))) == ""


SETTINGS = st.builds(
    config,
    st.just("a"),
    partitions=st.sampled_from([(), ("p",), ("q",), ("p", "q")]),
    selector=st.sampled_from([None, "a", "b"]),
)
NODES = st.builds(
    node,
    holder=st.sampled_from(["", A, B, "gone"]),
    labels=st.sampled_from([{}, {"shard": "a"}, {"shard": "b"}]),
    cordoned=st.booleans(),
    mirrored=st.booleans(),
)
SLURM = st.builds(
    in_slurm,
    st.sampled_from(["IDLE", "IDLE+DRAIN", "DOWN"]),
    st.sampled_from(["", "disk", f"{names.DRAIN_REASON_PREFIX} x"]),
    st.sampled_from([("p",), ("q",), ("p", "q")]),
)


@given(SETTINGS, SETTINGS, NODES, SLURM)
def test_two_installations_come_to_rest(first, second, the_node, slurm):
    """Each carries out its actions in turn; after a few turns neither has any, and one taint at most is left."""
    second = second.model_copy(update={"scheduler_name": B})
    for turn in range(12):
        steps = decision((first, second)[turn % 2], the_node, slurm).actions
        for step in steps[:1]:  # a second write of the same decision fails: the resource version has changed
            apply(step, the_node, slurm)
        assert len([t for t in the_node["spec"]["taints"] if t["key"] == names.MANAGED_TAINT]) <= 1
    assert not decision(first, the_node, slurm).actions
    assert not decision(second, the_node, slurm).actions


def apply(step, the_node, slurm):
    spec, notes = the_node["spec"], the_node["metadata"]["annotations"]
    found = slurm["n1"]
    match step:
        case node_actions.Taint():
            spec["taints"] = list(step.taints)
        case node_actions.Cordon():
            spec["unschedulable"], notes[names.SLURM_REASON] = True, step.why
        case node_actions.Uncordon():
            spec["unschedulable"] = False
            notes.pop(names.SLURM_REASON, None)
        case node_actions.Drain():
            slurm["n1"] = Node("n1", found.states | {"DRAIN"}, step.reason, partitions=found.partitions)
        case node_actions.Undrain():
            slurm["n1"] = Node("n1", found.states - {"DRAIN"}, "", partitions=found.partitions)
        case _:
            raise AssertionError(step)
