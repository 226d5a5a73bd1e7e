"""Two clusters share the pools of one nats-server: neither changes the jobs of the other, also after kills."""

import time

import pytest

from bridge.workload.pool_selection import NO_POOL
from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE

pytestmark = pytest.mark.real
POOLS = ("local-site", "slurm-site")
EACH = 3
"""Pods of each cluster on each pool."""


@pytest.fixture(scope="module")
def other(state_folder, pools_world):
    """A second Kubernetes cluster; its podbridge uses the nats-server and the sites of the first."""
    pools_world.clear()
    nats = pools_world.cluster.nats
    access = {"servers": [nats.url], "seedFile": str(nats.seed("hub")), "caFile": str(nats.ca_file)}
    reached = {"nats": access, "nodeAddress": "127.0.0.1", "kubeletPort": 0}

    def overrides(**more):
        return {
            "managedNamespaces": ["slurm-bridge", NAMESPACE],
            "slurmRestApi": "",
            "pools": {**reached, **more},
        }

    with Cluster(state_folder / "other", slurm=None, nodes=0) as cluster:
        cluster.add_namespace(NAMESPACE, {"bridge.vk.io/pools": "*"})
        cluster.start_podbridge(config_overrides=overrides())
        world = PoolWorld(cluster)
        world.restart = lambda **more: cluster.start_podbridge(config_overrides=overrides(**more))
        for pool in POOLS:
            world.ready(pool)
        yield world
    pools_world.clear()


def test_two_clusters_on_one_pool_through_kills_of_both_hubs_and_of_the_submitters(pools_world, other):
    clusters = (pools_world, other)
    site = pools_world.cluster.sites[POOLS[0]]
    mine, theirs = (
        [world.run("sleep 15; echo once", pool) for pool in POOLS for _ in range(EACH)] for world in clusters
    )
    doomed = pools_world.run("sleep 600", POOLS[0])
    for world, pods in zip(clusters, ([*mine, doomed], theirs), strict=True):
        for pod in pods:
            world.taken(pod)
    # both hubs and the submitters are down; a pod that is removed by force meanwhile leaves an orphan
    for world in clusters:
        world.cluster.kill("podbridge")
    for pool in POOLS:
        pools_world.cluster.kill(f"{pool}-submitter")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{doomed['metadata']['name']}"
    pools_world.api("DELETE", path, {"gracePeriodSeconds": 0})
    for pool in POOLS:
        pools_world.cluster.start_submitter(pool)
    other.restart()
    pools_world.cluster.start_podbridge()
    eventually(lambda: doomed["metadata"]["uid"] not in pools_world.jobs_at(POOLS[0]), "the orphan's end", 60)
    for world, pods in zip(clusters, (mine, theirs), strict=True):
        for pod in pods:
            found = world.ended(pod)
            assert found["status"]["phase"] == "Succeeded", found["status"]
            assert world.logs(pod) == "once\n"
    folders = {uid for pool in POOLS for uid in pools_world.jobs_at(pool)}
    assert folders == {pod["metadata"]["uid"] for pod in (*mine, *theirs)}
    assert (site.work / "jobs").is_dir()


def test_a_pod_removed_in_one_cluster_leaves_the_other_s_jobs(pools_world, other):
    stays = other.run("sleep 20; echo stays", POOLS[0])
    goes = pools_world.run("sleep 600", POOLS[0])
    other.running(stays)
    pools_world.running(goes)
    pools_world.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods", {"gracePeriodSeconds": 0})
    eventually(lambda: goes["metadata"]["uid"] not in pools_world.jobs_at(POOLS[0]), "its end", 60)
    time.sleep(2)  # the first hub has had its snapshot, and has no other orphans
    assert stays["metadata"]["uid"] in pools_world.jobs_at(POOLS[0])
    assert other.ended(stays)["status"]["phase"] == "Succeeded"
    assert other.logs(stays) == "stays\n"
    other.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods", {"gracePeriodSeconds": 1})
    eventually(lambda: not pools_world.jobs_at(POOLS[0]), "no job left", 60)


def test_without_slurm_a_pod_that_asks_for_no_pool_says_so_or_stays_with_the_default_scheduler(other):
    def scheduler(pod):
        return other.get(pod)["spec"]["schedulerName"]

    waits = other.create()
    said = eventually(lambda: other.condition(waits, "PodScheduled").get("message"), "the condition", 15)
    assert said == NO_POOL
    assert scheduler(waits) != "default-scheduler"
    other.cluster.stop_podbridge()
    try:
        other.restart(otherPods="default-scheduler")
        stays = eventually(lambda: _left_alone(other), "taken by nobody", 15)
        other.delete(stays, grace=0)
    finally:
        other.cluster.stop_podbridge()
        other.restart()
        other.delete(waits, grace=0)


def _left_alone(world):
    """Create a pod and return it if admission left it to the default scheduler; else delete it."""
    pod = world.create()
    if pod["spec"]["schedulerName"] == "default-scheduler":
        return pod
    world.delete(pod, grace=0)
    return None
