"""Slurm or Kubernetes away, hanging or talking nonsense: nothing ends, everything goes on."""

import time

import pytest

from cluster.polling import eventually
from tests.fakes.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.real


@pytest.fixture
def proxied(clean):
    """The world, its podbridge speaking to slurmrestd through a proxy that can misbehave."""
    world = clean
    with FaultyProxy(world.cluster.slurm_rest_url) as proxy:
        world.cluster.stop_podbridge()

        def start():
            world.cluster.start_podbridge(config_overrides={"slurmRestApi": proxy.url, "slurm": {"readTimeout": 4}})

        start()
        yield world, proxy, start
        proxy.fault = None
        world.cluster.stop_podbridge()
    world.cluster.start_podbridge()


def test_nothing_ends_while_slurm_or_kubernetes_is_away(proxied):
    world, proxy, start = proxied
    pods = [world.create(cpu="120") for _ in range(4)]
    for pod in pods:
        world.running(pod)
    waiting = world.create(cpu="64")
    jobs = {pod["metadata"]["uid"]: world.labelled(pod) for pod in [*pods, waiting]}

    def nothing_ended(what):
        for pod in pods:
            found = world.get(pod)
            assert found and found["status"]["phase"] == "Running", what
            assert not found["metadata"].get("deletionTimestamp"), what
            assert world.job_of(found) == jobs[pod["metadata"]["uid"]], what
        found = world.get(waiting)
        assert found and world.job_of(found) == jobs[waiting["metadata"]["uid"]], what

    for fault in (404, 502, 200, "hang", "reset"):
        proxy.fault = fault
        time.sleep(8)
        nothing_ended(fault)
        proxy.fault = None
        time.sleep(2)
        nothing_ended(fault)

    world.cluster.stop_daemon("slurmctld")
    late = world.create(cpu="1")
    time.sleep(60)
    nothing_ended("slurmctld stopped for 60 s")
    told = world.condition(late, "PodScheduled")
    assert told.get("reason", "").startswith("Slurm"), told
    world.cluster.start_daemon("slurmctld")
    world.running(late, 60)
    nothing_ended("slurmctld back")

    world.cluster.stop_daemon("kube-apiserver")
    time.sleep(5)
    world.cluster.start_daemon("kube-apiserver")
    nothing_ended("kube-apiserver restarted")
    time.sleep(3)
    if world.cluster.pid("podbridge") is None:
        # away for longer than its lease, it has ended, as it should: Kubernetes starts it again
        assert "leader lease lost" in world.cluster.processes.log("podbridge").read_text()
        start()
    eventually(lambda: world.cluster.pid("kwok") or world.cluster.start_daemon("kwok"), "kwok again")

    world.delete(pods[0], grace=1)
    world.running(waiting, 60)
    assert world.job_of(world.get(waiting)) == jobs[waiting["metadata"]["uid"]]
    counts = world.jobs_by_uid()
    assert all(len(counts[pod["metadata"]["uid"]]) == 1 for pod in [*pods[1:], waiting, late])
