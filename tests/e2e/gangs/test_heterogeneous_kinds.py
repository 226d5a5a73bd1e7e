"""Groups of real controllers whose pods request different resources: one Slurm job with a component for each shape."""

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.e2e.gangs.test_gang_kinds import bound, create, labelled, template

pytestmark = pytest.mark.real

SMALL, LARGE = "1", "64"


def components(world, pods, size):
    """Return the names of the pods on the nodes of each component of the group's job, the first component first."""
    members = eventually(lambda: pods() if len(pods()) == size and all(map(bound, pods())) else None, "all bound", 40)
    (job,) = {world.job_of(pod) for pod in members}
    lines = world.slurm("scontrol", "--oneliner", "show", "job", str(job)).splitlines()
    lists = [dict(word.partition("=")[::2] for word in line.split())["NodeList"] for line in lines]
    hosts = [world.slurm("scontrol", "show", "hostnames", names).split() for names in lists]
    return job, [sorted(pod["metadata"]["name"] for pod in members if bound(pod) in names) for names in hosts]


def test_a_jobset_with_a_driver_and_larger_workers_starts_as_one_job_and_completes(world):
    def replicated(name, size, cpu):
        spec = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
        spec["template"] = template(world, run="4", cpu=cpu, restartPolicy="Never")
        return {"name": name, "replicas": 1, "template": {"spec": spec}}

    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
    metadata = {"name": "mixed", "annotations": {"bridge.vk.io/gang": "all"}}
    spec = {"replicatedJobs": [replicated("driver", 1, SMALL), replicated("workers", 2, LARGE)]}
    world.api(
        "POST", path, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
    )
    job, (workers, driver) = components(world, labelled(world, "jobset.sigs.k8s.io/jobset-name=mixed"), 3)
    assert [name.rpartition("-")[0] for name in (*driver, *workers)] == [
        "mixed-driver-0-0",
        "mixed-workers-0-0",
        "mixed-workers-0-1",
    ]

    def completed():
        conditions = world.api("GET", f"{path}/mixed").get("status", {}).get("conditions") or ()
        return any(c["type"] == "Completed" and c["status"] == "True" for c in conditions)

    eventually(completed, "the JobSet completed", 40)
    eventually(lambda: job not in world.queue(), "its job gone")


def test_a_leader_with_a_template_of_its_own_starts_with_its_workers(world):
    parts = {"size": 3, "leaderTemplate": template(world, cpu=SMALL), "workerTemplate": template(world, cpu=LARGE)}
    spec = {"replicas": 1, "leaderWorkerTemplate": parts}
    path = create(world, "leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", "mixed", spec)
    pods = labelled(world, "leaderworkerset.sigs.k8s.io/name=mixed")
    job, names = components(world, pods, 3)
    assert names == [["mixed-0-1", "mixed-0-2"], ["mixed-0"]]
    eventually(lambda: world.api("GET", path).get("status", {}).get("readyReplicas") == 1, "the replica is ready")
    world.api("DELETE", path)
    eventually(lambda: job not in world.queue(), "its job gone", 40)
