"""Three installations of podbridge in one Kubernetes cluster: two shards of one Slurm, and a second Slurm.

The shards own the partitions ``left`` and ``right`` of one Slurm 26.05. ``node-1`` is in both: the left shard, which
starts first, has it. The third installation has a Slurm 24.11, whose nodes have the same names.
"""

import json
import subprocess

import pytest
import yaml

from bridge import names
from cluster import Cluster
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.systems import kube
from cluster.tools import merged
from cluster.world import World

pytestmark = pytest.mark.real

PARTITIONS = (
    "PartitionName=left Nodes=node-[0-1] MaxTime=INFINITE State=UP",
    "PartitionName=right Nodes=node-[1-3] MaxTime=INFINITE State=UP",
)
LEFT, RIGHT, SECOND = "podbridge", "shard-right", "second-slurm"
NAMESPACES = {LEFT: "left", RIGHT: "right", SECOND: "second"}
SITE = "example.org/site"
FAST = {"leaseDuration": 4, "renewDeadline": 3, "retryPeriod": 0.5}


def shard(partition, installation):
    return {
        "installation": installation,
        "schedulerName": f"{partition}-scheduler",
        "managedNamespaces": [partition],
        "partition": partition,
        "partitions": [partition],
        "nodes": {"selector": {"matchExpressions": [{"key": SITE, "operator": "DoesNotExist"}]}},
        "slurm": {"pollIdle": 0.5},
        "leaderElection": FAST,
    }


@pytest.fixture(scope="module")
def world(state_folder):
    """The three installations, with a World for Kubernetes and the Slurm of the shards; ``second`` has the other."""
    lines = {"slurm": "26.05", "nodes": 4, "slurm_conf": PARTITIONS}
    with (
        Cluster(state_folder / "several", **lines) as cluster,
        Cluster(state_folder / "several-second", slurm="24.11", nodes=2, kube=False) as second,
    ):
        for number in range(2):
            node = kube.node_object(f"second-{number}", second.options.size)
            node["metadata"]["labels"] |= {SITE: "second", names.SLURM_NODENAME_LABEL: f"node-{number}"}
            cluster.api.ensure("/api/v1/nodes", node)
        for namespace in NAMESPACES.values():
            cluster.add_namespace(namespace)
        for name in (RIGHT, SECOND):
            cluster.add_installation(name)
        settings = {
            LEFT: shard("left", LEFT),
            RIGHT: shard("right", RIGHT),
            SECOND: {
                "installation": SECOND,
                "schedulerName": "second-scheduler",
                "managedNamespaces": ["second"],
                "slurmRestApi": second.slurm_rest_url,
                "nodes": {"selector": {"matchLabels": {SITE: "second"}}},
                "slurm": {"pollIdle": 0.5, "jwtFile": str(second.jwt_file)},
                "leaderElection": FAST,
            },
        }
        found = World(cluster)
        found.second, found.settings = second, settings
        for name in settings:
            start(found, name)
            if name == LEFT:
                eventually(lambda: holder(found, "node-1"), "node-1 taken by the left shard")
        yield found


def start(world, name):
    world.cluster.start_podbridge(name=name, config_overrides=world.settings[name])


@pytest.fixture
def clean(world):
    yield world
    for namespace in NAMESPACES.values():
        world.api.delete_pods(namespace)
    for namespace in NAMESPACES.values():
        eventually(lambda n=namespace: not world.pods(n), f"no pod left in {namespace}", 30)
    eventually(lambda: not world.queue(), "no job left", 30)


def in_second(world, *argv):
    return world.second.run_slurm(*argv)


def holder(world, node):
    taints = world.kube_node(node)["spec"].get("taints") or ()
    return [taint["value"] for taint in taints if taint["key"] == names.MANAGED_TAINT]


def test_each_scheduler_runs_its_own_pods_on_its_own_nodes(clean):
    found = [clean.create(namespace=namespace, run="60") for namespace in (*NAMESPACES.values(),) * 2]
    nodes = {}
    for pod in found:
        running = clean.running(pod)
        nodes.setdefault(pod["metadata"]["namespace"], set()).add(running["spec"]["nodeName"])
        assert running["spec"]["schedulerName"] == f"{pod['metadata']['namespace']}-scheduler"
    assert nodes["left"] <= {"node-0", "node-1"}
    assert nodes["right"] <= {"node-2", "node-3"}
    assert nodes["second"] <= {"second-0", "second-1"}
    owners = {json.loads(clean.job_comment(job))["cluster"][36:] for job in clean.queue()}
    assert owners == {"", f"-{RIGHT}"}
    assert len(clean.queue()) == 4
    assert len(in_second(clean, "squeue", "-h").splitlines()) == 2
    expected = {"node-0": "left", "node-1": "left", "node-2": "right", "node-3": "right"}
    expected |= {"second-0": "second", "second-1": "second"}
    assert {node: holder(clean, node) for node in expected} == {n: [f"{s}-scheduler"] for n, s in expected.items()}


def test_nobody_can_use_the_partition_of_another_shard(clean):
    """The administrator of Kubernetes, who has all permissions, cannot either."""
    with pytest.raises(ClusterError, match="right is not a partition of this scheduler; allowed: left"):
        clean.create(namespace="left", job={"partition": "right"})
    with pytest.raises(ClusterError, match="left, main is not a partition of this scheduler; allowed: right"):
        clean.create(namespace="right", job={"partition": "left,main"})


def test_a_drain_is_seen_by_the_scheduler_of_the_node_alone(clean):
    in_second(clean, "scontrol", "update", "NodeName=node-0", "State=DRAIN", "Reason=fan")
    clean.slurm("scontrol", "update", "NodeName=node-3", "State=DRAIN", "Reason=disk")
    for node, reason in (("second-0", "fan"), ("node-3", "disk")):
        found = eventually(lambda n=node: clean.kube_node(n)["spec"].get("unschedulable"), f"{node} cordoned")
        assert found
        assert reason in clean.kube_node(node)["metadata"]["annotations"][names.SLURM_REASON]
    assert not any(clean.kube_node(f"node-{number}")["spec"].get("unschedulable") for number in range(3))
    in_second(clean, "scontrol", "update", "NodeName=node-0", "State=RESUME")
    clean.slurm("scontrol", "update", "NodeName=node-3", "State=RESUME")
    for node in ("second-0", "node-3"):
        eventually(lambda n=node: not clean.kube_node(n)["spec"].get("unschedulable"), f"{node} uncordoned")


def test_a_cordon_drains_the_node_of_the_right_slurm(clean):
    clean.api.merge("/api/v1/nodes/second-1", {"spec": {"unschedulable": True}})
    eventually(lambda: "DRAIN" in in_second(clean, "scontrol", "show", "node", "node-1"), "drained in the second Slurm")
    assert "DRAIN" not in clean.node("node-1")[0]
    clean.api.merge("/api/v1/nodes/second-1", {"spec": {"unschedulable": None}})
    eventually(lambda: "DRAIN" not in in_second(clean, "scontrol", "show", "node", "node-1"), "resumed")


def check(world, changes):
    """Return the findings of ``podbridge check`` for a changed configuration of the right shard."""
    config = world.cluster.state / "checked.yaml"
    config.write_text(yaml.safe_dump(merged(yaml.safe_load(config.with_name(f"{RIGHT}.yaml").read_text()), changes)))
    command = [world.cluster.state / "bin" / "podbridge", "check", "--config", config, "-o", "json"]
    done = subprocess.run(command, env=world.cluster.env, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    return done.returncode, [f["found"] for f in found if f["what"] == "other installations"], found


def test_check_names_what_two_installations_must_not_share(clean):
    changes = {"schedulerName": "second-scheduler", "managedNamespaces": ["left"], "partitions": ["left", "right"]}
    status, about, found = check(clean, changes)
    assert status == 1
    assert [text.partition(": set")[0] for text in about] == [
        f"{LEFT}: both manage namespace left",
        f"{LEFT}: both use partition left of {clean.cluster.slurm_rest_url}",
        f"{SECOND}: both schedule the pods of second-scheduler",
    ]
    assert any(f["found"] == "node-0, node-1: taken by scheduler left-scheduler" for f in found)


def test_a_shard_goes_on_and_cancels_nothing_while_the_other_is_dead(clean):
    orphan, kept = (clean.create(namespace="right", run="600") for _ in range(2))
    jobs = {each["metadata"]["name"]: clean.labelled(clean.running(each)) for each in (orphan, kept)}
    clean.cluster.kill(RIGHT)
    # the pod disappears without its scheduler: its job is an orphan
    account = ("--as=system:serviceaccount:shard-right:shard-right", "--namespace=right")  # past the dead webhook
    name = orphan["metadata"]["name"]
    clean.cluster.kubectl(*account, "patch", "pod", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    clean.delete(orphan, grace=0)
    clean.gone(orphan)
    clean.cluster.stop_podbridge(LEFT)
    start(clean, LEFT)  # with an empty cache
    mine = clean.running(clean.create(namespace="left", run="60"))
    clean.polled(5)
    orphaned = jobs[orphan["metadata"]["name"]]
    assert clean.queue()[orphaned] == "RUNNING", "the left shard has cancelled a job of the right one"

    start(clean, RIGHT)
    eventually(lambda: orphaned not in clean.queue(), "the right shard cancels its orphan", 30)
    assert clean.queue() == {jobs[kept["metadata"]["name"]]: "RUNNING", clean.job_of(mine): "RUNNING"}


def test_a_node_of_two_shards_stays_with_the_first(clean):
    def told():
        events = clean.api("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [e for e in events if e["reason"] == "NodeTakenByOther" and e["regarding"]["name"] == "node-1"]

    event = eventually(told, "an Event of node-1")[-1]
    assert "scheduler left-scheduler has taken this node" in event["note"]
    pod = clean.create(namespace="right", run="60", nodeSelector={"kubernetes.io/hostname": "node-1"})

    def is_refused(found):
        conditions = found["status"].get("conditions") or ()
        return any("managed by scheduler left-scheduler" in c.get("message", "") for c in conditions)

    refused = clean.seen(pod, "refused", is_refused)
    assert not refused["spec"].get("nodeName")
    assert holder(clean, "node-1") == ["left-scheduler"]

    clean.slurm("scontrol", "update", "PartitionName=left", "Nodes=node-0")
    clean.slurm("scontrol", "update", "NodeName=node-1", "Comment=moved")  # a changed node is read at once
    eventually(lambda: holder(clean, "node-1") == ["right-scheduler"], "node-1 has gone over")
    assert clean.running(pod)["spec"]["nodeName"] == "node-1"
