"""One queue of one namespace whose Jobs run on local nodes, in a Slurm partition, and on pools."""

from collections import Counter

import pytest

from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import NAMESPACE
from tests.e2e.kueue.capacity import CapacityWatch

pytestmark = pytest.mark.real
LOCAL = {"name": "local", "localFlavor": {"nodeLabels": {"kubernetes.io/hostname": kueue.LOCAL_NODE}}}
SITES = {"name": "sites", "poolFlavor": {"poolRegExp": "-site$"}}
JOBS, FEW = 500, 24
"""Jobs of a long run, and of a short one."""


def limited(flavor, cpus):
    return {**flavor, "nominalQuota": {"cpu": cpus}}


@pytest.fixture
def slurm(world):
    return {"name": "gpu", "slurmFlavor": {"partition": world.partition}}


def test_one_queue_has_three_places(world, slurm):
    name = f"places-{next(world.counts)}"
    flavors = [limited(LOCAL, 1), limited(slurm, 1), limited(SITES, 1)]
    path = world.master_queue(name, flavors, localQueues=[{"namespace": NAMESPACE}])
    eventually(lambda: len(world.offered(name)) == 4, "local nodes, a partition and two sites are offered")
    script = f"until [ -e /srv/home/{name} ]; do sleep 0.1; done"
    places = []
    for _ in range(3):
        job = world.queued(name, run="600", script=script, tolerations=[kueue.TOLERATION])
        places.append((job, world.admitted(job)))
    assert [flavor for _, flavor in places] == [f"{name}-local", f"{name}-gpu", f"{name}-sites-local-site"]
    local, partition, site = [world.running_members(job, 1, 60)[0] for job, _ in places]

    assert local["spec"]["nodeName"] == kueue.LOCAL_NODE
    assert local["spec"]["schedulerName"] == "default-scheduler"
    assert "defaultSchedulerNodes" in local["metadata"]["annotations"]["bridge.vk.io/default-scheduler"]
    assert partition["spec"]["nodeName"] == world.partition_node
    assert world.job(world.job_of(partition))["Partition"] == world.partition
    assert world.remote_job(site).startswith("local-site/")

    waiting = world.queued(name, run="1", script="true")
    eventually(lambda: world.told(waiting, "QuotaReserved") == "False", "a Job without the toleration waits")

    def figures():
        record = next(record for record in world.shown("get", "queues") if record["queue"] == name)
        return record["ready"], record["admitted"], record["pending"], record["cpu"]["used"]

    eventually(lambda: figures() == ("True", 3, 1, 3.0), "podbridge get queues", every=1)
    report = world.shown("explain", "queue", name)
    assert sorted(line.split()[1] for line in report["admitted"]) == sorted(flavor for _, flavor in places)
    assert len(report["flavors"]) == 4
    assert [item["workload"].split("/")[0] for item in report["pending"]] == [NAMESPACE]
    assert {item["flavor"] for item in report["flavors"]} == set(world.offered(name))
    job = world.shown("explain", "job", waiting["metadata"]["name"], "-n", NAMESPACE)
    assert f"suspended: Kueue has no quota for it: queue {name}: " in job["summary"]
    assert job["next"] == f"kubectl describe workload {world.workload(waiting)['metadata']['name']} -n {NAMESPACE}"
    world.delete_gang(places[0][0])
    assert world.admitted(waiting) == f"{name}-local"
    world.completed(waiting)
    world.let_go(name)
    world.completed(places[2][0], 60)
    world.delete_gang(places[1][0])
    eventually(lambda: not world.queue(), "no Slurm job left")
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)


def test_labels_of_nodes_follow_the_partitions_of_slurm(world):
    label = f"partition.bridge.vk.io/{world.partition}"

    def labelled():
        return {node["metadata"]["name"] for node in world.api("GET", f"/api/v1/nodes?labelSelector={label}")["items"]}

    eventually(lambda: labelled() == {world.partition_node}, "the node of the partition has its label")
    try:
        world.slurm("scontrol", "update", f"PartitionName={world.partition}", "Nodes=node-[1-2]")
        eventually(lambda: labelled() == {"node-1", "node-2"}, "so has a new one")
    finally:
        world.slurm("scontrol", "update", f"PartitionName={world.partition}", f"Nodes={world.partition_node}")
    eventually(lambda: labelled() == {world.partition_node}, "the label is removed")


@pytest.mark.timeout(900)
def test_many_jobs_run_once_each_on_three_flavors(world, slurm, long, report):
    count = JOBS if long else FEW
    name = f"many-{next(world.counts)}"
    flavors = [limited(LOCAL, count // 10), limited(slurm, count // 10), limited(SITES, count // 20)]
    path = world.master_queue(name, flavors, localQueues=[{"namespace": NAMESPACE}])
    eventually(lambda: len(world.offered(name)) == 4, "all flavors are offered")
    nodes = {f"{name}-local": kueue.LOCAL_NODE, f"{name}-gpu": world.partition_node}
    limits = dict.fromkeys(nodes, count // 10)
    sites = {f"{name}-sites-{site}": site for site in world.cluster.sites}
    limits |= dict.fromkeys(sites, count // 20)
    labels = {"many": name}
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs?labelSelector=many={name}"

    def ended():
        found = [job["status"] for job in world.api("GET", jobs)["items"]]
        return len(found) == count and all(status.get("succeeded") or status.get("failed") for status in found)

    with CapacityWatch(world, name, nodes | sites, limits, NAMESPACE) as watch:
        for _ in range(count):
            world.queued(name, run="1", script="true", tolerations=[kueue.TOLERATION], labels=labels)
        eventually(ended, "every Job has ended", 600, every=2)
    report(str(watch))
    assert watch.problems == []
    assert watch.admissions > 0
    found = [job["status"] for job in world.api("GET", jobs)["items"]]
    assert [status for status in found if status.get("succeeded") != 1 or status.get("failed")] == []
    pods = world.pods(selector=f"many={name}")
    assert len(pods) == count, "no Job had a second pod"
    places = Counter(pod["spec"]["nodeName"] for pod in pods)
    assert {kueue.LOCAL_NODE, world.partition_node} < set(places)
    assert set(places) - {kueue.LOCAL_NODE, world.partition_node} <= set(world.cluster.sites)
    world.api("DELETE", jobs, {"propagationPolicy": "Background"})
    eventually(lambda: not world.pods(selector=f"many={name}"), "the pods are gone", 120, every=1)
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)
