"""External nodes: one line for slurmctld, and the mark by which podbridge finds its nodes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import external_nodes
from bridge.slurm.external_nodes import ExternalNode, conf_line, is_current, is_idle, is_owned, mark
from bridge.slurm.models import Node

CLUSTER = "1a2b3c4d-0000-4000-8000-000000000000"
OTHER = "1a2b3c4e-0000-4000-8000-000000000000"
WORDS = st.text(max_size=20)


def test_the_line_of_a_node_with_gpus_of_two_types():
    node = ExternalNode("k8s-1", 8, 16000, ("gpu:a100:2", "gpu:h100:8"), ("gpu", "main"), "tree:leaf-1")
    assert conf_line(node, CLUSTER) == (
        "NodeName=k8s-1 NodeAddr=127.0.0.1 State=External "
        "CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 "
        f"Feature=gpu,main,{mark(node, CLUSTER)} "
        "Gres=gpu:a100:2,gpu:h100:8 GresConf=count=2,type=a100,name=gpu+count=8,type=h100,name=gpu "
        "Topology=tree:leaf-1"
    )
    assert "Gres" not in conf_line(ExternalNode("n", 1, 1), CLUSTER)
    assert "Topology" not in conf_line(ExternalNode("n", 1, 1), CLUSTER)


@given(st.builds(lambda *a: a, WORDS, st.integers(-1, 9), st.integers(-1, 9), WORDS, WORDS, WORDS))
def test_no_value_can_add_a_word_to_the_line(values):
    name, cpus, memory, gres, feature, topology = values
    try:
        node = ExternalNode(name, cpus, memory, (gres,), (feature,), topology)
    except ValueError:
        return
    keys = [word.partition("=")[0] for word in conf_line(node, CLUSTER).split()]
    assert sorted(keys) == sorted(
        ["NodeName", "NodeAddr", "State", "CPUs", "Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory"]
        + ["Feature", "Gres", "GresConf"]
        + (["Topology"] if topology else [])
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "n[1-2]"}, r"name 'n\[1-2\]'"),
        ({"cpus": 0}, "CPUs 0"),
        ({"memory_mib": 0}, "memory 0 MiB"),
        ({"gres": ("gpu",)}, "gres 'gpu'"),
        ({"features": ("x CPUs=9",)}, "feature 'x CPUs=9'"),
        ({"features": ("x,y",)}, "feature 'x,y'"),
        ({"topology": "a\nb"}, "topology"),
    ],
)
def test_a_value_that_slurm_would_read_as_another_is_named(changed, words):
    with pytest.raises(ValueError, match=words):
        ExternalNode(**{"name": "n", "cpus": 1, "memory_mib": 1, **changed})


def test_the_mark_tells_clusters_and_values_apart():
    node = ExternalNode("n", 1, 1)
    found = Node("n", frozenset({"IDLE", "EXTERNAL"}), features=("x", mark(node, CLUSTER)))
    assert is_owned(found, CLUSTER)
    assert not is_owned(found, OTHER)
    assert is_current(found, node, CLUSTER)
    for other in (ExternalNode("n", 2, 1), ExternalNode("n", 1, 1, features=("x",)), ExternalNode("n", 1, 1, ("a:1",))):
        assert not is_current(found, other, CLUSTER)
    slurmd = Node("n", frozenset({"IDLE"}), features=found.features)
    assert not is_owned(slurmd, CLUSTER)


@pytest.mark.parametrize("word", ["ALLOCATED", "MIXED", "COMPLETING"])
def test_a_node_with_a_job_is_not_idle(word):
    assert is_idle(Node("n", frozenset({"IDLE", "EXTERNAL", "DRAIN"})))
    assert not is_idle(Node("n", frozenset({word, "EXTERNAL", "DRAIN"})))
    assert not is_idle(Node("n", frozenset({"IDLE", word})))


def test_the_address_needs_no_name_service():
    assert external_nodes.ADDRESS == "127.0.0.1"


@given(st.sampled_from(["", "-b", "-b-c", "-podbridge-b"]), st.sampled_from(["", "-b", "-b-c", "-podbridge-b"]))
def test_an_installation_owns_only_its_own_nodes(one, another):
    node = ExternalNode("n", 1, 1)
    line = conf_line(node, CLUSTER + one)
    found = Node("n", frozenset({"IDLE", "EXTERNAL"}), features=(mark(node, CLUSTER + one),))
    assert mark(node, CLUSTER + one) in line
    assert is_owned(found, CLUSTER + another) == is_current(found, node, CLUSTER + another) == (one == another)
