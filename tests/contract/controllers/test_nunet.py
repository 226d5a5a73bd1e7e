"""Pods on a NuNet DMS: a real API server, the hub's process, and a DMS over HTTP made after the published examples."""

import pytest

from cluster.nunet_pods import GPU, PLAIN, RTX, NunetWorld
from cluster.polling import eventually
from cluster.systems.dms import FAIL

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def world(kubernetes):
    with NunetWorld(kubernetes) as running:
        yield running


def test_the_virtual_nodes_have_the_peers_of_their_groups(world):
    rtx, plain = world.kube_node(RTX), world.kube_node(PLAIN)
    assert rtx["status"]["allocatable"][GPU] == "4"
    assert rtx["status"]["allocatable"]["cpu"] == "17"
    assert rtx["metadata"]["labels"]["gpu-type"] == "nvidia.rtx.3080.10gb"
    assert rtx["metadata"]["labels"]["type"] == "virtual-kubelet"
    assert rtx["metadata"]["labels"]["nunet.io/largest-peer-gpus"] == "6"
    assert plain["status"]["allocatable"]["cpu"] == "1"


def test_a_pod_waits_with_an_event_while_nobody_can_say_whether_the_dms_has_its_job(world):
    world.dms.shows, world.dms.drop = False, 1
    pod = world.put(RTX, "hidden", 600)
    eventually(lambda: world.jobs(pod), "the job at the DMS")

    def told():
        return [event["note"] for event in world.events(pod, "BridgeWaiting") if "no peer shows one" in event["note"]]

    assert "nunet.bridge.vk.io/no-job=true" in eventually(told, "the Event")[0]
    assert world.get(pod)["status"]["phase"] == "Pending"
    world.dms.shows = True
    world.running(pod)
    world.delete(pod, 1)
    world.gone(pod)
    assert world.jobs(pod) == ["cancelled"]


def test_pods_run_fail_and_are_deleted_and_none_twice(world):
    """One scenario, because its waits overlap."""
    running = world.put(RTX, "long", 600, gpu=True)
    good = world.put(RTX, "good", 2, gpu=True)
    bad = world.put(RTX, "bad", 1, env={FAIL: "1"})
    refused = world.put(RTX, "refused", volumes=[{"name": "v", "emptyDir": {}}])
    service = world.put(RTX, "service", restartPolicy="Always")
    eventually(lambda: all(map(world.jobs, (running, good, bad))), "three jobs at the DMS")
    world.dms.drop = 1  # one submission gets no answer
    lost = world.put(PLAIN, "lost", 600)

    assert world.ended(good)["status"]["phase"] == "Succeeded"
    assert "image busybox" in world.logs(good)
    failed = world.ended(bad)
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
    assert "spec.volumes" in world.ended(refused)["status"]["message"]
    assert "spec.restartPolicy" in world.ended(service)["status"]["message"]
    for pod in (running, lost):
        world.running(pod)
        assert world.jobs(pod) == ["running"]
    started = eventually(lambda: world.events(running, "BridgeStarted"), "the Event")
    assert "QmPeer3: the DMS ends it at" in started[0]["note"]

    world.kill_hub()
    later = world.put(RTX, "later", 1)
    assert world.ended(later)["status"]["phase"] == "Succeeded"
    for pod in (running, lost):
        world.delete(pod, 1)
        world.gone(pod)
        assert world.jobs(pod) == ["cancelled"]
    elsewhere = world.put(RTX, "elsewhere", annotations={"nunet.bridge.vk.io/peers": "QmPeer1"})
    assert "peer QmPeer3: not among the allowed peers" in world.ended(elsewhere)["status"]["message"]
    for pod in (elsewhere, refused, good):
        world.delete(pod)
        world.gone(pod)
    assert all(len(world.jobs(pod)) == 1 for pod in (good, bad, later))
    assert world.jobs(refused) == world.jobs(service) == []
