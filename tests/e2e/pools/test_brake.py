"""A site whose batch system has lost all jobs: the mass-termination guard holds their pods until it is confirmed."""

import subprocess
import time

import pytest

from cluster.polling import eventually

pytestmark = pytest.mark.real

POOL = "local-site"
BRAKE = f"pool.{POOL}"
SLEEP = "4711"
"""Seconds for which the jobs sleep: a number that no other process on the machine uses."""


def podbridge(world, *args):
    command = [str(world.cluster.state / "bin" / "podbridge"), *args]
    command += ["--config", str(world.cluster.state / "podbridge.yaml"), "--kubeconfig", str(world.cluster.kubeconfig)]
    env = {**world.cluster.env, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def metric(world, name):
    return world.metric(name, brake=BRAKE)


def sleepers():
    """Return the processes of the jobs on this machine."""
    found = subprocess.run(["pgrep", "-x", "-f", f"sleep {SLEEP}"], capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.fixture
def records(pools_world):
    """Return a function that removes the batch system's records, or restores them."""
    cluster = pools_world.cluster
    there = cluster.sites[POOL].work / "local"
    away = there.with_name("local-away")

    def move(*, back):
        cluster.stop_submitter(POOL)
        if back:
            subprocess.run(["rm", "-r", str(there)], check=True)
            away.rename(there)
        else:
            there.rename(away)
        cluster.start_submitter(POOL, {"batch": {"lost_after": 1}})
        pools_world.ready(POOL)

    yield move
    cluster.stop_submitter(POOL)
    subprocess.run(["rm", "-rf", str(away)], check=True)
    cluster.start_submitter(POOL)
    pools_world.ready(POOL)


def test_a_batch_system_without_its_records_ends_no_pod_until_confirmed(pools_world, records):
    """The records of 12 jobs are removed: no pod ends. They are restored, then removed again and confirmed."""
    world = pools_world
    world.clear()
    pods = [world.run(f"sleep {SLEEP}", POOL) for _ in range(12)]
    for pod in pods:
        world.running(pod)
    eventually(lambda: len(sleepers()) == 12, "every job sleeps")

    def marked(value):
        return all(world.condition(pod, "bridge.vk.io/JobMissing").get("status") == value for pod in pods)

    records(back=False)
    eventually(lambda: marked("True"), "every pod says that its job is missing", 40)
    told = podbridge(world, "brake", "status")
    assert f"{BRAKE}: engaged since" in told
    assert "the jobs of 12 of 12 pods are missing" in told
    assert (metric(world, "podbridge_brake_engaged"), metric(world, "podbridge_brake_held_pods")) == (1, 12)
    eventually(lambda: world.events(pods[0], "JobsMissing", pods[0]["metadata"]["namespace"]), "an Event")
    time.sleep(5)  # several queries of the batch system by the site
    assert {world.get(pod)["status"]["phase"] for pod in pods} == {"Running"}
    assert len(sleepers()) == 12, "the site ends no job of its own accord"

    records(back=True)
    eventually(lambda: marked("False"), "every pod says that its job is there", 40)
    eventually(lambda: "No brake is engaged" in podbridge(world, "brake", "status"), "no brake")
    assert metric(world, "podbridge_brake_engaged") == 0
    assert {world.get(pod)["status"]["phase"] for pod in pods} == {"Running"}
    assert world.ended(world.run("echo goes on", POOL))["status"]["phase"] == "Succeeded"
    first = pods.pop()
    world.delete(first, 1)
    world.gone(first, 30)

    records(back=False)
    eventually(lambda: f"{BRAKE}: engaged since" in podbridge(world, "brake", "status"), "the brake", 40)
    podbridge(world, "brake", "confirm", BRAKE)
    for pod in pods:
        ended = world.ended(pod, 30)
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", "JobLost")
    eventually(lambda: not sleepers(), "no job runs on", 30)
    eventually(lambda: "No brake is engaged" in podbridge(world, "brake", "status"), "no brake")
    world.clear()
