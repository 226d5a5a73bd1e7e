"""``podbridge check`` compares what Slurm and Kubernetes offer on a node."""

from types import SimpleNamespace

import pytest

from bridge.apps.cli.check import check_cluster, check_command
from bridge.config.hub import Config
from bridge.slurm.models import Node, Partition
from tests import builders

GIB = 1024


def kube_node(name="n1", cpu="8", memory="30Gi"):
    return builders.node(name, allocatable={"cpu": cpu, "memory": memory})


def slurm_node(name="n1", **more):
    return Node(name, frozenset({"IDLE"}), **({"cpus": 8, "memory_mib": 30 * GIB} | more))


@pytest.mark.parametrize(
    ("slurm", "kube", "wanted"),
    [
        ({}, {}, ""),
        ({"cpus": 4, "memory_mib": GIB}, {}, ""),
        ({}, {"cpu": "7800m"}, "8 CPUs, Allocatable 7.8"),
        ({"usable_cpus": 7}, {"cpu": "7800m"}, ""),
        ({}, {"memory": "29Gi"}, "30720 MiB of memory, Allocatable 29696 MiB"),
        ({"reserved_mib": GIB}, {"memory": "29Gi"}, ""),
        ({}, {"cpu": "1", "memory": "1Gi"}, "8 CPUs, Allocatable 1, 30720 MiB of memory, Allocatable 1024 MiB"),
    ],
)
def test_what_slurm_offers_more_than_kubernetes(slurm, kube, wanted):
    assert check_cluster.excess(slurm_node(**slurm), kube_node(**kube)) == wanted


def test_a_finding_names_a_few_of_many_nodes():
    names = [f"n{number}" for number in range(9)]
    session = SimpleNamespace(
        nodes=lambda: [kube_node(name, cpu="7") for name in names], slurm_nodes={n: slurm_node(n) for n in names}
    )
    shared, warning = check_cluster.nodes(session)
    assert (shared.result, shared.found) == ("ok", "9 of 9 Kubernetes nodes are Slurm nodes too")
    assert warning.result == "warn" and "n0: 8 CPUs, Allocatable 7;" in warning.found
    assert warning.found.endswith("; and 6 more") and "CoreSpecCount" in warning.fix


def test_nodes_that_offer_the_same_are_no_finding():
    session = SimpleNamespace(nodes=lambda: [kube_node()], slurm_nodes={"n1": slurm_node()})
    assert [finding.result for finding in check_cluster.nodes(session)] == ["ok"]


@pytest.mark.parametrize(
    ("config", "partitions", "found"),
    [
        ({}, [Partition("main"), Partition("gpu", default_memory=True)], "main: no DefMemPerCPU"),
        ({"partitions": ["gpu"], "partition": "gpu"}, [Partition("main"), Partition("gpu", default_memory=True)], ""),
        ({"defaults": {"memoryPerCpu": "4Gi"}}, [Partition("main")], ""),
        ({"exclusive": True}, [Partition("main")], ""),
    ],
)
def test_a_partition_without_a_default_memory_is_a_warning(config, partitions, found):
    session = SimpleNamespace(config=Config.model_validate(config))
    findings = list(check_command._memory(session, {each.name: each for each in partitions}))
    assert [finding.result for finding in findings] == (["warn"] if found else [])
    assert all(finding.found.startswith(found) and "memoryPerCpu" in finding.fix for finding in findings)
