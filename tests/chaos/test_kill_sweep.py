"""podbridge is killed (SIGKILL) after its N-th call: one job per pod and per gang, all bound, nothing left behind.

The pod has a claim for a local volume and one for a provisioner, which the test plays. A short run tries every ninth N.
A long run (``./hack/test.sh --long``) tries each, on each version of Slurm.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.polling import eventually
from cluster.world import NAMESPACE

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

MOST_CALLS = 200
SHORT_STRIDE = 9
PODS = 1
MEMBERS = 3
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
LOCAL, MADE = "sweep-local", "sweep-made"
SELECTED = "volume.kubernetes.io/selected-node"


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


def claim(name, storage_class):
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**asked, "storageClassName": storage_class}}


def volume(name, node, storage_class, ref=None):
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": storage_class}
    spec |= {"local": {"path": "/mnt"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    return {"metadata": {"name": name}, "spec": spec | ({"claimRef": ref} if ref else {})}


class Storage:
    """Claims of the pods of a sweep, a local volume on each node, and a provisioner that works when it is asked."""

    def __init__(self, world):
        self.world = world

    def prepare(self, limit):
        for number in range(4):
            self.world.api("POST", VOLUMES, volume(f"local-{limit}-{number}", f"node-{number}", LOCAL))
        mounts = []
        for name, storage_class in (("local", LOCAL), ("made", MADE)):
            self.world.api("POST", CLAIMS, claim(f"{name}-{limit}", storage_class))
            mounts.append({"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{limit}"}})
        return mounts

    def provision(self):
        for found in self.world.api("GET", CLAIMS)["items"]:
            metadata = found["metadata"]
            node = (metadata.get("annotations") or {}).get(SELECTED)
            if node and found["status"]["phase"] == "Pending":
                ref = {key: metadata[key] for key in ("namespace", "name", "uid")}
                self.world.api.request("POST", VOLUMES, volume(f"for-{metadata['name']}", node, MADE, ref))

    def clear(self):
        for path in (CLAIMS, VOLUMES):
            for found in self.world.api("GET", path)["items"]:
                self.world.api.request("DELETE", f"{path}/{found['metadata']['name']}")
        eventually(lambda: not self.world.api("GET", VOLUMES)["items"], "no volumes")


@pytest.fixture
def storage(bare_world):
    """Two storage classes that wait for the node of a pod."""
    path = "/apis/storage.k8s.io/v1/storageclasses"
    for name, provisioner in ((LOCAL, "kubernetes.io/no-provisioner"), (MADE, "example.com/test")):
        body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        bare_world.api("POST", path, body)
    made = Storage(bare_world)
    yield made
    made.clear()
    for name in (LOCAL, MADE):
        bare_world.api("DELETE", f"{path}/{name}")


def over(world, pod):
    found = world.get(pod)
    return found["status"]["phase"] == "Succeeded" and not found["metadata"].get("finalizers")


def all_over(world, storage, pods, gang):
    storage.provision()
    members = world.members(gang)
    return all(over(world, pod) for pod in pods) and len(members) == MEMBERS and all(over(world, m) for m in members)


def check(world, pods, gang, limit):
    """Check that the pod and the gang had one job each, and that the members had a node each of the gang's job.

    The volumes of the pod are on its node.
    """
    jobs = world.jobs_by_uid()
    for pod in pods:
        own = jobs.get(pod["metadata"]["uid"], [])
        assert len(own) == 1, f"killed after call {limit}: {pod['metadata']['name']} had jobs {own}"
        node = world.get(pod)["spec"]["nodeName"]
        assert node == world.job(own[0][0])["NodeList"]
        local, made = (world.api("GET", f"{CLAIMS}/{name}-{limit}") for name in ("local", "made"))
        assert local["spec"]["volumeName"] == f"local-{limit}-{node[-1]}"
        assert made["metadata"]["annotations"][SELECTED] == node
    own = jobs.get(gang["metadata"]["uid"], [])
    assert len(own) == 1, f"killed after call {limit}: the gang had jobs {own}"
    nodes = world.slurm("scontrol", "show", "hostnames", world.job(own[0][0])["NodeList"]).split()
    assert sorted(pod["spec"]["nodeName"] for pod in world.members(gang)) == sorted(nodes)


def test_kill_after_every_call(bare_world, storage, run, long, report):
    world = bare_world
    stride = 1 if long else SHORT_STRIDE
    killed = 0
    for limit in range(1, MOST_CALLS, stride):
        pods = [world.create(run="1", volumes=storage.prepare(limit)) for _ in range(PODS)]
        gang = world.create_gang(f"gang-{limit}", MEMBERS, run="1")
        victim = run(limit)
        eventually(
            lambda v=victim, p=pods, g=gang: v.poll() is not None or all_over(world, storage, p, g),
            "killed, or all done",
            60,
        )
        survived = victim.poll() is None
        if survived:
            victim.kill()
            victim.wait()
        else:
            killed += 1
            assert victim.returncode == -9, f"ended by itself with {victim.returncode} before call {limit}"
            healer = run(0)
            eventually(
                lambda p=pods, g=gang: all_over(world, storage, p, g), f"all done after a kill at call {limit}", 60
            )
            healer.kill()
            healer.wait()
        check(world, pods, gang, limit)
        eventually(lambda: not world.queue(), "no job left")
        for pod in pods:
            world.delete(pod, grace=0)
        world.delete_gang(gang)
        storage.clear()
        if survived:
            break
    assert survived, f"still being killed after {MOST_CALLS} calls"
    assert killed * stride >= 25, f"only {killed} calls were tried"
    which = "each call" if long else f"one call in {stride} (--long: each)"
    count = killed * (PODS + MEMBERS)
    report(f"killed {killed} times, after {which}, {count} pods, {killed} gangs: 0 lost, 0 doubled, 0 half bound")


def test_two_gangs_that_need_more_than_half_of_the_cluster_run_one_after_the_other(bare_world, run):
    world = bare_world
    gangs = [world.create_gang(f"big-{number}", MEMBERS, run="2", cpu="100") for number in range(3)]
    hub = run(0)
    most = 0

    def done():
        nonlocal most
        shown = [[pod["spec"].get("nodeName") for pod in world.members(gang)] for gang in gangs]
        running = [pod for gang in gangs for pod in world.members(gang) if pod["status"]["phase"] == "Running"]
        most = max(most, len(running))
        return all(len(nodes) == MEMBERS and all(nodes) for nodes in shown)

    eventually(done, "all gangs bound", 60)
    assert most <= MEMBERS, f"{most} members of gangs that need {MEMBERS} of 4 nodes ran at once"
    eventually(lambda: not world.queue(), "no job left")
    hub.kill()
    hub.wait()
    jobs = world.jobs_by_uid()
    for gang in gangs:
        assert len(jobs[gang["metadata"]["uid"]]) == 1
        world.delete_gang(gang)
