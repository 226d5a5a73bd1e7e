"""Cordon and drain in both directions, and nobody fights."""

import pytest

from bridge import names
from bridge.clock import rfc3339
from bridge.config.hub import Config, parse
from bridge.slurm.models import Node, Snapshot
from bridge.slurm.versions import ApiVersion
from controllers.node import external, node_decide
from controllers.node.node_actions import Label, MarkAsleep, NodeSyncView
from tests import builders

VERSION = ApiVersion("v0.0.45")
TAINT = {"key": names.MANAGED_TAINT, "value": "slurm-bridge-scheduler", "effect": "NoExecute"}
OTHER_TAINT = {"key": "k", "effect": "NoSchedule"}
OURS = "slurm-bridge: Kubernetes node n1 is cordoned"


def node(*, cordoned=False, mirrored=None, taints=(TAINT,)):
    annotations = {names.SLURM_REASON: mirrored} if mirrored else {}
    return builders.node(annotations=annotations, unschedulable=cordoned, taints=taints)


def actions(*nodes, found, config=None, version=VERSION, error=""):
    """Return the actions for nodes of Kubernetes, and one of Slurm, or another one if it has none for them."""
    in_slurm = {found.name: found} if found else {"other": Node("o", frozenset())}
    snapshot = Snapshot(sequence=1, nodes=in_slurm, error=error)
    return node_decide.decide(NodeSyncView(list(nodes), snapshot, version, config or Config())).actions


def in_slurm(states, reason="", **more):
    return Node("n1", frozenset(states.split("+")), reason, **more) if states else None


def look(the_node, slurm_states="IDLE", reason="", **more):
    return [type(action).__name__ for action in actions(the_node, found=in_slurm(slurm_states, reason), **more)]


MIRRORED, CORDONED = node(mirrored="disk"), node(cordoned=True, mirrored="disk")
RESUMED = external.RESUME_REASON
NO_UPDATES = ApiVersion("v0.0.38", node_updates=False)
NO_TAINT, NO_DRAIN, NO_CORDON = ({"config": parse(f"nodes: {{{key}: false}}")} for key in ("taint", "drain", "cordon"))
NOT_READY = {"config": parse("nodes: {drain: false, notReady: 300}")}
SITUATIONS = {
    "in step": (node(), "IDLE", "", {}, []),
    "in step, cordoned": (node(cordoned=True), "IDLE+DRAIN", OURS, {}, []),
    "in step, cordoned and drained by an administrator": (node(cordoned=True), "IDLE+DRAIN", "disk", {}, []),
    "in step, mirrored": (CORDONED, "IDLE+DRAIN", "disk", {}, []),
    "no taint yet": (node(taints=(OTHER_TAINT,)), "IDLE", "", {}, ["Taint"]),
    "not in Slurm any more": (node(), None, "", {}, ["Taint"]),
    "no taint wanted": (node(taints=()), "IDLE", "", NO_TAINT, []),
    "no taint wanted any more": (node(), "IDLE", "", NO_TAINT, ["Taint"]),
    "cordoned": (node(cordoned=True), "IDLE", "", {}, ["Drain"]),
    "uncordoned": (node(), "IDLE+DRAIN", OURS, {}, ["Undrain"]),
    "uncordoned, and down": (node(), "DOWN+DRAIN", OURS, {}, ["Undrain"]),
    "uncordoned after drains were switched off": (node(), "IDLE+DRAIN", OURS, NO_DRAIN, ["Undrain"]),
    "uncordoned, with drains of nodes that are not ready alone": (node(), "IDLE+DRAIN", OURS, NOT_READY, ["Undrain"]),
    "resumed by the administrator": (CORDONED, "IDLE", "", {}, ["Uncordon"]),
    "our drain taken over by an administrator": (node(), "IDLE+DRAIN", "now mine", {}, ["Cordon"]),
    "down": (node(), "DOWN+NOT_RESPONDING", "Not responding", {}, ["Cordon"]),
    "not registered since a restart of slurmctld": (node(), "UNKNOWN", "", {}, []),
    "not registered, not responding": (node(), "UNKNOWN+NOT_RESPONDING", "", {}, []),
    "not registered, mirrored": (CORDONED, "UNKNOWN+DRAIN", "disk", {}, []),
    "drains switched off": (node(cordoned=True), "IDLE", "", NO_DRAIN, []),
    "drains not possible": (node(cordoned=True), "IDLE", "", {"version": NO_UPDATES}, []),
    "cordons switched off": (node(), "IDLE+DRAIN", "disk", NO_CORDON, []),
    "Slurm is silent": (node(cordoned=True), "IDLE", "", {"error": "timed out"}, []),
    "Slurm stops the node after its jobs": (node(cordoned=True), "MIXED+CLOUD+POWER_DOWN", "", {}, ["Drain"]),
    "drained by slurmctld on resume": (node(), "IDLE+DRAIN", RESUMED, {}, ["Cordon"]),
    "drained by slurmctld on resume, mirrored": (MIRRORED, "IDLE+DRAIN", RESUMED, {}, []),
}


@pytest.mark.parametrize(("the_node", "states", "reason", "more", "wanted"), SITUATIONS.values(), ids=SITUATIONS)
def test_what_is_written_to_a_node(the_node, states, reason, more, wanted):
    assert look(the_node, states, reason, **more) == wanted


def test_nodes_that_slurm_has_stopped_are_marked_until_they_are_ready_again():
    config = parse("queues: {enabled: true}")

    def mark(states, *, marked, ready="Unknown", settings=config):
        body = node()
        body["metadata"]["annotations"] = {names.SLURM_ASLEEP: "true"} if marked else {}
        body["status"] = {"conditions": [{"type": "Ready", "status": ready}]}
        found = actions(body, found=in_slurm(states), config=settings)
        return [action.asleep for action in found if isinstance(action, MarkAsleep)]

    for asleep in ("IDLE+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "ALLOCATED+POWERING_UP"):
        assert mark(asleep, marked=False) == [True]
        assert mark(asleep, marked=True) == []
        assert mark(asleep, marked=False, settings=Config()) == [], "nobody needs the mark"
        assert mark(asleep, marked=True, settings=Config()) == [False]
    assert mark("IDLE", marked=False) == []
    assert mark("ALLOCATED", marked=True) == [], "the kubelet still starts"
    assert mark("ALLOCATED", marked=True, ready="True") == [False]
    assert mark("DOWN+POWERED_DOWN", marked=True) == [False]
    assert mark("", marked=True) == [False]


def test_the_taint_keeps_the_others():
    (action,) = actions(node(taints=(OTHER_TAINT,)), found=in_slurm("IDLE"))
    assert action.taints == (OTHER_TAINT, TAINT)


@pytest.mark.parametrize("reason", ["disk", ""])
def test_an_administrators_drain_cordons_and_is_never_undone(reason):
    assert look(node(), "IDLE+DRAIN", reason) == ["Cordon"]
    assert look(node(mirrored="disk"), "IDLE+DRAIN", reason) == []


def claimant(name, *, label=None, said=None, cordoned=False):
    annotations = {names.SLURM_NAME_CONFLICT: said} if said else {}
    labels = {names.SLURM_NODENAME_LABEL: label} if label else {}
    metadata = {"name": name, "annotations": annotations, "labels": labels}
    return {"metadata": metadata, "spec": {"unschedulable": cordoned, "taints": (TAINT,)}}


def dispute(*nodes, drained=""):
    found = actions(*nodes, found=in_slurm("IDLE+DRAIN" if drained else "IDLE", drained))
    return [(type(a).__name__, a.node["metadata"]["name"], getattr(a, "why", "")) for a in found]


def test_two_nodes_that_claim_one_slurm_node_are_told_so_and_neither_moves_the_drain():
    first, second = "Slurm node n1 is claimed by rogue too", "Slurm node n1 is claimed by n1 too"
    assert dispute(claimant("n1"), claimant("rogue", label="n1", cordoned=True)) == [
        ("Dispute", "n1", first),
        ("Dispute", "rogue", second),
    ]
    told = claimant("n1", said=first), claimant("rogue", label="n1", said=second, cordoned=True)
    assert dispute(*told) == []
    assert dispute(*told, drained=OURS) == []
    assert dispute(*told, drained="disk") == []


def test_a_settled_dispute_is_told_once():
    said = "Slurm node n1 is claimed by rogue too"
    assert dispute(claimant("n1", said=said)) == [("Dispute", "n1", "")]
    assert dispute(claimant("n1"), claimant("rogue", label="other")) == [("Taint", "rogue", "")]


@pytest.mark.parametrize("slurm_states", ["DOWN", "DOWN+NOT_RESPONDING", "IDLE+FAIL"])
def test_the_reason_of_a_drain_that_was_undone_undoes_nothing_more(slurm_states):
    assert look(node(), slurm_states, OURS) == ["Cordon"]
    assert look(node(cordoned=True, mirrored="DOWN"), slurm_states, OURS) == []
    assert look(node(mirrored="DOWN"), slurm_states, OURS) == []  # somebody uncordoned: nobody fights


@pytest.mark.parametrize(
    "slurm_states",
    ["IDLE+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", "MIXED+POWERING_UP"],
)
def test_power_saving_cordons_nothing(slurm_states):
    assert look(node(), slurm_states) == []
    assert look(node(cordoned=True, mirrored="disk"), slurm_states) == ["Uncordon"]


@pytest.mark.parametrize("waits", ["POWERING_UP", "POWERED_DOWN", "POWERING_DOWN+POWER_UP"])
def test_a_node_that_slurm_starts_for_a_job_is_drained_when_it_has_started(waits):
    for base in ("ALLOCATED", "MIXED"):
        assert look(node(cordoned=True), f"{base}+CLOUD+{waits}") == []
        assert look(node(cordoned=True), f"{base}+CLOUD") == ["Drain"]
    assert look(node(cordoned=True), f"IDLE+CLOUD+{waits}") == ["Drain"]


def fleet(*ready, states="IDLE", reason="", config="nodes: {notReady: 60}", since=100.0):
    """Return the actions for nodes with slurmd that have been Ready or not since a time; the time is 200 s."""
    nodes, found = [], {}
    for number, value in enumerate(ready):
        name = f"n{number}"
        condition = {"type": "Ready", "status": "True" if value else "Unknown", "lastTransitionTime": rfc3339(since)}
        nodes.append({"metadata": {"name": name}, "spec": {"taints": (TAINT,)}, "status": {"conditions": [condition]}})
        found[name] = Node(name, frozenset(states.split("+")), reason)
    view = NodeSyncView(nodes, Snapshot(sequence=1, nodes=found), VERSION, parse(config), "c", 200.0)
    return node_decide.decide(view).actions


class TestNodesThatAreNotReady:
    def test_are_not_drained_by_default(self):
        assert fleet(False, True, config="") == []

    def test_are_drained_after_the_time_and_resumed_when_they_are_ready(self):
        (drain,) = fleet(True, False, True)
        assert (drain.slurm_node, drain.reason) == ("n1", "slurm-bridge: Kubernetes node n1 is not Ready")
        assert fleet(True, False, since=150.0) == []
        assert fleet(False, states="IDLE+DRAIN", reason=drain.reason) == []
        assert [type(one).__name__ for one in fleet(True, states="IDLE+DRAIN", reason=drain.reason)] == ["Undrain"]
        off = "nodes: {notReady: 60, drain: false}"
        assert [type(one).__name__ for one in fleet(False, True, config=off)] == ["Drain"]
        assert [type(one).__name__ for one in fleet(True, states="IDLE+DRAIN", reason=drain.reason, config=off)] == [
            "Undrain"
        ]

    def test_with_a_drain_of_an_administrator_are_left_alone(self):
        for ready in (True, False):
            assert "Undrain" not in [type(one).__name__ for one in fleet(ready, states="IDLE+DRAIN", reason="disk")]
            assert "Drain" not in [type(one).__name__ for one in fleet(ready, states="IDLE+DRAIN", reason="disk")]

    def test_are_not_drained_if_most_nodes_are_not_ready(self):
        assert len(fleet(False, False, True, True)) == 2
        assert fleet(False, False, False, True) == []
        assert fleet(False, False, False, states="IDLE+DRAIN", reason=OURS) == []

    def test_are_not_drained_while_power_saving_keeps_them_down_or_starts_them(self):
        for asleep in ("IDLE+CLOUD", "IDLE+POWERED_DOWN", "MIXED+POWERING_UP"):
            assert fleet(False, True, True, states=asleep) == []

    def test_without_the_condition_ready_are_left_alone(self):
        assert look(node(), config=parse("nodes: {notReady: 1}")) == []


def test_nodes_have_the_labels_of_their_partitions_if_configured():
    labelled = parse("nodes: {partitionLabels: true}")
    gpu, old = (names.PARTITION_LABEL_PREFIX + name for name in ("gpu", "old"))

    def changes(labels, config, taints=(TAINT,), partitions=("gpu",)):
        found = node(taints=taints)
        found["metadata"]["labels"] = labels
        decided = actions(found, found=in_slurm("IDLE", partitions=partitions), config=config)
        return [dict(action.labels) if isinstance(action, Label) else type(action).__name__ for action in decided]

    assert changes({old: "true", "disk": "ssd"}, labelled) == [{gpu: "true", old: None}]
    assert changes({gpu: "true"}, labelled) == []
    assert changes({}, Config()) == []
    assert changes({gpu: "true"}, Config()) == [{gpu: None}]
    foreign = ({**TAINT, "value": "another"},)
    assert changes({old: "true"}, labelled, taints=foreign) == []
    released = parse("nodes: {partitionLabels: true}\npartition: cpu\npartitions: [cpu]")
    assert changes({gpu: "true"}, released) == [{gpu: None}], "before the taint is removed"
    assert changes({}, released) == ["Taint"]


CLOUD_OFF = "IDLE+CLOUD+POWERED_DOWN+DRAIN"
MARK = external.drain_mark("1a2b3c4d-0000-4000-8000-000000000000")


@pytest.mark.parametrize(
    ("states", "reason", "nodes", "wanted"),
    [
        (CLOUD_OFF, OURS + MARK, (), ["Undrain"]),
        (CLOUD_OFF, OURS + MARK, (node(cordoned=True),), []),
        (CLOUD_OFF, OURS + MARK, (node(cordoned=True, taints=({**TAINT, "value": "others"},)),), []),
        (CLOUD_OFF, OURS + external.drain_mark("99999999-0000"), (), []),
        (CLOUD_OFF, OURS, (), []),
        (CLOUD_OFF, f"disk{MARK}", (), []),
        ("IDLE+CLOUD+POWERED_DOWN", OURS + MARK, (), []),
        ("IDLE+CLOUD+POWERING_DOWN+DRAIN", OURS + MARK, (), []),
        ("IDLE+POWERED_DOWN+DRAIN", OURS + MARK, (), []),
        ("IDLE+CLOUD+DRAIN", OURS + MARK, (), []),
    ],
)
def test_the_drain_of_a_cloud_node_whose_machine_and_node_object_are_gone_is_over(states, reason, nodes, wanted):
    """A cordoned node that Slurm stopped, and that Kubernetes deleted with its machine, was never started again."""
    snapshot = Snapshot(sequence=1, nodes={"n1": in_slurm(states, reason)})
    view = NodeSyncView(list(nodes), snapshot, VERSION, Config(), "1a2b3c4d-0000-4000-8000-000000000000")
    found = [type(action).__name__ for action in node_decide.decide(view).actions]
    assert [name for name in found if name in ("Undrain", "Drain")] == wanted
    old = NodeSyncView(list(nodes), snapshot, NO_UPDATES, Config(), view.cluster)
    assert "Undrain" not in [type(action).__name__ for action in node_decide.decide(old).actions]
