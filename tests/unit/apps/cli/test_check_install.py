"""``podbridge check --before-install`` names the pods that the managed-node taint would evict."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bridge.apps.cli.check import check_command, check_install
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.main import cli
from bridge.config.hub import Config
from bridge.names import DEFAULT_SCHEDULER_NAME, MANAGED_TAINT, POOL_LABEL
from bridge.slurm.models import Node
from tests import builders

FOREVER = {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoExecute"}


def node(name, labels=None, holder=""):
    taints = [{"key": MANAGED_TAINT, "value": holder, "effect": "NoExecute"}] if holder else []
    return builders.node(name, labels=labels, taints=taints)


def pod(name, on="n1", tolerations=(), owner=None, phase="Running", namespace="web", **annotations):
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    metadata = {"name": name, "namespace": namespace, "ownerReferences": owners}
    spec = {"node": on, "phase": phase, "tolerations": list(tolerations)}
    return builders.pod(name, annotations=annotations, metadata=metadata, **spec)


def evictions(pods, kube_nodes=None, slurm=("n1", "n2"), labels=None, **config):
    session = SimpleNamespace(
        config=Config.model_validate(config).model_copy(update={} if slurm else {"slurm_rest_api": ""}),
        nodes=lambda: kube_nodes or [node("n1"), node("n2"), node("n3")],
        slurm_nodes={name: Node(name, frozenset({"IDLE"}), partitions=("main",)) for name in slurm},
        listed=lambda path: pods,
        namespaces=[{"name": "web", "labels": labels}, {"name": "kube-system"}],
    )
    return [(finding.result, finding.found) for finding in check_install.evictions(session)]


@pytest.mark.parametrize(
    "stays",
    [
        pod("elsewhere", on="n3"),
        pod("unbound", on=None),
        pod("ended", phase="Succeeded"),
        pod("all", tolerations=[{"operator": "Exists"}], namespace="kube-system"),
        pod("own", tolerations=[FOREVER], namespace="podbridge"),
        pod("by-name", tolerations=[FOREVER], namespace="kube-system"),
        pod("by-value", tolerations=[{"key": MANAGED_TAINT, "value": DEFAULT_SCHEDULER_NAME}], namespace="kube-system"),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
def test_a_pod_that_stays_is_not_named(stays):
    assert evictions([stays]) == [("ok", "the taint of 2 nodes would evict no pod")]


def test_a_pod_that_tolerates_the_taint_is_kept_away_unless_its_namespace_is_exempt():
    agent = pod("a1", tolerations=[FOREVER], owner=("DaemonSet", "agent"))
    ((result, found),) = evictions([agent])
    assert result == "warn"
    assert found.startswith("web: DaemonSet agent: 1 pod (a1 on n1) would stay, but new ones would be refused")
    assert evictions([agent], labels={"bridge.vk.io/guarded-nodes": "exempt"})[0][0] == "ok"
    static = pod("etcd", tolerations=[FOREVER], **{"kubernetes.io/config.mirror": "hash"})
    assert evictions([static])[0][0] == "ok"


@pytest.mark.parametrize(
    "tolerations",
    [
        [],
        [{"key": MANAGED_TAINT, "value": "another"}],
        [{"operator": "Exists", "effect": "NoSchedule"}],
        [FOREVER | {"tolerationSeconds": 300}],
    ],
)
def test_a_pod_that_does_not_tolerate_the_taint_forever_is_evicted(tolerations):
    assert evictions([pod("shop", tolerations=tolerations)]) == [
        ("warn", "web: without a controller: 1 pod (shop on n1) would be evicted")
    ]


def test_the_pods_of_a_controller_are_one_finding_with_a_few_names():
    agents = [pod(f"a{i}", on=f"n{i}", owner=("DaemonSet", "agent"), namespace="monitoring") for i in range(5)]
    nodes = [node(f"n{i}") for i in range(5)]
    assert evictions([*agents, pod("shop")], nodes, slurm=[f"n{i}" for i in range(5)]) == [
        ("warn", "monitoring: DaemonSet agent: 5 pods (a0 on n0, a1 on n1, a2 on n2, and 2 more) would be evicted"),
        ("warn", "web: without a controller: 1 pod (shop on n1) would be evicted"),
    ]


@pytest.mark.parametrize(
    ("nodes", "config"),
    [
        ([node("n1", {POOL_LABEL: "site"})], {}),
        ([node("n1", holder="another")], {}),
        ([node("n1")], {"partitions": ["gpu"], "partition": "gpu"}),
        ([node("n1")], {"nodes": {"selector": {"matchLabels": {"batch": "yes"}}}}),
    ],
)
def test_a_node_that_gets_no_taint_keeps_its_pods(nodes, config):
    assert evictions([pod("shop")], nodes, **config) == [("ok", "the taint of 0 nodes would evict no pod")]


def test_without_the_taint_no_pod_is_evicted():
    ((result, found),) = evictions([pod("shop")], [node("n1")], nodes={"taint": False})
    assert (result, found.partition(":")[0]) == ("ok", "nodes.taint is false")


def test_without_slurm_the_pods_are_unknown():
    assert evictions([pod("shop")], slurm=()) == [("warn", "not checked without Slurm")]


def test_only_what_exists_before_an_installation_is_checked(monkeypatch, tmp_path):
    kube = SimpleNamespace(server="https://api", get=lambda path, params=None: {"gitVersion": "v1.30.0", "items": []})
    session = SimpleNamespace(
        kube=kube,
        config=Config(),
        has_file=True,
        config_source="config.yaml",
        nodes=lambda: [node("n1")],
        slurm_nodes={"n1": Node("n1", frozenset())},
    )
    session.listed, session.namespaces = lambda path: [pod("shop")], []
    session.slurm = SimpleNamespace(
        token_expires_in=lambda: 7200,
        version=SimpleNamespace(name="v0.0.41", missing=list, default_partition=False),
        slurm_release="24.11.5",
        ping=lambda: None,
        partitions=list,
        server_time=lambda: 0,
    )
    monkeypatch.setenv("SLURM_JWT", "token")
    monkeypatch.setattr(check_command, "CommandSession", lambda connection: session)
    monkeypatch.setattr(check_command.check_connections, "clocks", lambda session: iter(()))
    found = list(check_command.findings(ConnectionOptions(None, None, None), before_install=True))
    assert {finding.what for finding in found} >= {"Kubernetes API", "Slurm token", "Slurm", "nodes", "pods"}
    assert not {finding.what for finding in found} & {"permissions", "webhook", "policies", "scheduler", "controllers"}
    assert next(finding.found for finding in found if finding.what == "pods").endswith("(shop on n1) would be evicted")
    assert "expires in 2h" in [finding.found for finding in found]


def test_the_option_is_in_the_help():
    assert "--before-install" in CliRunner().invoke(cli, ["check", "--help"]).output
