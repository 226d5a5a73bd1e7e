"""The pods of Indexed Jobs as arrays of a site's Slurm and of a site's HTCondor."""

import pytest

from cluster.polling import eventually
from tests.e2e.pools.groups import JOBS, SIZE, delete, members, nothing_left, start

pytestmark = pytest.mark.real
SCRIPT = 'echo "task $JOB_COMPLETION_INDEX"; [ $JOB_COMPLETION_INDEX != 1 ] || exit 3'


def test_an_indexed_job_is_one_array_and_a_pod_that_comes_later_is_alone(pools_world):
    world = pools_world
    # the last pod is created when one of the first has ended
    spec = {"completions": SIZE + 1, "backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 0, "maxFailedIndexes": SIZE}
    array = {"bridge.vk.io/array": "true"}
    pods = {site: start(world, site, site, SCRIPT, of_job=array, **spec) for site in ("slurm-site", "condor-site")}
    ids = {site: check_ends(world, site, first_pods) for site, first_pods in pods.items()}
    *first, last = ids["slurm-site"]
    (array,) = {job.partition("_")[0] for job in first}
    assert (sorted(first), last.isdigit()) == ([f"{array}_{index}" for index in range(SIZE)], True)
    squeue = ("squeue", "--noheader", "--states=all", "--format=%F", "--jobs", array)
    assert set(world.cluster.site_slurm("slurm-site", *squeue).split()) == {array}
    *first, last = ids["condor-site"]
    (array,) = {job.partition(".")[0] for job in first}
    assert (sorted(first), last.partition(".")[0] != array) == ([f"{array}.{index}" for index in range(SIZE)], True)
    batch_names = world.cluster.sites["condor-site"].run("condor_q", array, "-af", "JobBatchName")
    assert len(set(batch_names.split())) == 1
    for site in pods:
        delete(world, site)
    for site in pods:
        nothing_left(world, site)


def check_ends(world, name, first_pods):
    """Check how all pods of a Job end; return the ids of their batch jobs at the site."""
    pods = eventually(lambda: len(found := members(world, name)) == SIZE + 1 and found, "the last pod")
    assert {pod["metadata"]["uid"] for pod in first_pods} <= {pod["metadata"]["uid"] for pod in pods}
    ends = [world.ended(pod) for pod in pods]
    assert [world.logs(pod) for pod in ends] == [f"task {index}\n" for index in range(SIZE + 1)]
    assert [pod["status"]["phase"] for pod in ends] == ["Succeeded", "Failed", "Succeeded", "Succeeded"]

    def is_over():
        status = world.api("GET", f"{JOBS}/{name}")["status"]
        return (status.get("succeeded"), status.get("failedIndexes")) == (SIZE, "1")

    eventually(is_over, "index 1 alone has failed", 60)
    return [world.remote_job(pod).partition("/")[2] for pod in ends]
