"""Slurm or Kubernetes is stopped, hangs or answers nonsense: no pod ends, and afterwards pods run again."""

import time

import pytest

from cluster.polling import eventually
from tests.fakes.faulty_proxy import FaultyProxy

# tests/contract/slurm/test_client.py shows on each version what slurmrestd answers without slurmctld
pytestmark = pytest.mark.real

ANSWERS, HANGS = 4, 3
"""Requests for each fault; podbridge terminates a pod after three answers. Of requests that hang, each waits longer."""
AWAY, LONG_AWAY = 12.0, 60.0
"""Seconds without slurmctld."""
API_AWAY = 5.0
"""Seconds without the API server: shorter than the lease."""


@pytest.fixture
def proxied(clean):
    """The world; its podbridge reaches slurmrestd through a proxy with faults."""
    world = clean
    with FaultyProxy(world.cluster.slurm_rest_url) as proxy:
        world.cluster.stop_podbridge()

        def start():
            world.cluster.start_podbridge(config_overrides={"slurmRestApi": proxy.url, "slurm": {"readTimeout": 2}})

        start()
        yield world, proxy, start
        proxy.fault = None
        world.cluster.stop_podbridge()
    world.cluster.start_podbridge()


def test_nothing_ends_while_slurm_or_kubernetes_is_away(proxied, long):
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

    def forwarded(count):
        before = proxy.forwarded
        eventually(lambda: proxy.forwarded >= before + count, f"{count} answers of slurmrestd")

    for fault in (404, 502, 200, "hang", "reset"):
        wanted = proxy.faults + (HANGS if fault == "hang" else ANSWERS)
        proxy.fault = fault
        eventually(lambda n=wanted: proxy.faults >= n, f"enough requests that got {fault}", 60)
        nothing_ended(fault)
        proxy.fault = None
        forwarded(ANSWERS)
        nothing_ended(fault)

    away = LONG_AWAY if long else AWAY
    world.cluster.stop_daemon("slurmctld")
    stopped_at = time.monotonic()
    late = world.create(cpu="1")
    time.sleep(max(0.0, stopped_at + away - time.monotonic()))
    nothing_ended(f"slurmctld stopped for {away:.0f} s")
    eventually(lambda: world.condition(late, "PodScheduled").get("reason", "").startswith("Slurm"), "a condition")
    world.cluster.start_daemon("slurmctld")
    world.running(late, 60)
    nothing_ended("slurmctld back")

    world.cluster.stop_daemon("kube-apiserver")
    time.sleep(API_AWAY)
    world.cluster.start_daemon("kube-apiserver")
    nothing_ended("kube-apiserver restarted")
    before = proxy.forwarded
    eventually(
        lambda: proxy.forwarded > before + ANSWERS or not world.cluster.pid("podbridge"), "podbridge polls or ends"
    )
    if world.cluster.pid("podbridge") is None:
        # a hub that loses its lease ends, and Kubernetes starts it again
        assert "leader lease lost" in world.cluster.processes.log("podbridge").read_text()
        start()
    eventually(lambda: world.cluster.pid("kwok") or world.cluster.start_daemon("kwok"), "kwok again")

    world.delete(pods[0], grace=1)
    world.running(waiting, 60)
    assert world.job_of(world.get(waiting)) == jobs[waiting["metadata"]["uid"]]
    counts = world.jobs_by_uid()
    assert all(len(counts[pod["metadata"]["uid"]]) == 1 for pod in [*pods[1:], waiting, late])
