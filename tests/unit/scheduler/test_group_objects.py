"""A corrected ``minMember`` or ``minCount`` is read for pods that wait for more members."""

from types import SimpleNamespace

import pytest

from bridge import names
from bridge.errors import KubeForbiddenError
from bridge.workload import links, pods
from scheduler import pod_group, waiting_groups
from tests.builders import group, pod
from tests.fakes.clock import FakeClock
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


def member(world, kind, number, minimum, size=None, uid="o", owners=()):
    world.made += 1
    metadata = {"name": f"m{number}", "creationTimestamp": world.hub.kube.stamp()}
    metadata["ownerReferences"] = [{"kind": "PodGroup", "name": "g", "uid": uid} for uid in owners]
    place = group(size or minimum, minimum, kind=kind, name="g", uid=uid)
    world.hub.create(pod(f"u{world.made}", held=True, requests={"cpu": "5"}, annotations=place, metadata=metadata))


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


def groups_of(world):
    """Return the UID of the group of each pod, and the size and minimum there, by name."""
    found = {pod["metadata"]["name"]: links.group_of(pod) for pod in world.hub.kube.pods()}
    return {name: (place.key.uid, place.size, place.minimum) for name, place in found.items()}


@pytest.mark.parametrize("owners", [("o",), ("another", "o")])
def test_pods_that_a_deleted_group_owns_do_not_join_another_one(world, kind, owners):
    write(world, kind, 1, "new")
    member(world, kind, 0, 2, owners=owners)
    settle(world)
    assert not world.hub.slurm.live()
    assert groups_of(world) == {"m0": ("o", 2, 2)}


def test_an_answer_without_a_uid_names_no_other_group(world, kind):
    write(world, kind, 1, "")
    member(world, kind, 0, 2)
    settle(world)
    assert groups_of(world) == {"m0": ("o", 2, 2)}


@pytest.mark.parametrize(("size", "joined"), [(3, 4), (9, 9)])
def test_waiting_pods_join_the_group_that_was_created_again_under_their_groups_name(world, kind, size, joined):
    """The ReplicaSet keeps its waiting pods: they would wait for ever for pods that get the new UID."""
    for number in range(2):
        member(world, kind, number, 3, size, owners=["a-replica-set"])
    settle(world)
    write(world, kind, 4, "new")
    for number in range(2, 4):
        member(world, kind, number, 4, joined, "new")
    settle(world)
    assert set(groups_of(world).values()) == {("new", joined, 4)}
    (job,) = world.hub.slurm.live()
    assert job.request.link.keys == (f"{kind}/new/",)
    assert jobs(world) == dict.fromkeys(["m0", "m1", "m2", "m3"], job.job_id)


def test_the_job_for_the_old_group_is_cancelled(world, kind):
    write(world, kind, 3)
    for number in range(3):
        member(world, kind, number, 3)
    world.look(5)
    (job,) = world.hub.slurm.live()
    world.hub.clock.advance(30)
    world.look(3)
    assert {pods.job_id(pod) for pod in world.hub.kube.pods()} == {job.job_id}
    write(world, kind, 3, "new")
    world.hub.clock.advance(waiting_groups.LONG_PERIOD)
    world.look(10)
    assert job.state == "CANCELLED"
    (other,) = world.hub.slurm.live()
    assert other.request.link.keys == (f"{kind}/new/",)


def test_members_stay_while_one_of_them_runs(world, kind):
    write(world, kind, 2)
    for number in range(2):
        member(world, kind, number, 2)
    settle(world)
    assert len(jobs(world)) == 2
    write(world, kind, 2, "new")
    member(world, kind, 2, 2)
    settle(world)
    world.hub.clock.advance(waiting_groups.LONG_PERIOD)
    settle(world)
    assert {uid for uid, _, _ in groups_of(world).values()} == {"o"}


def test_pods_of_a_group_that_lets_each_start_alone_get_jobs_of_their_own(world):
    member(world, "workload", 0, 3)
    member(world, "workload", 1, 3)
    write(world, "workload", 3, "new")
    world.hub.kube.objects[PATHS["workload"]]["spec"] = {"schedulingPolicy": {"basic": {}}}
    settle(world)
    assert len(set(jobs(world).values())) == 2


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "two processes"])
def test_a_kill_at_any_write_loses_no_pod_and_leaves_no_job(apart):
    kind, writes, kills = "podgroup", 1, 0
    while kills == writes - 1:
        world = World(apart=apart)
        write(world, kind, 3)
        for number in range(3):
            member(world, kind, number, 3)
        world.look(4)
        write(world, kind, 3, "new")
        world.hub.clock.advance(waiting_groups.LONG_PERIOD)
        before = world.hub.restarts
        world.hub.writes.kill_after = writes
        world.look(30)  # the job for the old group is pending
        settle(world, 30)
        kills += world.hub.restarts > before
        writes += 1
        assert set(groups_of(world).values()) == {("new", 3, 3)}, world.story()
        (job,) = world.hub.slurm.live()
        assert jobs(world) == dict.fromkeys(["m0", "m1", "m2"], job.job_id), world.story()
    assert kills >= 8


def test_groups_are_read_seldom_and_not_after_their_job(world, kind, monkeypatch):
    reads = []
    original = waiting_groups.get_if_served
    monkeypatch.setattr(waiting_groups, "get_if_served", lambda *args: reads.append(args[-1]) or original(*args))
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

    monkeypatch.setattr(waiting_groups, "get_if_served", forbidden)
    member(world, kind, 0, 2)
    settle(world, 30)
    assert len(calls) == 1
    assert said(world) == {f"1 of 2 pods of {kind} g are present"}


def test_each_of_many_groups_is_read_in_turn():
    """A user with more groups than are read in a period kept those of others from their turn."""
    clock, read = FakeClock(), set()
    objects = waiting_groups.GroupObjects(None, clock)
    workers = SimpleNamespace(submit=lambda key, *_, **__: read.add(key))
    number = 3 * int(waiting_groups.PERIOD / waiting_groups.GAP)
    entries = (
        pod(f"u{index}", annotations=group(2, kind="podgroup", name=f"g{index}", uid=f"o{index}"))
        for index in range(number)
    )
    groups = [pod_group.make([(entry, links.membership(entry))]) for entry in entries]
    for _ in range(number):
        clock.advance(waiting_groups.GAP)
        objects.request(groups, lambda _: False, workers)
    assert len(read) == number
