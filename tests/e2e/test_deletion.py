"""``kubectl delete`` of a pod in each phase before it runs: the pod goes at once, and no job of it is left.

test_story.py deletes pods with a pending job and running ones, test_power_saving.py one whose node starts.
"""

import signal
import time
from contextlib import contextmanager

import pytest

from cluster.polling import eventually
from tests.e2e.test_dra import CLAIMS, claim
from tests.e2e.test_volumes import unprovisioned
from tests.fakes.device_drivers import GPU, GPUS, publish

pytestmark = pytest.mark.real


def waits(world, pod, reason, words=""):
    """Wait until the pod says why it waits; return the pod."""

    def told():
        condition = world.condition(pod, "PodScheduled")
        return condition.get("reason") == reason and words in condition["message"]

    eventually(told, f"{reason} {words}")
    return pod


def jobs(world, pod):
    """Return the ids of all jobs that Slurm knows of the pod, also of ended ones."""
    return {job for job, _ in world.jobs_by_uid().get(pod["metadata"]["uid"], ())}


def live(world):
    """Return the ids of the jobs that are neither over nor ending. A job is cancelled before its pod goes."""
    return {job for job, state in world.queue().items() if state != "COMPLETING"}


@contextmanager
def gated(world):
    pod = world.create(schedulingGates=[{"name": "example.com/test"}])
    world.running(world.create())  # the scheduler has seen the first pod before
    assert not jobs(world, pod)
    yield pod


@contextmanager
def held(world):
    world.slurm("scontrol", "update", "partitionname=short", "state=down")
    try:
        pod = world.create(job={"partition": "short"})
        (job,) = eventually(lambda: jobs(world, pod), "its job")
        world.slurm("scontrol", "hold", str(job))
        yield waits(world, pod, "SlurmPending", "JobHeld")
    finally:
        world.slurm("scontrol", "update", "partitionname=short", "state=up")


@contextmanager
def node_busy(world):
    """The pod gets the node of a pod whose job has ended and whose containers have not."""
    others = [world.create(cpu="100") for _ in range(4)]
    ended, *_ = [world.running(other) for other in others]
    world.cluster.kill("kwok", signal.SIGSTOP)
    try:
        world.slurm("scancel", str(world.job_of(ended)))
        yield waits(world, world.create(cpu="100"), "NodeBusy")
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)


@contextmanager
def volume_binding(world):
    with unprovisioned(world) as volume:
        yield waits(world, world.create(volumes=[volume]), "VolumeBinding")


@contextmanager
def devices_not_ready(world):
    """Another claim has the devices of the node."""
    made = publish(world)
    try:
        holder = claim(world, "holder", (GPU, GPUS))
        made.append(f"{CLAIMS}/holder")
        results = [{"request": "r0", "driver": GPU, "pool": "node-0", "device": f"card-{n}"} for n in range(GPUS)]
        holder["status"] = {"allocation": {"devices": {"results": results}}}
        world.api("PUT", f"{CLAIMS}/holder/status", holder)
        claim(world, "wanted", (GPU, 1))
        made.append(f"{CLAIMS}/wanted")
        source = {"name": "d", "resourceClaimName": "wanted"}
        pod = world.create(resourceClaims=[source], nodeSelector={"kubernetes.io/hostname": "node-0"})
        yield waits(world, pod, "DevicesNotReady")
    finally:
        for path in reversed(made):
            world.api("DELETE", path)


NO_DEVICES = pytest.mark.not_on("24.11", "22.05", reason="Slurm does not show which devices a job has")
PHASES = [gated, held, node_busy, volume_binding, pytest.param(devices_not_ready, marks=NO_DEVICES)]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_a_pod_that_waits_goes_with_its_job(clean, phase):
    with phase(clean) as pod:
        left = jobs(clean, pod)
        assert len(left) == (0 if phase is gated else 1)
        clean.delete(pod)
        clean.gone(pod, 10)
        assert not live(clean) & left
        assert jobs(clean, pod) == left


def test_a_pod_that_is_deleted_while_it_is_submitted_leaves_no_job(clean):
    """The pods are deleted before the next poll, before and after the binding, and before slurmrestd has answered."""
    world, pods = clean, []

    def create_and_delete(after):
        pods.append(world.create())
        time.sleep(after)
        world.delete(pods[-1])

    def submitted():
        return world.jobs_by_uid().keys() & {pod["metadata"]["uid"] for pod in pods}

    while len(pods) < 10 or not submitted():
        assert len(pods) < 100, "all were deleted before their submission"
        create_and_delete(after=len(pods) * 0.02)
    for after in (0.5, 2, 8):
        world.cluster.kill("slurmrestd", signal.SIGSTOP)
        try:
            create_and_delete(after)
            time.sleep(0.5)
            left = world.get(pods[-1])
        finally:
            world.cluster.kill("slurmrestd", signal.SIGCONT)
        for pod in pods:
            world.gone(pod)
        if jobs(world, pods[-1]):  # the request was sent before the deletion: podbridge submits no deleted pod
            assert left and left["metadata"]["finalizers"], "the outcome of its submission is unknown"
            break
    else:
        pytest.fail("the last pod was deleted before its submission")
    assert not live(world)
