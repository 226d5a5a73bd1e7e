"""External nodes are registered, replaced and deleted, and no job and no administrator's drain is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.clock import rfc3339
from bridge.config.hub import Config, parse
from bridge.slurm.external_nodes import ExternalNode, mark
from bridge.slurm.models import Node, Partition, Snapshot
from bridge.slurm.versions import VERSIONS
from bridge.workload.devices.node_gres import NodeGres
from controllers.node import external, node_decide
from controllers.node.node_actions import (
    Cordon,
    Drain,
    Explain,
    NodeSyncView,
    Register,
    Taint,
    Uncordon,
    Undrain,
    Unregister,
)
from tests import builders

CLUSTER = "1a2b3c4d-0000-4000-8000-000000000000"
NOW = 1_800_000_000.0
TAINT = {"key": names.MANAGED_TAINT, "value": "slurm-bridge-scheduler", "effect": "NoExecute"}
SLURMD = Node("node-0", frozenset({"IDLE"}))
WANTED = ExternalNode("k1", 7, 16000, features=("k8s",))


def node(name="k1", *, cpu="7900m", memory="16000Mi", label=True, ready="True", since=NOW, taints=(TAINT,), **more):
    annotations = {names.EXTERNAL_NODE_PARTITIONS: "k8s"} | more.pop("annotations", {})
    made = builders.node(
        name,
        labels={names.EXTERNAL_NODE_LABEL: ""} if label else {},
        annotations={key: value for key, value in annotations.items() if value},
        allocatable={"cpu": cpu, "memory": memory, **more.pop("resources", {})},
        ready=ready,
        taints=taints,
        **more,
    )
    made["status"]["capacity"] = {"cpu": "64", "memory": "1Ti"}
    made["status"]["conditions"][0]["lastTransitionTime"] = rfc3339(since)
    return made


def in_slurm(wanted=WANTED, states="IDLE", reason="", **more):
    features = (*wanted.features, mark(wanted, CLUSTER))
    found = Node(wanted.name, frozenset({"EXTERNAL", *states.split("+")}), reason, wanted.cpus, wanted.memory_mib)
    return replace(found, features=features, **{"gres": ",".join(wanted.gres), **more})


def view(*nodes, found=(), version="v0.0.45", config=None):
    slurm = {each.name: each for each in (SLURMD, *found)}
    partitions = {name: Partition(name) for name in ("main", "k8s")}
    snapshot = Snapshot(sequence=1, nodes=slurm, partitions=partitions)
    return NodeSyncView(nodes, snapshot, VERSIONS[version], config or Config(), CLUSTER, NOW)


def look(*nodes, **more):
    return node_decide.decide(view(*nodes, **more)).actions


def kinds(*nodes, **more):
    return [type(action).__name__ for action in look(*nodes, **more)]


def test_a_labelled_node_is_tainted_first_and_then_registered_with_allocatable():
    assert kinds(node(taints=())) == ["Taint"]
    (action,) = look(node())
    assert action == Register(node(), WANTED)
    assert kinds(node(taints=()), config=parse("nodes: {taint: false}")) == ["Register"]


def test_a_registered_node_needs_no_write():
    assert look(node(), found=[in_slurm()]) == []
    assert look(node(ready="Unknown"), found=[in_slurm()]) == []
    assert node_decide.decide(view(node(), found=[in_slurm()])).external == {
        "registered": 1,
        "leaving": 0,
        "absent": 0,
        "refused": 0,
    }


@pytest.mark.parametrize("change", [{"ready": "False"}, {"unschedulable": True}])
def test_a_node_that_cannot_be_used_is_not_registered_and_keeps_its_taint(change):
    assert look(node(**change)) == []
    assert kinds(node(taints=(), **change)) == ["Taint"]


def test_gres_features_and_topology():
    table = parse(
        "gres: {nvidia.com/gpu: gpu, nvidia.com/a100: 'gpu:a100', x.com/h100: 'gpu:h100', y.com/h100: 'gpu:h100'}"
    )
    offered = {"nvidia.com/a100": "2", "x.com/h100": "3", "y.com/h100": "1", "other.com/thing": "4", "pods": "110"}
    annotations = {names.EXTERNAL_NODE_FEATURES: " ssd, k8s,ssd", names.TOPOLOGY_SPEC: "tree:leaf-1 "}
    (action,) = look(node(resources=offered, annotations=annotations), config=table)
    assert action.external_node.gres == ("gpu:a100:2", "gpu:h100:4")
    assert action.external_node.features == ("k8s", "ssd")
    assert action.external_node.topology == "tree:leaf-1"
    (action,) = look(node(resources={"nvidia.com/gpu": "0"}), config=table)
    assert action.external_node.gres == ()
    action = look(node(resources={"nvidia.com/gpu": "1", "nvidia.com/a100": "1"}), config=table)[-1]
    assert action.problem == "gres gpu:a100 and gres gpu cannot be on one node in Slurm"


@pytest.mark.parametrize(
    ("change", "version", "found", "words"),
    [
        ({}, "v0.0.43", (), "API version v0.0.43 of slurmrestd has no external nodes"),
        ({"name": "node-0"}, "v0.0.45", (), "Slurm has a node node-0 that podbridge did not create"),
        ({}, "v0.0.45", (Node("k1", frozenset({"IDLE", "EXTERNAL"})),), "Slurm has an external node k1 that"),
        ({"annotations": {names.EXTERNAL_NODE_PARTITIONS: "k8s,no"}}, "v0.0.45", (), "Slurm has no partition no"),
        ({"annotations": {names.EXTERNAL_NODE_FEATURES: "a b"}}, "v0.0.45", (), "feature 'a b'"),
        ({"annotations": {names.TOPOLOGY_SPEC: "a b"}}, "v0.0.45", (), "topology 'a b'"),
        ({"cpu": "900m"}, "v0.0.45", (), "CPUs 0"),
        ({"cpu": "many"}, "v0.0.45", (), "CPUs 0"),
    ],
)
def test_a_refusal_is_told_once_and_taken_back(change, version, found, words):
    told = [a for a in look(node(**change), version=version, found=found) if not isinstance(a, Taint)]
    (action,) = told
    assert isinstance(action, Explain)
    assert words in action.problem
    annotations = {**change.get("annotations", {}), names.EXTERNAL_NODE_PROBLEM: action.problem}
    again = look(node(**{**change, "annotations": annotations}), version=version, found=found)
    assert not any(isinstance(a, Explain | Register) for a in again)
    repaired = look(node(annotations={names.EXTERNAL_NODE_PROBLEM: action.problem}))
    assert repaired[0].problem == ""
    unlabelled = look(node(label=False, taints=(), annotations={names.EXTERNAL_NODE_PROBLEM: action.problem}))
    assert [a.problem for a in unlabelled] == [""]


def test_a_clash_with_a_slurmd_node_changes_nothing_for_that_node():
    clash = node("node-0", annotations={names.EXTERNAL_NODE_PROBLEM: "x"}, unschedulable=True)
    hybrid = node("node-0", label=False, unschedulable=True)
    without = [a for a in look(clash) if not isinstance(a, Explain)]
    assert [type(a) for a in without] == [type(a) for a in look(hybrid) if not isinstance(a, Explain)] == [Drain]


def test_gres_that_slurm_ignored_is_told():
    table = parse("gres: {x.com/fpga: fpga}")
    wanted = replace(WANTED, gres=("fpga:1",))
    (action,) = look(node(resources={"x.com/fpga": "1"}), found=[in_slurm(wanted, gres="")], config=table)
    assert action.problem == "Slurm ignores gres fpga: not in GresTypes of slurm.conf"


OURS = "slurm-bridge: the resources, features or topology of external node k1 have changed"


def test_a_changed_node_is_drained_awaited_deleted_and_created():
    bigger = node(cpu="15")
    (action,) = look(bigger, found=[in_slurm(states="MIXED")])
    assert action == Drain(bigger, "k1", OURS)
    assert look(bigger, found=[in_slurm(states="MIXED+DRAIN", reason=OURS)]) == []
    assert look(bigger, found=[in_slurm(states="IDLE+COMPLETING+DRAIN", reason=OURS)]) == []
    assert look(bigger, found=[in_slurm(states="IDLE+DRAIN", reason=OURS)]) == [Unregister(bigger, "k1")]
    assert kinds(bigger) == ["Register"]


def test_a_change_that_is_taken_back_resumes_the_node():
    assert kinds(node(), found=[in_slurm(states="MIXED+DRAIN", reason=OURS)]) == ["Undrain"]


@pytest.mark.parametrize("nodes", [(), (node(label=False),)])
def test_a_removed_node_is_drained_awaited_and_deleted(nodes):
    assert kinds(*nodes, found=[in_slurm(states="ALLOCATED")]) == ["Drain"]
    assert kinds(*nodes, found=[in_slurm(states="ALLOCATED+DRAIN", reason=OURS)]) == []
    assert kinds(*nodes, found=[in_slurm(states="IDLE+DRAIN", reason=OURS)]) == ["Unregister"]


@pytest.mark.parametrize("nodes", [(), (node(label=False),), (node(cpu="15"),), (node(),)])
@pytest.mark.parametrize("reason", ["disk", ""])
def test_an_administrators_drain_stays(nodes, reason):
    found = [in_slurm(states="IDLE+DRAIN", reason=reason)]
    assert [kind for kind in kinds(*nodes, found=found) if kind != "Cordon"] == []


def test_foreign_external_nodes_are_not_touched():
    foreign = Node("k1", frozenset({"IDLE", "EXTERNAL", "DRAIN"}), OURS, features=("podbridge-ffffffff-00000000",))
    assert look(found=[foreign]) == []


def test_a_node_that_is_not_ready_is_drained_after_a_time_and_comes_back():
    assert look(node(ready="Unknown", since=NOW - 59), found=[in_slurm()]) == []
    silent = node(ready="Unknown", since=NOW - 60)
    (action,) = look(silent, found=[in_slurm(states="MIXED")])
    assert action.reason == "slurm-bridge: Kubernetes node k1 is not Ready"
    drained = in_slurm(states="MIXED+DRAIN", reason=action.reason)
    assert look(silent, found=[drained]) == []
    assert kinds(node(), found=[drained]) == ["Undrain"]
    assert kinds(node(unschedulable=True), found=[drained]) == []
    early = parse("nodes: {externalNotReady: 5}")
    assert kinds(node(ready="False", since=NOW - 5), found=[in_slurm()], config=early) == ["Drain"]


def test_podbridges_own_drain_ends_also_if_cordons_are_not_mirrored():
    off = parse("nodes: {drain: false}")
    assert kinds(node(), found=[in_slurm(states="IDLE+DRAIN", reason=OURS)], config=off) == ["Undrain"]
    assert kinds(node(unschedulable=True), found=[in_slurm()], config=off) == []


def test_two_nodes_that_claim_one_name_are_left_alone():
    second = node("k2")
    second["metadata"]["labels"][names.SLURM_NODENAME_LABEL] = "k1"
    assert not any(isinstance(a, Register) for a in look(node(), second))
    assert not any(isinstance(a, Drain | Unregister) for a in look(node(cpu="15"), second, found=[in_slurm()]))


class World:
    """One node in Kubernetes and one in a Slurm that refuses what the real one refuses."""

    def __init__(self):
        self.node = node(taints=())
        self.found = None
        self.jobs = 0
        self.admin = False

    def view(self):
        return view(*([self.node] if self.node else []), found=[self.slurm()] if self.found else [])

    def slurm(self):
        states = self.found.states - {"IDLE", "MIXED"} | {"MIXED" if self.jobs else "IDLE"}
        return replace(self.found, states=states)

    def event(self, event):
        kind, value = event
        if kind == "size":
            self.node = self.node and {**self.node, "status": {**self.node["status"], "allocatable": value}}
        elif kind == "label":
            labels = {names.EXTERNAL_NODE_LABEL: ""} if value else {}
            self.node = self.node and {**self.node, "metadata": {**self.node["metadata"], "labels": labels}}
        elif kind == "exists":
            self.node = (self.node or node(taints=())) if value else None
        elif kind == "job" and self.found:
            out = "DRAIN" in self.found.states
            self.jobs = max(0, self.jobs + value) if value < 0 or not out else self.jobs
        elif kind == "admin" and self.found:
            self.admin = value
            reason = "disk" if value else ""
            states = self.found.states | {"DRAIN"} if value else self.found.states - {"DRAIN"}
            self.found = replace(self.found, states=states, reason=reason)
        elif kind == "act":
            for action in node_decide.decide(self.view()).actions[:value]:
                self.act(action)

    def act(self, action):
        match action:
            case Taint():
                self.node = {**self.node, "spec": {**self.node["spec"], "taints": action.taints}}
            case Register():
                assert self.found is None
                self.found = in_slurm(action.external_node)
            case Unregister():
                assert external.may_delete(self.slurm(), CLUSTER)
                assert not self.jobs, "deleted with a job"
                assert not self.admin, "an administrator's drain was lost"
                self.found = None
            case Drain():
                assert not self.admin, "an administrator's reason was overwritten"
                self.found = replace(self.found, states=self.found.states | {"DRAIN"}, reason=action.reason)
            case Undrain():
                assert not self.admin, "an administrator's drain was ended"
                self.found = replace(self.found, states=self.found.states - {"DRAIN"}, reason="")
            case Cordon():
                annotations = {**self.node["metadata"]["annotations"], names.SLURM_REASON: action.why}
                self.node = {**self.node, "spec": {**self.node["spec"], "unschedulable": True}}
                self.node = {**self.node, "metadata": {**self.node["metadata"], "annotations": annotations}}
            case Uncordon():
                annotations = {k: v for k, v in self.node["metadata"]["annotations"].items() if k != names.SLURM_REASON}
                self.node = {**self.node, "spec": {**self.node["spec"], "unschedulable": False}}
                self.node = {**self.node, "metadata": {**self.node["metadata"], "annotations": annotations}}

    def settle(self):
        for _ in range(12):
            found = node_decide.decide(self.view()).actions
            if not found:
                return
            for action in found:
                self.act(action)
        raise AssertionError(f"does not settle: {found}")


EVENTS = st.one_of(
    st.tuples(st.just("size"), st.sampled_from([{"cpu": "4", "memory": "8Gi"}, {"cpu": "9", "memory": "8Gi"}])),
    st.tuples(st.just("label"), st.booleans()),
    st.tuples(st.just("exists"), st.booleans()),
    st.tuples(st.just("job"), st.sampled_from([1, -1])),
    st.tuples(st.just("admin"), st.booleans()),
    st.tuples(st.just("act"), st.integers(1, 3)),
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happens_no_job_and_no_drain_is_lost_and_slurm_follows_in_the_end(events):
    world = World()
    for event in events:
        world.event(event)
    world.settle()  # jobs and drains may keep an old node
    world.jobs = 0
    world.event(("admin", False))
    world.settle()
    labelled = world.node is not None and names.EXTERNAL_NODE_LABEL in world.node["metadata"]["labels"]
    assert (world.found is not None) == labelled
    if labelled:
        assert world.found.cpus == int(float(world.node["status"]["allocatable"]["cpu"].replace("7900m", "7")))
        assert "DRAIN" not in world.found.states
        assert TAINT in world.node["spec"]["taints"]


def test_devices_are_gres_unless_allocatable_names_the_gres():
    devices = {"k1": NodeGres({"gpu:a100": 2})}
    (register,) = node_decide.decide(replace(view(node()), devices=devices)).actions
    assert register.external_node.gres == ("gpu:a100:2",)
    (register,) = node_decide.decide(replace(view(node(resources={"nvidia.com/gpu": "4"})), devices=devices)).actions
    assert register.external_node.gres == ("gpu:4",)


def test_a_node_whose_devices_are_not_read_yet_is_neither_registered_nor_changed():
    assert node_decide.decide(replace(view(node()), devices={})).actions == []
    with_devices = replace(WANTED, gres=("gpu:2",))
    assert node_decide.decide(replace(view(node(), found=[in_slurm(with_devices)]), devices={})).actions == []
    silent = node(ready="Unknown", since=NOW - 100)
    decision = node_decide.decide(replace(view(silent, found=[in_slurm(with_devices)]), devices={}))
    assert [type(action).__name__ for action in decision.actions] == ["Drain"]


def test_devices_that_slurm_would_not_identify_are_a_problem_of_the_node():
    devices = {"k1": NodeGres(problem="the numbers are wrong")}
    (_, explain) = node_decide.decide(replace(view(node()), devices=devices)).actions
    assert explain.problem == "the numbers are wrong"
