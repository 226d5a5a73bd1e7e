"""The owner of a pending job makes it smaller: no pod is bound that takes more than Slurm has allocated."""

import json
from dataclasses import replace

import pytest

from bridge import names
from bridge.config import Config
from bridge.slurm.allotments import Allotment
from bridge.workload import allotted
from scheduler import actions
from tests.fakes.memory_hub import MemoryHub

GPU = "nvidia.com/gpu"
TABLE = {GPU: "gpu", "vendor.com/typed": "gpu:a100"}
REQUESTS = {"cpu": "2", "memory": "1Gi"}


def pod(uid="u1", requests=None, **annotations):
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "team",
            "name": uid,
            "uid": uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [names.FINALIZER],
            "annotations": annotations,
            "labels": {},
        },
        "spec": {
            "schedulerName": Config().scheduler_name,
            "containers": [{"name": "c", "resources": {"requests": requests or REQUESTS}}],
        },
        "status": {"phase": "Pending"},
    }


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
    assert allotted.shortage(given, [pod(requests=requests)], TABLE) == short


def test_members_of_a_group_take_their_sum():
    members = [pod("u1", {"cpu": "2"}), pod("u2", {"cpu": "2"})]
    assert allotted.shortage(Allotment(4, 0, ()), members, TABLE) == ""
    assert allotted.shortage(Allotment(3, 0, ()), members, TABLE) == "3 CPUs for pods that take 4"


def members(count):
    group = {"kind": "jobset", "name": "train", "uid": "o1", "index": "w", "size": count, "minimum": count}
    return [pod(f"u{n}", {"cpu": "2"}, **{names.GROUP: json.dumps({**group, "slot": n})}) for n in range(count)]


@pytest.mark.parametrize("created", [[pod(requests={"cpu": "2"})], members(2)], ids=["pod", "gang"])
def test_a_job_that_was_made_smaller_is_given_back(created, monkeypatch):
    hub = MemoryHub(("n1", "n2", "n3"))
    told = []
    give_back = hub.scheduler._actor._give_back
    monkeypatch.setattr(hub.scheduler._actor, "_give_back", lambda action: (told.append(action), give_back(action)))
    for one in created:
        hub.kube.put(f"/api/v1/namespaces/team/pods/{one['metadata']['name']}", one)

    def pass_time(steps=8):
        for _ in range(steps):
            hub.clock.advance(1)
            hub.poller.poll()
            hub.deliver()
            hub.scheduler.reconcile()
            hub.run_all()

    def bound():
        return [obj for obj in hub.kube.objects.values() if obj["kind"] == "Pod" and obj["spec"].get("nodeName")]

    pass_time()
    (job,) = hub.slurm.jobs.values()
    asked, job.request = job.request, replace(job.request, cpus=1)
    assert hub.slurm.start(job)
    pass_time()
    assert not bound()
    assert [type(action) for action in told] == [actions.GiveBack]
    assert told[0].reason == allotted.REASON and "for pods that take" in told[0].why
    hub.clock.advance(600)
    pass_time()
    (again,) = (other for other in hub.slurm.jobs.values() if other.lives)
    assert replace(again.request, link=asked.link) == asked
    assert hub.slurm.start(again)
    pass_time()
    assert len(bound()) == len(created)
