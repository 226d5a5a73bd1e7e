"""Two clusters share the pools of one nats-server: neither changes the jobs of the other, also after kills."""

import pytest

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
        return {"managedNamespaces": ["slurm-bridge", NAMESPACE], "slurmRestApi": "", "pools": {**reached, **more}}

    with Cluster(state_folder / "other", slurm=None, nodes=0) as cluster:
        cluster.add_namespace(NAMESPACE, {"bridge.vk.io/pools": "*"})
        cluster.start_podbridge(config_overrides=overrides())
        world = PoolWorld(cluster)
        world.restart = lambda **more: cluster.start_podbridge(config_overrides=overrides(**more))
        for pool in POOLS:
            world.ready(pool)
        yield world
        world.clear()
        pools_world.clear()  # also the jobs of the other cluster, whose hub releases them after their pods are gone


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
