"""A corrected ``minMember`` or ``minCount`` is read for pods that wait for more members."""

import json

import pytest

from bridge import names
from bridge.errors import KubeForbiddenError
from bridge.workload import pods
from scheduler import group_minimums
from tests.unit.scheduler.test_ended_jobs import World
from tests.unit.scheduler.test_gang_apart import jobs, settle

PATHS = {
    "podgroup": "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g",
    "workload": "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/g",
}


@pytest.fixture(params=PATHS)
def kind(request):
    return request.param


@pytest.fixture
def world():
    return World()


def write(world, kind, minimum, uid="o"):
    spec = {"minMember": minimum} if kind == "podgroup" else {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    world.hub.kube.objects[PATHS[kind]] = {
        "kind": "PodGroup",
        "metadata": {"name": "g", "uid": uid, "resourceVersion": "1"},
        "spec": spec,
        "status": {},
    }


def member(world, kind, number, minimum, size=None):
    world.made += 1
    group = {"kind": kind, "name": "g", "uid": "o", "size": size or minimum, "minimum": minimum}
    metadata = {"namespace": "ns", "name": f"m{number}", "uid": f"u{world.made}", "labels": {}}
    metadata |= {"finalizers": [names.FINALIZER], "creationTimestamp": world.hub.kube.stamp()}
    metadata["annotations"] = {names.GROUP: json.dumps(group)}
    spec = {"containers": [{"resources": {"requests": {"cpu": "5"}}}], "schedulerName": world.hub.config.scheduler_name}
    pod = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    world.hub.kube.put(f"/api/v1/namespaces/ns/pods/m{number}", pod)


def said(world):
    found = (pods.condition(pod, names.POD_SCHEDULED) for pod in world.hub.kube.pods())
    return {condition.get("message", "") for condition in found}


@pytest.mark.parametrize("size", [5, 9])
def test_a_group_starts_when_its_minimum_is_lowered_to_the_pods_that_exist(world, kind, size):
    write(world, kind, 5)
    for number in range(3):
        member(world, kind, number, 5, size)
    settle(world)
    assert not world.hub.slurm.live()
    write(world, kind, 3)
    settle(world)
    assert len(jobs(world)) == 3
    (job,) = world.hub.slurm.live()
    assert job.request.min_nodes == 3
    assert job.request.max_nodes == (3 if size == 5 else 9)


def test_the_message_names_the_minimum_of_the_object(world, kind):
    write(world, kind, 5)
    member(world, kind, 0, 5)
    settle(world, 5)
    write(world, kind, 4)
    settle(world, 40)
    assert said(world) == {f"1 of 4 pods of {kind} g are present"}


@pytest.mark.parametrize("uid", ["other", ""])
def test_a_group_that_was_created_again_is_another_one(world, kind, uid):
    write(world, kind, 1, uid)
    member(world, kind, 0, 2)
    settle(world)
    assert not world.hub.slurm.live()


def test_groups_are_read_seldom_and_not_after_their_job(world, kind, monkeypatch):
    reads = []
    original = group_minimums.get_if_served
    monkeypatch.setattr(group_minimums, "get_if_served", lambda *args: reads.append(args[-1]) or original(*args))
    write(world, kind, 3)
    for number in range(2):
        member(world, kind, number, 3)
    settle(world, 30)
    assert 2 <= len(reads) <= 5
    member(world, kind, 2, 3)
    settle(world)
    assert len(jobs(world)) == 3
    before = len(reads)
    settle(world, 30)
    assert len(reads) == before


def test_without_the_permission_new_pods_alone_have_a_changed_minimum(world, kind, monkeypatch):
    calls = []

    def forbidden(*args):
        calls.append(args)
        raise KubeForbiddenError("no", status=403)

    monkeypatch.setattr(group_minimums, "get_if_served", forbidden)
    member(world, kind, 0, 2)
    settle(world, 30)
    assert len(calls) == 1
    assert said(world) == {f"1 of 2 pods of {kind} g are present"}
