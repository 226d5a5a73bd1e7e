"""The owner of a pending job makes it smaller: no pod is bound that takes more than Slurm has allocated."""

import json
from dataclasses import replace

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.slurm.allotments import Allotment
from bridge.workload import allotted
from scheduler import group_actions
from tests import builders
from tests.fakes.memory_hub import MemoryHub

GPU = "nvidia.com/gpu"
TABLE = {GPU: "gpu", "vendor.com/typed": "gpu:a100"}
REQUESTS = {"cpu": "2", "memory": "1Gi"}


def pod(uid="u1", requests=None, **annotations):
    place = {"namespace": "team", "name": uid}
    scheduler = Config().scheduler_name
    more = {"annotations": annotations, "requests": requests or REQUESTS, "metadata": place, "schedulerName": scheduler}
    return builders.pod(uid, held=True, **more)


@pytest.mark.parametrize(
    ("given", "requests", "short"),
    [
        (Allotment(2, 1024, ()), REQUESTS, ""),
        (Allotment(4, 4096, (("gpu", 8),)), REQUESTS, ""),
        (Allotment(1, 1024, ()), REQUESTS, "1 CPUs for pods that take 2"),
        (Allotment(2, 512, ()), REQUESTS, "512 MiB for pods that take 1024"),
        (Allotment(2, 1023, ()), REQUESTS, ""),
        (Allotment(1, 0, ()), {"cpu": "500m"}, ""),
        (Allotment(0, 0, None), {"cpu": "8", "memory": "8Gi", GPU: "8"}, ""),
        (Allotment(1, 0, (("gpu", 1),)), {GPU: "8"}, "1 of gres gpu for pods that take 8"),
        (Allotment(1, 0, ()), {GPU: "8"}, "0 of gres gpu for pods that take 8"),
        (Allotment(1, 0, (("gpu:a100", 8),)), {GPU: "8"}, ""),
        (Allotment(1, 0, (("gpu", 1),)), {"vendor.com/typed": "1"}, ""),
        (Allotment(1, 0, (("gpu:h100", 1),)), {"vendor.com/typed": "1"}, "0 of gres gpu:a100 for pods that take 1"),
        (Allotment(1, 0, ()), {"vendor.com/unknown": "1"}, ""),
        (None, {GPU: "8"}, ""),
    ],
)
def test_what_an_allocation_lacks(given, requests, short):
    assert allotted.shortage(given, {"n1": [pod(requests=requests)]}, TABLE) == short


def test_members_of_a_group_take_their_sum():
    placed = {"n1": [pod("u1", {"cpu": "2"})], "n2": [pod("u2", {"cpu": "2"})]}
    assert allotted.shortage(Allotment(4, 0, ()), placed, TABLE) == ""
    assert allotted.shortage(Allotment(3, 0, ()), placed, TABLE) == "3 CPUs for pods that take 4"


@pytest.mark.parametrize(
    ("second", "short"),
    [
        (Allotment(2, 1024, (("gpu", 1),)), ""),
        (Allotment(0, 0, None), ""),
        (Allotment(1, 1024, (("gpu", 1),)), "1 CPUs for pods that take 2 on node n2"),
        (Allotment(2, 100, (("gpu", 1),)), "100 MiB for pods that take 1024 on node n2"),
        (Allotment(2, 1024, (("gpu", 0),)), "0 of gres gpu for pods that take 1 on node n2"),
        (Allotment(2, 1024, ()), "0 of gres gpu for pods that take 1 on node n2"),
    ],
)
def test_each_node_has_what_its_pods_take(second, short):
    first = Allotment(8, 9000, (("gpu", 8),))
    given = Allotment(8, 9000, (("gpu", 8),), (("n1", first), ("n2", second), ("n3", Allotment())))
    placed = {node: [pod(node, {**REQUESTS, GPU: "1"})] for node in ("n1", "n2")}
    assert allotted.shortage(given, placed, TABLE) == short


def members(count):
    group = {"kind": "jobset", "name": "train", "uid": "o1", "index": "w", "size": count, "minimum": count}
    return [pod(f"u{n}", {"cpu": "2"}, **{names.GROUP: json.dumps({**group, "slot": n})}) for n in range(count)]


def smaller(job):
    job.request = replace(job.request, cpus=1)


def uneven(job):
    job.moved_cpus = 1


@pytest.mark.parametrize(
    ("created", "change"),
    [([pod(requests={"cpu": "2"})], smaller), (members(2), smaller), (members(2), uneven), (members(3), uneven)],
    ids=["pod", "gang", "uneven gang", "uneven gang of three"],
)
def test_a_job_that_was_made_smaller_is_given_back(created, change, monkeypatch):
    hub = MemoryHub(("n1", "n2", "n3"))
    told = []
    cancel_and_resubmit = hub.scheduler.slurm._actor._jobs.cancel_and_resubmit
    actor = hub.scheduler.slurm._actor
    monkeypatch.setattr(
        actor._jobs, "cancel_and_resubmit", lambda action: (told.append(action), cancel_and_resubmit(action))
    )
    for one in created:
        hub.kube.put(f"/api/v1/namespaces/team/pods/{one['metadata']['name']}", one)

    def bound():
        return [obj for obj in hub.kube.objects.values() if obj["kind"] == "Pod" and obj["spec"].get("nodeName")]

    hub.work(8)
    (job,) = hub.slurm.jobs.values()
    asked = job.request
    change(job)
    assert hub.slurm.start(job)
    hub.work(8)
    assert not bound()
    assert [type(action) for action in told] == [group_actions.CancelAndResubmit]
    assert told[0].reason == allotted.REASON and "for pods that take" in told[0].why
    hub.clock.advance(600)
    hub.work(8)
    (again,) = (other for other in hub.slurm.jobs.values() if other.lives)
    assert replace(again.request, link=asked.link) == asked
    assert hub.slurm.start(again)
    hub.work(8)
    assert len(bound()) == len(created)


def test_a_later_member_is_not_bound_on_a_node_with_too_little():
    """A job for two to three members has started with two; the third comes, and its node has less than it takes."""
    hub = MemoryHub(("n1", "n2", "n3", "n4"))
    pods = members(3)
    for one in pods:
        group = json.loads(one["metadata"]["annotations"][names.GROUP])
        one["metadata"]["annotations"][names.GROUP] = json.dumps({**group, "minimum": 2})
    path = "/api/v1/namespaces/team/pods/{}"

    def create(*some):
        for one in some:
            hub.kube.put(path.format(one["metadata"]["name"]), one)
            hub.clock.advance(60)
        hub.work(8)

    def node_of(uid):
        return hub.kube.objects[path.format(uid)]["spec"].get("nodeName")

    create(*pods[:2])
    (job,) = hub.slurm.jobs.values()
    uneven(job)
    assert hub.slurm.start(job) and len(job.nodes) == 3
    hub.work(8)
    assert node_of("u0") and node_of("u1")
    create(pods[2])
    hub.work(60)
    others = [other for other in hub.slurm.jobs.values() if other is not job]
    assert node_of("u2") is None and len(others) == 1, "it has a job of its own"
    assert hub.slurm.start(others[0])
    hub.work(8)
    assert node_of("u2") == others[0].nodes[0]
