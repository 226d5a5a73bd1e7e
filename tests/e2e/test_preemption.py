"""Slurm suspends the jobs of pods for more urgent ones (PreemptMode=SUSPEND,GANG) and resumes them."""

import pytest

from cluster import Cluster
from cluster.polling import eventually
from cluster.world import World

pytestmark = [pytest.mark.real, pytest.mark.main_version]

SUSPENDED = "bridge.vk.io/JobSuspended"
CONF = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=SUSPEND,GANG",
    "PartitionName=urgent Nodes=node-0 PriorityTier=10 MaxTime=INFINITE State=UP",
)


@pytest.fixture
def world(state_folder):
    """A cluster with one node, whose Slurm preempts by suspending."""
    options = {"nodes": 1, "gpus": 0, "slurm_conf": CONF, "podbridge": {"slurm": {"pollIdle": 0.5}}}
    with Cluster(state_folder / "e2e-suspend", **options) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


def test_a_pod_whose_job_is_suspended_for_another_goes_on_when_it_is_resumed(world):
    pod = world.running(world.create(cpu="100"))
    job = world.labelled(pod)
    urgent = world.create(cpu="100", job={"partition": "urgent"})
    other = world.labelled(urgent)
    eventually(lambda: world.queue().get(job) == "SUSPENDED", "preempted")
    assert world.queue()[other] == "RUNNING"
    eventually(lambda: world.condition(pod, SUSPENDED).get("status") == "True", "the condition", 20)
    # the containers of the suspended job's pod continue: their CPUs are not free for the urgent pod
    busy = eventually(lambda: world.condition(urgent, "PodScheduled").get("reason") == "NodeBusy", "no room", 20)
    assert busy
    assert not world.get(urgent)["spec"].get("nodeName")
    assert world.get(pod)["status"]["phase"] == "Running"
    world.delete(urgent)
    world.gone(urgent)
    eventually(lambda: world.queue().get(job) == "RUNNING", "resumed")
    eventually(lambda: world.condition(pod, SUSPENDED).get("status") == "False", "the condition", 20)
    world.polled()
    found = world.get(pod)
    assert found["status"]["phase"] == "Running"
    assert not found["metadata"].get("deletionTimestamp")
