"""podbridge is killed (SIGKILL) after its N-th call: one job per pod and per gang, all bound, nothing left behind.

The pod has a claim for a local volume and one for a provisioner, which the test plays. On Slurm 26.05, the members of
the gang have a claim for devices each. A short run tries every 24th N, ``./hack/test.sh --long kills`` each.
"""

import random

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.chaos.storage import Storage
from tests.chaos.victims import Victims
from tests.fakes import device_drivers
from tests.fakes.device_drivers import DRA, GPU, requests

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

MOST_CALLS = 200
SHORT_STRIDE = 24
MEMBERS = 3
RESOURCES = f"{DRA}/namespaces/{NAMESPACE}"
TEMPLATE = "sweep-devices"
"""Template of the claims of the members."""


@pytest.fixture
def run(bare_world):
    """Return a function that starts the process that kills itself after ``limit`` calls, and returns its Popen."""
    victims = Victims(bare_world.cluster)
    yield victims.start
    victims.close()


@pytest.fixture
def devices(bare_world):
    """Return what the spec of a member has for its claim; nothing where Slurm does not show devices."""
    if bare_world.cluster.options.slurm != "26.05":
        yield {}
        return
    made = device_drivers.publish(bare_world)
    body = {"metadata": {"name": TEMPLATE}, "spec": {"spec": requests((GPU, 2))}}
    bare_world.api("POST", f"{RESOURCES}/resourceclaimtemplates", body)
    yield {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": TEMPLATE}]}
    for path in (*made, f"{RESOURCES}/resourceclaimtemplates/{TEMPLATE}"):
        bare_world.api("DELETE", path)


class Devices:
    """The claims of the members: each holds the devices that Slurm has chosen on its node, and none is in two."""

    def __init__(self, world):
        self._world = world
        self._nodes = {}

    def look(self):
        """Read the claims; assert that no device is in two."""
        used = []
        for claim in self._world.api("GET", f"{RESOURCES}/resourceclaims")["items"]:
            status = claim.get("status", {})
            results = status.get("allocation", {}).get("devices", {}).get("results", ())
            used += [(one["pool"], one["device"]) for one in results]
            for pod in status.get("reservedFor", ()):
                self._nodes[pod["uid"]] = [one["pool"] for one in results]
        assert len(used) == len(set(used)), f"a device is in two claims: {used}"

    def check(self, members):
        """Assert that the devices of each member were on its node; return how many members were seen with devices."""
        found = [(pod["spec"]["nodeName"], self._nodes.get(pod["metadata"]["uid"])) for pod in members]
        assert all(seen in (None, [node, node]) for node, seen in found), f"nodes, and those of the devices: {found}"
        return len([seen for _, seen in found if seen])

    def check_removed(self):
        eventually(lambda: not self._world.api("GET", f"{RESOURCES}/resourceclaims")["items"], "no claims for devices")


def over(world, pod):
    found = world.get(pod)
    return found["status"]["phase"] == "Succeeded" and not found["metadata"].get("finalizers")


class Round:
    """One pod with volumes and one gang, from their creation to their deletion."""

    def __init__(self, world, limit, member):
        self._world, self._what = world, f"killed after call {limit}"
        self._name = f"sweep-{limit}"
        self._storage, self._devices = Storage(world), Devices(world)
        self._pod = world.create(run="1", volumes=self._storage.prepare(self._name))
        self._gang = world.create_gang(f"gang-{limit}", MEMBERS, run="1", **member)

    def over(self):
        self._storage.provision()
        self._devices.look()
        members = self._world.members(self._gang)
        return len(members) == MEMBERS and all(over(self._world, pod) for pod in (self._pod, *members))

    def check(self):
        """Assert that the pod and the gang had one job each, and each member a node of the gang's job.

        Return how many members were seen with their devices.
        """
        world, jobs = self._world, self._world.jobs_by_uid()
        own = jobs.get(self._pod["metadata"]["uid"], [])
        assert len(own) == 1, f"{self._what}: {self._name} had jobs {own}"
        node = world.get(self._pod)["spec"]["nodeName"]
        assert node == world.job(own[0][0])["NodeList"]
        self._storage.check(self._name, node)
        own = jobs.get(self._gang["metadata"]["uid"], [])
        assert len(own) == 1, f"{self._what}: the gang had jobs {own}"
        nodes = world.slurm("scontrol", "show", "hostnames", world.job(own[0][0])["NodeList"]).split()
        members = world.members(self._gang)
        assert sorted(pod["spec"]["nodeName"] for pod in members) == sorted(nodes)
        return self._devices.check(members)

    def remove(self):
        """Delete everything; assert that nothing is left."""
        eventually(lambda: not self._world.queue(), "no job left")
        self._world.delete(self._pod, grace=0)
        self._world.delete_gang(self._gang)
        self._storage.remove(self._name)
        self._storage.check_removed()
        self._devices.check_removed()


def test_kill_after_every_call(bare_world, devices, run, long, report):
    stride = 1 if long else SHORT_STRIDE
    first = random.randint(1, stride)
    killed = seen = 0
    for limit in range(first, MOST_CALLS, stride):
        work = Round(bare_world, limit, devices)
        victim = run(limit)
        eventually(lambda v=victim, w=work: v.poll() is not None or w.over(), "killed, or all done", 60)
        survived = victim.poll() is None
        if survived:
            victim.kill()
            victim.wait()
        else:
            killed += 1
            assert victim.returncode == -9, f"ended by itself with {victim.returncode} before call {limit}"
            healer = run(0)
            eventually(work.over, f"all done after a kill at call {limit}", 60)
            healer.kill()
            healer.wait()
        seen += work.check()
        work.remove()
        if survived:
            break
    assert survived, f"still being killed after {MOST_CALLS} calls"
    assert killed * stride >= 25, f"only {killed} calls were tried"
    # kube-controller-manager deletes the claim of an ended pod at once
    assert not devices or seen >= killed * MEMBERS / 2, f"only {seen} members were seen with devices"
    which = "each call" if long else f"one call in {stride} from {first} on (--long kills: each)"
    counts = f"{killed * (1 + MEMBERS)} pods, {killed} gangs, {seen} members seen with devices"
    report(f"killed {killed} times, after {which}, {counts}: 0 lost, 0 doubled, 0 half bound")
