"""podbridge is killed (SIGKILL) after its N-th call: one job per pod, all pods bound, nothing left behind.

A short run tries every seventh N. A long run (``./hack/test.sh --long``) tries each, on each version of Slurm.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.polling import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

MOST_CALLS = 200
SHORT_STRIDE = 7
PODS = 2


@pytest.fixture
def run(bare_world):
    """Return a function that starts the process that kills itself after ``limit`` calls, and returns its Popen."""
    cluster = bare_world.cluster
    settings = yaml.safe_load((cluster.state / "podbridge.yaml").read_text())
    settings |= {"leaderElection": {"leaderElect": False}, "serving": {"healthPort": None, "metricsPort": None}}
    file = cluster.state / "killed.yaml"
    file.write_text(yaml.safe_dump(settings))
    env = {**os.environ, **cluster.env, "KUBECONFIG": str(cluster.podbridge_kubeconfig)}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    log = (cluster.state / "logs" / "killed.log").open("w")
    started = []

    def start(limit):
        command = [sys.executable, str(Path(__file__).parent / "killed.py"), str(limit), str(file)]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    log.close()
    print(Path(log.name).read_text()[-20_000:])  # shown when the test has failed


def over(world, pod):
    found = world.get(pod)
    return found["status"]["phase"] == "Succeeded" and not found["metadata"].get("finalizers")


def test_kill_after_every_call(bare_world, run, long, report):
    world = bare_world
    stride = 1 if long else SHORT_STRIDE
    killed = 0
    for limit in range(1, MOST_CALLS, stride):
        pods = [world.create(run="1") for _ in range(PODS)]
        victim = run(limit)
        eventually(
            lambda v=victim, p=pods: v.poll() is not None or all(over(world, x) for x in p), "killed, or all done", 60
        )
        survived = victim.poll() is None
        if survived:
            victim.kill()
            victim.wait()
        else:
            killed += 1
            assert victim.returncode == -9, f"ended by itself with {victim.returncode} before call {limit}"
            healer = run(0)
            eventually(lambda p=pods: all(over(world, x) for x in p), f"all done after a kill at call {limit}", 60)
            healer.kill()
            healer.wait()
        jobs = world.jobs_by_uid()
        for pod in pods:
            own = jobs.get(pod["metadata"]["uid"], [])
            assert len(own) == 1, f"killed after call {limit}: {pod['metadata']['name']} had jobs {own}"
            assert world.get(pod)["spec"]["nodeName"] == world.job(own[0][0])["NodeList"]
        eventually(lambda: not world.queue(), "no job left")
        for pod in pods:
            world.delete(pod, grace=0)
        if survived:
            break
    assert survived, f"still being killed after {MOST_CALLS} calls"
    assert killed * stride >= 15, f"only {killed} calls were tried"
    which = "each call" if long else f"one call in {stride} (--long: each)"
    report(f"killed {killed} times, after {which}, {killed * PODS} pods: 0 lost, 0 doubled, 0 orphaned")
