"""Slurm takes the nodes of pods for an urgent one: it suspends their jobs and resumes them, or it ends them."""

import pytest

from cluster import Cluster
from cluster.polling import eventually
from cluster.world import World
from tests.parts import SLURMS

pytestmark = pytest.mark.real

SUSPENDED = "bridge.vk.io/JobSuspended"
CONF = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=SUSPEND,GANG",
    "PartitionName=urgent Nodes=node-0 PriorityTier=10 MaxTime=INFINITE State=UP",
)


# the id of the first one has no version: the process of the main version's other tests would start this cluster, too
@pytest.fixture(params=SLURMS, ids=("main", *SLURMS[1:]))
def suspending(request, state_folder):
    """A cluster with one node, whose Slurm preempts by suspending."""
    options = {"nodes": 1, "gpus": 0, "slurm_conf": CONF, "podbridge": {"slurm": {"pollIdle": 0.5}}}
    with Cluster(state_folder / f"suspend-{request.param}", slurm=request.param, **options) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


def test_a_pod_whose_job_is_suspended_for_another_goes_on_when_it_is_resumed(suspending):
    world = suspending
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
    report = world.explained("pod", urgent["metadata"]["name"])
    assert report["summary"].startswith("pending: NodeBusy: ")
    assert report["next"] == "wait until the pods in the message have ended"
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


def test_a_pod_whose_job_is_preempted_by_requeue_ends_and_its_job_is_not_requeued(clean):
    """Placeholder jobs are not requeued, so Slurm cancels them in this mode too. test_story.py has the mode CANCEL."""
    world = clean
    assert "PreemptMode=REQUEUE" in world.slurm("scontrol", "show", "partition", "requeue")
    low = [world.create(cpu="120", job={"partition": "requeue"}) for _ in range(4)]
    jobs = {pod["metadata"]["name"]: world.job_of(world.running(pod)) for pod in low}
    urgent = world.running(world.create(cpu="100", job={"partition": "urgent"}))
    victim = eventually(lambda: next((pod for pod in low if world.events(pod, "Preempted")), None), "one of them told")
    world.gone(victim)
    ended = world.job(jobs.pop(victim["metadata"]["name"]))
    assert (ended["JobState"], ended["Restarts"]) == ("PREEMPTED", "0")
    world.polled()
    assert world.queue() == dict.fromkeys([*jobs.values(), world.job_of(urgent)], "RUNNING")
    assert all(world.get(pod)["status"]["phase"] == "Running" for pod in [*low, urgent] if pod is not victim)
