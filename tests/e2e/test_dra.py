"""ResourceClaims are allocated on the devices that Slurm has chosen; kube-controller-manager releases them."""

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.fakes.device_drivers import (
    BY_INDEX,
    BY_MINOR,
    CPU,
    DRA,
    GPU,
    GPUS,
    NVIDIA,
    nvidia_name,
    publish,
    publish_nvidia,
    requests,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.not_on("22.05", reason="Kubernetes 1.32, which runs beside it, does not serve resource.k8s.io/v1"),
]

CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"
EXTENDED = "amd.com/gpu"
"""No node advertises this resource; the configuration maps it to a gres."""


@pytest.fixture(scope="module")
def drivers(world):
    """Publish what the drivers dra.cpu and gpu.example.com publish."""
    made = publish(world, EXTENDED)
    yield
    for path in made:
        world.api("DELETE", path)


@pytest.fixture
def nvidia(dra):
    """Publish what NVIDIA's driver publishes on two nodes, beside the other drivers."""
    made = publish_nvidia(dra)
    yield
    for path in made:
        dra.api("DELETE", path)


@pytest.fixture
def dra(clean, drivers):
    """The world with drivers; no claims before and after."""
    yield clean
    for claim in clean.api("GET", CLAIMS)["items"]:
        clean.api.request("DELETE", f"{CLAIMS}/{claim['metadata']['name']}")
    clean.clear()
    eventually(lambda: not clean.api("GET", CLAIMS)["items"], "no claims")


def claim(world, name, *wanted):
    return world.api("POST", CLAIMS, {"metadata": {"name": name}, "spec": requests(*wanted)})


def template(world, *wanted):
    """Create a template with these requests; return its name."""
    spec = {"metadata": {"generateName": "t-"}, "spec": {"spec": requests(*wanted)}}
    return world.api("POST", f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates", spec)["metadata"]["name"]


def templated(world, *wanted, **more):
    """Create a pod whose claim comes from a template with these requests."""
    return world.create(resourceClaims=[{"name": "d", "resourceClaimTemplateName": template(world, *wanted)}], **more)


def bound(world, gang, count, timeout=40):
    """Wait until so many open members are bound; return them."""

    def all_bound():
        pods = [pod for pod in world.members(gang) if not pod["metadata"].get("deletionTimestamp")]
        return len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods) and pods

    return eventually(all_bound, f"{count} members bound", timeout)


def with_claim(world, name, **more):
    return world.create(resourceClaims=[{"name": "d", "resourceClaimName": name}], **more)


def with_resource(world, name, count):
    body = world.manifest()
    body["spec"]["containers"][0]["resources"]["limits"] = {name: str(count)}
    return world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def owned(world, pod):
    """Return the claims that are reserved for the pod."""
    uid = pod["metadata"]["uid"]
    return [
        found
        for found in world.api("GET", CLAIMS)["items"]
        if any(one["uid"] == uid for one in found.get("status", {}).get("reservedFor", ()))
    ]


def devices(claim, driver):
    results = claim["status"]["allocation"]["devices"]["results"]
    return {one["device"] for one in results if one["driver"] == driver}


def given(world, job):
    """Return the devices that Slurm has chosen for a job, by scontrol: node -> GPUs and CPUs."""
    text, found = world.slurm("scontrol", "show", "job", "-d", str(job)), {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "CPU_IDs" not in words:
            continue
        gres = words.get("GRES", "")
        gpus = numbers(gres.partition("(IDX:")[2].rstrip(")")) if "IDX" in gres else set()
        devices = {f"card-{7 - n}" for n in gpus}, {f"cpudev{n:03d}" for n in numbers(words["CPU_IDs"])}
        found |= dict.fromkeys(world.slurm("scontrol", "show", "hostnames", words["Nodes"]).split(), devices)
    return found


def chosen(world, pod):
    """Return the devices that Slurm has chosen for the pod on its node: GPUs and CPUs."""
    return given(world, world.job_of(pod))[pod["spec"]["nodeName"]]


def numbers(text):
    pairs = [part.partition("-") for part in text.split(",")]
    return {n for first, _, last in pairs for n in range(int(first), int(last or first) + 1)}


def refused(world, pod, *words):
    def told():
        condition = world.condition(pod, "PodScheduled")
        return condition.get("reason") == "UnsupportedResourceClaim" and condition

    message = eventually(told, "the refusal")["message"]
    assert all(word in message for word in words), message


@pytest.mark.not_on("26.05")
def test_a_version_of_slurm_that_does_not_show_devices_is_named(dra):
    refused(dra, templated(dra, (GPU, 1)), "v0.0.44", "serves v0.0.")
    assert not dra.queue()


@pytest.mark.not_on("24.11", reason="Slurm does not show which devices a job has")
class TestClaims:
    def test_gpus_and_cpus_of_templates_are_those_of_slurm(self, dra):
        pods = [templated(dra, (GPU, 3), (CPU, 4), cpu="1", run="600") for _ in range(3)]
        seen = set()
        for pod in pods:
            pod = dra.running(pod)
            (found,) = owned(dra, pod)
            node, (gpus, cpus) = pod["spec"]["nodeName"], chosen(dra, pod)
            assert devices(found, GPU) == gpus
            assert len(gpus) == 3
            assert devices(found, CPU) == cpus
            assert len(cpus) == 4
            terms = found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
            assert terms[0]["matchFields"][0]["values"] == [node]
            config = found["status"]["allocation"]["devices"]["config"]
            assert [(one["source"], one["requests"]) for one in config] == [
                ("FromClass", ["r0"]),
                ("FromClass", ["r1"]),
            ]
            assert "resource.kubernetes.io/delete-protection" in found["metadata"]["finalizers"]
            new = {(node, device) for device in gpus | cpus}
            assert not new & seen
            seen |= new
        for pod in pods:
            dra.delete(pod, grace=1)
        eventually(lambda: not dra.api("GET", CLAIMS)["items"], "the claims of the templates deleted")

    def test_gpus_of_nvidias_driver_are_those_of_slurm(self, dra, nvidia):
        """Slurm's index is the number of the file, ``/dev/nvidia<minor>``."""
        for node in (BY_MINOR, BY_INDEX):
            pod = dra.running(templated(dra, (NVIDIA, 3), nodeSelector={"kubernetes.io/hostname": node}))
            (found,) = owned(dra, pod)
            cards = chosen(dra, pod)[0]
            assert len(cards) == 3
            files = {f"card-{7 - n}": n for n in range(GPUS)}
            assert devices(found, NVIDIA) == {nvidia_name(node, files[card]) for card in cards}

    def test_a_whole_node_has_the_first_of_its_devices_and_the_claim_serves_the_next_pod(self, dra):
        claim(dra, "mine", (GPU, 2))
        pod = dra.running(with_claim(dra, "mine", job={"exclusive": "true"}))
        (found,) = owned(dra, pod)
        assert len(chosen(dra, pod)[0]) == GPUS
        assert devices(found, GPU) == {"card-7", "card-6"}
        second = with_claim(dra, "mine")
        refused(dra, second, "mine", "in use by", pod["metadata"]["name"])
        assert dra.get(second)["spec"].get("nodeName") is None
        dra.delete(pod, grace=1)
        second = dra.running(second, 60)
        assert devices(owned(dra, second)[0], GPU) == chosen(dra, second)[0]

    def test_a_device_of_another_claim_is_waited_for(self, dra):
        holder = claim(dra, "holder", (GPU, 8))
        holder["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        holder = dra.api("PUT", f"{CLAIMS}/holder", holder)
        results = [{"request": "r0", "driver": GPU, "pool": "node-0", "device": f"card-{n}"} for n in range(GPUS)]
        holder["status"] = {"allocation": {"devices": {"results": results}}}
        dra.api("PUT", f"{CLAIMS}/holder/status", holder)
        pod = templated(dra, (GPU, 1), nodeSelector={"kubernetes.io/hostname": "node-0"})
        eventually(lambda: dra.events(pod, "DevicesNotReady"), "an Event")
        assert dra.get(pod)["spec"].get("nodeName") is None
        assert not owned(dra, pod)
        dra.api("DELETE", f"{CLAIMS}/holder")
        pod = dra.running(pod, 40)
        assert devices(owned(dra, pod)[0], GPU) == chosen(dra, pod)[0]

    def test_a_job_on_a_node_without_devices_is_cancelled_and_the_pod_runs_later(self, dra):
        path = f"{DRA}/resourceslices/node-2-{GPU}"
        body = dra.api("GET", path)
        dra.api("DELETE", path)
        pod = templated(dra, (GPU, 1), nodeSelector={"kubernetes.io/hostname": "node-2"})
        try:
            (event,) = eventually(lambda: dra.events(pod, "NodeRefused"), "the job cancelled")[:1]
            assert "needs 1 devices of class gpu.example.com on node node-2" in event["note"]
            assert not owned(dra, pod)
        finally:
            body["metadata"] = {"name": body["metadata"]["name"]}
            dra.api("POST", f"{DRA}/resourceslices", body)
        pod = dra.running(pod, 60)
        assert devices(owned(dra, pod)[0], GPU) == chosen(dra, pod)[0]

    def test_members_of_a_gang_get_the_devices_of_their_node_and_none_is_given_twice(self, dra):
        source = {"name": "d", "resourceClaimTemplateName": template(dra, (GPU, 2), (CPU, 2))}
        two = {"bridge.vk.io/members-per-node": "2"}
        gang = dra.create_gang("devices", 3, annotations=two, cpu="1", run="600", resourceClaims=[source])
        try:
            pods = bound(dra, gang, 3)
            (job,) = {dra.job_of(pod) for pod in pods}
            on = given(dra, job)
            assert len(on) == 2
            seen = set()
            for pod in pods:
                node, (found,) = pod["spec"]["nodeName"], owned(dra, pod)
                gpus, cpus = devices(found, GPU), devices(found, CPU)
                assert (len(gpus), len(cpus)) == (2, 2)
                assert gpus <= on[node][0]
                assert cpus <= on[node][1]
                assert not seen & {(node, one) for one in gpus | cpus}
                seen |= {(node, one) for one in gpus | cpus}
            # the successor of a member gets the devices of the member; the job waits until its claim is created
            path = f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates"
            body = dra.api("GET", f"{path}/{source['resourceClaimTemplateName']}")
            dra.api("DELETE", f"{path}/{body['metadata']['name']}")
            before = {(pods[0]["spec"]["nodeName"], one) for one in devices(owned(dra, pods[0])[0], GPU)}
            dra.delete(pods[0], grace=1)
            eventually(lambda: dra.get(pods[0]) is None, "the member gone")
            eventually(
                lambda: any(dra.events(pod, "ResourceClaimMissing") for pod in dra.members(gang)), "a missing claim"
            )
            dra.polled(2)
            assert dra.queue() == {job: "RUNNING"}
            dra.api("POST", path, {"metadata": {"name": body["metadata"]["name"]}, "spec": body["spec"]})
            after = {
                (pod["spec"]["nodeName"], one)
                for pod in bound(dra, gang, 3)
                for one in devices(owned(dra, pod)[0], GPU)
            }
            assert before <= after
            assert len(after) == 6
        finally:
            dra.delete_gang(gang)

    def test_members_of_a_mixed_gang_get_the_devices_of_their_component(self, dra):
        """A driver without devices, and two workers on one node, in one heterogeneous job."""
        name, made = "mixed-devices", []
        two = {"kueue.x-k8s.io/pod-group-total-count": "3", "bridge.vk.io/members-per-node": "2"}
        source = {"name": "d", "resourceClaimTemplateName": template(dra, (GPU, 1), (CPU, 2))}
        for number, more in enumerate(({"cpu": "1"}, *2 * [{"cpu": "2", "resourceClaims": [source]}])):
            body = dra.manifest(f"{name}-{number}", run="600", **more)
            body["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": name}
            body["metadata"]["annotations"] |= two
            made.append(dra.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body))
        driver, *workers = [dra.running(pod, 60) for pod in made]
        (job,) = {dra.job_of(pod) for pod in (driver, *workers)}
        (node,) = {pod["spec"]["nodeName"] for pod in workers}
        assert node != driver["spec"]["nodeName"]
        gpus, cpus = given(dra, job)[node]
        claims = [found for pod in workers for found in owned(dra, pod)]
        assert [len(devices(found, GPU)) for found in claims] == [1, 1]
        assert set.union(*(devices(found, GPU) for found in claims)) == gpus
        assert [len(devices(found, CPU)) for found in claims] == [2, 2]
        assert set.union(*(devices(found, CPU) for found in claims)) <= cpus
        assert not owned(dra, driver)

    def test_members_of_a_gang_on_one_node_share_a_claim(self, dra):
        claim(dra, "shared", (GPU, 3))
        source = {"name": "d", "resourceClaimName": "shared"}
        spread = dra.create_gang("spread", 2, resourceClaims=[source])
        try:
            eventually(lambda: len(dra.members(spread)) == 2, "its pods")
            refused(dra, dra.members(spread)[0], "shared", "bridge.vk.io/members-per-node")
        finally:
            dra.delete_gang(spread)
        two = {"bridge.vk.io/members-per-node": "2"}
        gang = dra.create_gang("sharing", 2, annotations=two, run="600", resourceClaims=[source])
        try:
            pods = bound(dra, gang, 2)
            (node,) = {pod["spec"]["nodeName"] for pod in pods}
            (found,) = owned(dra, pods[0])
            assert owned(dra, pods[1]) == [found]
            assert devices(found, GPU) == given(dra, dra.job_of(pods[0]))[node][0]
            assert len(devices(found, GPU)) == 3
        finally:
            dra.delete_gang(gang)

    def test_pods_that_replace_each_other_never_share_a_device(self, dra):
        """Slurm gives the GPUs of an ended job to the next one at once; its claim is released a moment later."""
        where = {"kubernetes.io/hostname": "node-3"}
        pods = [templated(dra, (GPU, 4), cpu="1", run="1", restartPolicy="Never", nodeSelector=where) for _ in range(8)]
        open_pods = {pod["metadata"]["uid"]: pod for pod in pods}

        def no_device_twice():
            results = [
                (one["pool"], one["device"])
                for found in dra.api("GET", CLAIMS)["items"]
                for one in found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            ]
            assert len(results) == len(set(results))
            for uid, pod in list(open_pods.items()):
                if dra.get(pod)["status"]["phase"] == "Succeeded":
                    del open_pods[uid]
            return not open_pods

        eventually(no_device_twice, "all pods succeeded", 90)

    def test_an_extended_resource_that_a_class_provides_gets_a_claim(self, dra):
        pod = dra.running(with_resource(dra, EXTENDED, 3), 60)
        (found,) = owned(dra, pod)
        (request,) = found["spec"]["devices"]["requests"]
        assert request["exactly"]["deviceClassName"] == GPU
        status = pod["status"]["extendedResourceClaimStatus"]
        assert status["resourceClaimName"] == found["metadata"]["name"]
        assert status["requestMappings"] == [
            {"containerName": "main", "resourceName": EXTENDED, "requestName": request["name"]}
        ]
        assert devices(found, GPU) == chosen(dra, pod)[0]
        assert len(devices(found, GPU)) == 3
        # what the kubelet's device plugin advertises is its own
        plugin = dra.running(with_resource(dra, "nvidia.com/gpu", 1))
        assert not owned(dra, plugin)
