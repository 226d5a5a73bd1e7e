"""A DRA driver, called by a real kubelet: the containers of a pod get the device that Slurm has chosen.

The driver is the one with which Kubernetes tests its kubelet. It publishes the ResourceSlice of its node, prepares
claims by CDI, and mounts a file with the names of the devices into each container that uses a claim.
"""

import json

import pytest

from cluster.polling import eventually
from cluster.systems import realnode
from cluster.world import NAMESPACE
from tests.fakes.device_drivers import DRA, device_class, requests

pytestmark = pytest.mark.real

GPU = realnode.DRIVER_NAME
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
EXTENDED = "amd.com/gpu"
TELL = (
    "find /var/run/kubernetes.io -name '*metadata.json' -exec cat {} +; echo; env | grep ^claim_; "
    "trap 'exit 0' TERM; while :; do sleep 0.1; done"
)
"""A program that prints the files and variables that the driver has prepared, and ends when it is asked to."""


@pytest.fixture(scope="module")
def gpus(real_node):
    """The class of the driver, which publishes its devices itself."""
    body = device_class(GPU)
    body["spec"]["extendedResourceName"] = EXTENDED
    real_node.api("POST", f"{DRA}/deviceclasses", body)
    eventually(lambda: devices_of_slices(real_node), "the ResourceSlice of the driver", 60)
    yield
    real_node.api("DELETE", f"{DRA}/deviceclasses/{GPU}")


@pytest.fixture
def world(clean, gpus):
    """The cluster with a driver; no claims before and after."""
    yield clean
    for claim in clean.api("GET", CLAIMS)["items"]:
        clean.api.request("DELETE", f"{CLAIMS}/{claim['metadata']['name']}")
    clean.clear()
    eventually(lambda: not clean.api("GET", CLAIMS)["items"], "no claims")


def devices_of_slices(world):
    slices = world.api("GET", f"{DRA}/resourceslices")["items"]
    return [device["name"] for found in slices if found["spec"]["driver"] == GPU for device in found["spec"]["devices"]]


def with_claim(world, name):
    body = world.manifest(cpu="500m", memory="32Mi", script=TELL, restartPolicy="Never")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def with_resource(world, name, count):
    body = world.manifest(cpu="500m", memory="32Mi", script=TELL, restartPolicy="Never")
    body["spec"]["containers"][0]["resources"]["limits"] = {name: str(count)}
    return world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def told(world, pod):
    """Return the names of the devices that the container of a pod got from the driver, and its variables."""
    world.running(pod, 60)
    text = eventually(lambda: "\nclaim_" in (out := output(world, pod)) and out, "the variables of the claim")
    files, variables = text.split("\nclaim_", 1)
    decoder, found = json.JSONDecoder(), []
    while files.strip():
        one, end = decoder.raw_decode(files.strip())
        files = files.strip()[end:]
        found += [device["name"] for request in one["requests"] for device in request["devices"]]
    return set(found), variables


def output(world, pod):
    return world.cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"], check=False)


def chosen(world, pod):
    """Return the devices that Slurm has chosen for the job of a pod, by scontrol."""
    text = world.slurm("scontrol", "show", "job", "-d", str(world.labelled(pod)))
    numbers = text.partition("(IDX:")[2].partition(")")[0]
    pairs = [part.partition("-") for part in numbers.split(",")]
    return {f"device-{n:02d}" for first, _, last in pairs for n in range(int(first), int(last or first) + 1)}


def prepared(world):
    """Return the CDI files of the driver on the node."""
    return world.cluster.real_node.run("find", "/var/run/cdi", "-name", f"{GPU}*").split()


def test_a_claim_is_prepared_with_the_device_that_slurm_has_chosen_and_again_for_the_next_pod(world):
    assert devices_of_slices(world) == [f"device-{n:02d}" for n in range(realnode.GPUS)]
    for name in ("first", "second"):
        world.api("POST", CLAIMS, {"metadata": {"name": name}, "spec": requests((GPU, 1))})
    first, second = with_claim(world, "first"), with_claim(world, "second")
    found = {name: told(world, pod)[0] for name, pod in (("first", first), ("second", second))}
    assert found == {"first": chosen(world, first), "second": chosen(world, second)}
    assert not found["first"] & found["second"]
    # a file for the variables of each claim, and one for its metadata
    assert len(prepared(world)) == 4
    third = with_claim(world, "first")
    world.delete(first, 2)
    devices, variables = told(world, third)
    assert devices == chosen(world, third)
    assert "first_r0=true" in variables
    for pod in (second, third):
        world.delete(pod, 2)
    eventually(lambda: not prepared(world), "the claims unprepared")
    eventually(lambda: not any(claim.get("status") for claim in world.api("GET", CLAIMS)["items"]), "claims released")


@pytest.mark.parametrize("resource", [f"deviceclass.resource.kubernetes.io/{GPU}", EXTENDED])
def test_an_extended_resource_is_prepared_with_the_devices_that_slurm_has_chosen(world, resource):
    holder = with_resource(world, resource, 1)
    pod = with_resource(world, resource, 2)
    devices, _ = told(world, pod)
    assert len(devices) == 2
    assert devices == chosen(world, pod)
    assert not devices & told(world, holder)[0]
    for one in (pod, holder):
        world.delete(one, 2)
    eventually(lambda: not world.api("GET", CLAIMS)["items"] and not prepared(world), "the claims deleted")
