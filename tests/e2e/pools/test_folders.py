"""Submitters of one pool with different folders: the node reports it, and no job is ended, lost or run twice."""

import time

import pytest

from bridge import names
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE

pytestmark = pytest.mark.real
POOL = "slurm-site"


def ready(world: PoolWorld):
    condition = world.readiness(POOL)
    return condition.get("reason"), condition.get("message", "")


def batch_jobs(world, pod):
    """Return the ids of the pod's batch jobs in Slurm."""
    names_of = world.cluster.sites[POOL].run(
        "squeue", "--noheader", "--format=%i", f"--name=pb-{pod['metadata']['uid']}"
    )
    return names_of.split()


def test_two_folders_for_one_pool_end_nothing_and_are_said_on_the_node(pools_world):
    world, cluster = pools_world, pools_world.cluster
    world.clear()
    own = (cluster.sites[POOL].work / "id").read_text().strip()
    stays, release = world.held("echo stays", POOL)
    goes = world.run("sleep 600", POOL)
    for pod in (stays, goes):
        world.running(pod)
    try:
        other = {"folder": "/srv/home/another"}
        cluster.start_submitter(POOL, overrides=other, number=2)
        eventually(lambda: ready(world)[0] == "SiteProblem", "the problem", 40)
        another = (cluster.sites[POOL].folder / "home" / "another" / "id").read_text().strip()
        assert own in ready(world)[1]
        assert another in ready(world)[1]
        # a request reaches the submitter that has the job
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{goes['metadata']['name']}"
        world.api("DELETE", path, {"gracePeriodSeconds": 1})
        eventually(
            lambda: not batch_jobs(world, goes) and goes["metadata"]["uid"] not in world.jobs_at(POOL), "its end", 60
        )
        # a new hub hears only the submitter without the pool's jobs
        cluster.kill(f"{POOL}-submitter")
        cluster.stop_podbridge()  # a clean stop releases the lease; after a kill the next hub would wait
        cluster.start_podbridge()
        eventually(lambda: "only another is announced" in ready(world)[1], "the problem", 40)
        time.sleep(12)  # twice the time of two answers, after which the job would be lost
        assert world.get(stays)["status"]["phase"] == "Running"
        assert len(batch_jobs(world, stays)) == 1
        assert not list((cluster.sites[POOL].folder / "home" / "another" / "jobs").iterdir())
    finally:
        cluster.stop_submitter(POOL, number=2)
        cluster.start_submitter(POOL)
    world.ready(POOL, 60)
    release()
    assert world.kube_node(POOL)["metadata"]["annotations"][names.SITE_FOLDER] == own
    assert world.ended(stays, 90)["status"]["phase"] == "Succeeded"
    assert world.logs(stays) == "stays\n"
    world.clear()
