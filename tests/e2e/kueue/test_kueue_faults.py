"""podbridge and Kueue are killed while workloads are admitted, run and end; admissions never exceed the capacity."""

import signal
import time

import pytest

from cluster import pools
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.systems import kueue
from tests.e2e.kueue.capacity import CapacityWatch

pytestmark = pytest.mark.real
ROUNDS, FEW, JOBS = 6, 2, 6
"""Rounds of a long and of a short run; in each, one process is killed while this number of Jobs is created."""
QUOTA = 2
"""CPUs of each site; with more Jobs than both have, some wait for quota while a process is killed."""


def killed(world, process):
    """Kill a process with SIGKILL, and start it again after a moment."""
    world.cluster.kill(process, signal.SIGKILL)
    time.sleep(1)
    if process == kueue.KUEUE:
        world.cluster.start_daemon(process)
    else:
        world.cluster.start_podbridge()


def create_queued(world, **options):
    """Create a Job; Kueue's webhook refuses it while Kueue is down."""

    def attempt():
        try:
            return world.queued(**options)
        except ClusterError as error:
            if "webhook" not in str(error):
                raise
            return None

    return eventually(attempt, "the Job is created", 60)


def test_each_job_runs_once_while_podbridge_and_kueue_are_killed(world, long, report):
    name = f"kills-{next(world.counts)}"
    flavors = [{"name": "sites", "nominalQuota": {"cpu": QUOTA}, "poolFlavor": {"poolRegExp": "-site$"}}]
    path = world.master_queue(name, flavors)
    world.both_offered(name)
    options = {"namespace": pools.NAMESPACE, "script": "sleep 2", "tolerations": [kueue.TOLERATION]}
    by_flavor = {f"{name}-sites-{pool}": pool for pool in world.cluster.sites}
    jobs = []
    with CapacityWatch(world, name, by_flavor, dict.fromkeys(by_flavor, QUOTA)) as watch:
        for number in range(ROUNDS if long else FEW):
            jobs += [create_queued(world, queue=name, **options) for _ in range(JOBS // 2)]
            killed(world, (kueue.KUEUE, "podbridge")[number % 2])
            jobs += [create_queued(world, queue=name, **options) for _ in range(JOBS // 2)]
        for job in jobs:
            world.completed(job, 180)
            pods = world.members(job)
            assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"], job["metadata"]["name"]
    report(str(watch))
    assert watch.problems == []
    assert watch.looks >= 10
    assert QUOTA in watch.peak.values(), "a site was full"
    assert world.queue_state(path)[0] == "InStep"
    assert all(cpus == str(QUOTA) for cpus in world.offered(name).values())
    eventually(lambda: not any(world.reserved(name).values()), "no quota is left behind", 60)
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)
