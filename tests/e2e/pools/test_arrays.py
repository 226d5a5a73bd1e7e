"""The pods of an Indexed Job as one array of a site's Slurm."""

import pytest

from cluster.polling import eventually
from tests.e2e.pools.groups import JOBS, SIZE, delete, nothing_left, start

pytestmark = pytest.mark.real
SITE = "slurm-site"


def test_an_indexed_job_is_one_array_and_a_pod_that_fails_is_repeated_alone(pools_world):
    world, name = pools_world, "array"
    script = 'echo "task $JOB_COMPLETION_INDEX"; [ $JOB_COMPLETION_INDEX != 1 ] || exit 3'
    spec = {"backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 1, "maxFailedIndexes": SIZE}
    pods = start(world, name, SITE, script, of_job={"bridge.vk.io/array": "true"}, **spec)
    ends = [world.ended(pod) for pod in pods]
    assert [world.logs(pod) for pod in ends] == [f"task {index}\n" for index in range(SIZE)]
    assert [pod["status"]["phase"] for pod in ends] == ["Succeeded", "Failed", "Succeeded"]
    ids = [world.remote_job(pod).partition("/")[2] for pod in ends]
    (array,) = {job.partition("_")[0] for job in ids}
    assert sorted(job.partition("_")[2] for job in ids) == [str(index) for index in range(SIZE)]
    listed = world.cluster.site_slurm(SITE, "squeue", "--noheader", "--states=all", "--format=%F", "--jobs", array)
    assert set(listed.split()) == {array}

    def repeated():
        status = world.api("GET", f"{JOBS}/{name}")["status"]
        return (status.get("succeeded"), status.get("failedIndexes")) == (SIZE - 1, "1")

    eventually(repeated, "index 1 has failed twice", 60)
    delete(world, name)
    nothing_left(world, SITE)
