"""The hub in memory while the jobs of a pod or a gang cannot be used: how many it submits, how long it keeps one."""

import pytest

from bridge import names
from bridge.workload import pods
from bridge.workload.devices.claimed_devices import DevicesNotReadyError, WrongDevicesError
from tests.fakes.memory_world import MemoryWorld, path_of

STEP = 0.5


def world_of(*units):
    world = MemoryWorld()
    world.finalizers = [names.FINALIZER]
    for place in world.absent():
        if place[0] in units:
            world.create(place)
    return world


def look(world, seconds=STEP):
    hub = world.hub
    hub.clock.advance(seconds)
    hub.poller.poll()
    for loop in hub.loops:
        hub.deliver()
        loop.reconcile()
        hub.run_all()


def start(world):
    for job in world.jobs("PENDING"):
        world.hub.slurm.start(job)


def end(world, state):
    for job in world.hub.slurm.live():
        world.hub.slurm.moved.add(job.job_id)
        job.set(state)


def conditions(world):
    return {pods.condition(pod, names.POD_SCHEDULED).get("reason") for pod in world.hub.kube.pods()}


@pytest.mark.parametrize("unit", ["alone", "train"])
def test_jobs_that_always_end_before_the_bind_are_few_and_the_pods_say_so(unit):
    world = world_of(unit)
    for _ in range(1200):
        look(world)
        start(world)
        end(world, "FAILED")
    assert len(world.hub.slurm.jobs) == 8  # after 0, 5, 10, 20, 40, 80 and 160 s
    assert conditions(world) == {"JobFailed"}


def test_an_end_before_a_binding_does_not_count_after_it():
    world = world_of("train")
    for _ in range(3):
        look(world)
        end(world, "NODE_FAIL")
        look(world)
        look(world)  # a second answer confirms the end
        assert len(world.jobs("PENDING")) == 1
        start(world)
        look(world)
        assert len(world.running()) == 3
        for pod in world.running():
            world.finish(pod, "Failed")
            world.hub.kube.request_deletion(path_of(pod))
        for _ in range(3):
            look(world)
        for place in world.absent():
            if place[0] == "train":
                world.create(place)


def test_jobs_that_podbridge_cancels_because_they_cannot_be_used_are_few():
    def wrong(binds):
        raise WrongDevicesError("the devices of the job are not those of the driver")

    world = world_of("alone")
    world.hub.scheduler.slurm._actor._claims.allocate = wrong
    for _ in range(1200):
        look(world)
        start(world)
    assert len(world.hub.slurm.jobs) in (7, 8)  # after 5, 10, 20, 40, 80, 160 and 300 s, less the jitter
    assert conditions(world) == {"NodeRefused"}


def test_a_job_keeps_its_node_for_a_limited_time_while_its_devices_are_not_ready():
    tries, taken = [], True

    def allocate(binds):
        tries.append(binds)
        if taken:
            raise DevicesNotReadyError("device gpu-0 is allocated to ResourceClaim other/x")

    world = world_of("alone")
    world.hub.scheduler.slurm._actor._claims.allocate = allocate
    for _ in range(int(world.hub.config.busy_node_timeout) - 5):
        look(world, 1)
        start(world)
    assert [job.state for job in world.hub.slurm.jobs.values()] == ["RUNNING"]
    assert conditions(world) == {"DevicesNotReady"}
    assert len(tries) > 100
    for _ in range(20):
        look(world, 1)
        start(world)
    first, second = world.hub.slurm.jobs.values()
    assert (first.state, second.state) == ("CANCELLED", "RUNNING")
    taken = False
    look(world)
    look(world)
    assert [pods.job_id(pod) for pod in world.running()] == [second.job_id]
