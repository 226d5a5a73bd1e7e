"""Gangs whose members request different resources: decisions, and the whole hub in memory with their jobs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.config.hub import Config
from bridge.slurm.components import Component, joined
from bridge.slurm.models import Job, JobLink, ObservedJob
from bridge.workload import links, pods
from scheduler import group_actions, member_places, pod_group
from scheduler.group_states import NEW, GroupStates
from tests.fakes.memory_hub import MemoryHub
from tests.unit.scheduler.test_gang_decide import NODES, REF, kinds, look, member, sharing_nodes, snapshot
from tests.unit.scheduler.test_state_machine import path_of

KUEUE = '{"kind":"jobset","name":"train","uid":"o1","index":"workers","size":2,"minimum":2}'
DRIVER, WORKER = "1", "4"
"""CPUs of the members of slot 0, and of the others."""


def members(*, size=3, **more):
    """Return a driver and its workers."""
    return [member(slot, size=size, cpu=WORKER if slot else DRIVER, **more) for slot in range(size)]


def known(job_id, states, nodes, pods_of_parts, **more):
    """Return a heterogeneous job; ``states``, ``nodes`` and a pod for each part."""
    count, size = len(nodes), more.pop("size", 3)
    counts = more.pop("counts", [1] * (count - 1) + [size - count + 1])
    found = []
    for number, (state, given_nodes, pod) in enumerate(zip(states, nodes, pods_of_parts, strict=True)):
        together = min(member_places.together([pod]), counts[number])
        shape = links.shape(pod)
        link = JobLink("c", (), REF, size, shape, number, count, members=counts[number], together=together)
        job = Job(job_id + number, frozenset({state}), link, tuple(given_nodes), **more)
        found.append(Component(job_id, number, job))
    return ObservedJob(joined(found)[0])


def running(job_id, nodes, of, **more):
    return known(job_id, ["RUNNING"] * len(nodes), nodes, of, **more)


def places(found):
    return [(action.pod["metadata"]["name"], action.node, action.component) for action in found]


def test_a_component_runs_no_more_members_than_it_was_submitted_for():
    driver, *workers = [sharing_nodes(pod, 4) for pod in members(size=5, job=5)]
    entries = [(pod, links.membership(pod)) for pod in (driver, *workers)]
    job = running(5, [["n0"], ["n1"]], [driver, workers[0]], size=5, counts=[1, 2]).job
    assert member_places.assign_places(pod_group.make(entries), job) == {"u0": "n0", "u1": "n1", "u2": "n1"}
    assert member_places.sharing(job, [driver, *workers]) == {"u0": 1} | dict.fromkeys(("u1", "u2", "u3", "u4"), 2)


def test_members_without_slots_that_differ_wait_for_others_that_request_the_same():
    """A stranger that is labelled first does not keep the members from their job."""
    states = GroupStates()
    stranger, first, second = [
        member(slot, size=2, cpu=cpu, uid=f"u{slot}", annotations={names.GROUP: KUEUE})
        for slot, cpu in enumerate("811")
    ]
    told, _ = look([stranger, first], snapshot(), states)
    assert (told.reason, "waits 5 s" in told.message) == ("GangIncomplete", True)
    (submit,) = look([stranger, first], snapshot(), states, now=1005.0)
    assert len(submit.group.waiting) == 2
    old = [
        {**pod, "metadata": pod["metadata"] | {"creationTimestamp": "1970-01-01T00:16:35Z"}}
        for pod in (stranger, first)
    ]
    (submit,) = look(old, snapshot(), GroupStates())  # a scheduler that has just started does not wait again
    assert len(submit.group.waiting) == 2
    submit, differs = look([stranger, first, second], snapshot(), GroupStates())
    assert [pod["metadata"]["name"] for pod in submit.group.waiting] == ["train-1", "train-2"]
    assert differs.reason == "GangDiffers"


def test_each_member_is_bound_to_a_node_of_the_component_for_its_shape():
    found = members(job=5)
    job = running(5, [("n3",), ("n0", "n1")], found[:2])
    assert places(look(found, snapshot(job))) == [("train-0", "n3", 5), ("train-1", "n0", 6), ("train-2", "n1", 6)]


def test_a_node_is_shared_by_no_more_members_than_the_component_or_the_job_has():
    found = members(annotations={names.GROUP: KUEUE, names.MEMBERS_PER_NODE: "8"})
    job = running(5, [("n3",), ("n0",)], found[:2]).job
    assert member_places.sharing(job, found) == {"u0": 1, "u1": 2, "u2": 2}
    whole = Job(5, frozenset({"RUNNING"}), JobLink("c", (), REF, 3, together=2), ("n0",))
    assert member_places.sharing(whole, found[:1]) == {"u0": 2}


@pytest.mark.parametrize("states", [["RUNNING", "PENDING"], ["PENDING", "RUNNING"], ["RUNNING", "SUSPENDED"]])
def test_no_member_is_bound_before_every_component_is_allocated(states):
    found = members(job=5)
    job = known(5, states, [("n3",), ("n0", "n1")], found[:2])
    assert not any(isinstance(action, group_actions.Bind) for action in look(found, snapshot(job)))


def test_no_member_is_bound_if_the_node_of_another_component_is_refused():
    found = members(job=5)
    job = running(5, [("n3",), ("n0", "n1")], found[:2])
    (action,) = look(found, snapshot(job), refused=("n3",))
    assert (type(action), action.job_id) == (group_actions.CancelAndResubmit, 5)


def test_a_member_of_another_shape_does_not_take_the_place_of_a_missing_one():
    """The job was submitted for a driver and two workers; a third worker is no driver."""
    first = members()
    late = member(0, job=5, cpu=WORKER)
    for job in (running(5, [("n3",), ("n0", "n1")], first[:2]), known(5, ["PENDING"] * 2, [(), ()], first[:2])):
        (back,) = look([late, *members(job=5)[1:]], snapshot(job))
        assert isinstance(back, group_actions.CancelAndResubmit)
        assert len(back.group.waiting) == 3


def test_a_pending_job_waits_for_the_successor_of_a_deleted_member():
    found = members(job=5)
    job = known(5, ["PENDING"] * 2, [(), ()], found[:2])
    assert look(found[1:], snapshot(job)) == []


def test_a_stranger_gets_no_place_in_any_component():
    """Any user of the namespace may label a pod as a member."""
    found = members(job=5)
    stranger = member(2, name="stranger", uid="s", cpu="8", job=5)
    job = running(5, [("n3",), ("n0", "n1")], found[:2])
    told, *binds = look([*found, stranger], snapshot(job))
    assert (told.pod, told.reason) == (stranger, "GangDiffers")
    assert kinds(binds) == ["Bind"] * 3


def test_a_stranger_with_the_slot_of_a_member_is_left_out_of_the_submission():
    stranger = member(2, name="a-stranger", uid="s", cpu="8")
    submit, told = look([stranger, *members()], snapshot())
    assert [pod["metadata"]["name"] for pod in submit.group.waiting] == ["train-0", "train-1", "train-2"]
    assert (told.pod, told.reason) == (stranger, "GangDiffers")


def test_a_member_that_is_created_again_takes_its_place_in_its_component():
    found = [
        member(slot, job=5, node=node, phase="Running", cpu=WORKER if slot else DRIVER)
        for slot, node in enumerate(["n3", "n0", "n1"])
    ]
    ended = member(0, job=5, node="n3", phase="Failed", name="old", uid="old", cpu=DRIVER)
    job = running(5, [("n3",), ("n0", "n1")], found[:2])
    again = member(0, job=5, cpu=DRIVER)
    assert places(look([ended, again, *found[1:]], snapshot(job))) == [("train-0", "n3", 5)]


def test_each_component_excludes_the_nodes_that_its_members_cannot_use():
    found = [member(0, job=5, cpu=DRIVER), *(member(slot, job=5, cpu="9") for slot in (1, 2))]
    job = known(5, ["PENDING"] * 2, [(), ()], found[:2])
    states = GroupStates()
    states.update(REF.key, lambda _: NEW.submitted(5, 1000.0, (), ()))
    (exclude,) = look(found, snapshot(job), states)
    assert (exclude.job_id, exclude.component, exclude.part, exclude.nodes) == (5, 6, 1, NODES)
    states.update(REF.key, lambda state: state.excluding(1, NODES))
    assert look(found, snapshot(job), states) == []


def test_a_job_whose_components_are_not_read_yet_is_left_alone():
    found = members(job=5)
    link = JobLink("c", (), REF, 3, links.shape(found[0]), 0, 2)
    for state in ("PENDING", "RUNNING"):
        assert look(found, snapshot(ObservedJob(Job(5, frozenset({state}), link)))) == []


def test_a_member_deleted_before_the_bindings_is_waited_for_in_its_component():
    found, states = members(job=5), GroupStates()
    job = running(5, [("n3",), ("n0", "n1")], found[:2])
    (told, other) = look(found[1:], snapshot(job), states)
    assert (told.reason, told.message) == (
        "GangIncomplete",
        "2 of 3 pods of jobset train are present; Slurm job 5 is allocated",
    )
    assert other.reason == "GangIncomplete"
    assert kinds(look(found[1:], snapshot(job), states, now=1000.0 + Config().busy_node_timeout)) == [
        "CancelAndResubmit"
    ]


@given(st.data())
def test_places_are_in_the_own_component_never_taken_twice_and_the_same_after_a_crash(data):
    together = data.draw(st.integers(1, 2))
    cpus = data.draw(st.lists(st.sampled_from("123"), min_size=2, max_size=6))
    entries = []
    for slot, cpu in enumerate(cpus):
        pod = sharing_nodes(member(slot, job=5, size=len(cpus), cpu=cpu), together)
        place = links.membership(pod)
        entries.append((pod, place if data.draw(st.booleans()) else replace(place, slot=None)))
    groups = links.by_shape(pod for pod, _ in entries)
    numbers = iter(range(100))
    nodes = [tuple(f"n{next(numbers)}" for _ in range(-(-len(group) // together))) for group in groups.values()]
    counts = [len(group) for group in groups.values()]
    job = running(5, nodes, [group[0] for group in groups.values()], size=len(cpus), counts=counts).job
    plan = member_places.assign_places(pod_group.make(entries), job)
    shape_of = {node: part.shape for part in job.parts for node in part.nodes} or {
        node: links.shape(entries[0][0]) for node in job.nodes
    }
    assert len(plan) == len(cpus)
    assert all(shape_of[plan[pods.uid(pod)]] == links.shape(pod) for pod, _ in entries)
    assert all(list(plan.values()).count(node) <= together for node in job.nodes)
    bound = data.draw(st.sets(st.sampled_from(sorted(plan))))
    half = [
        (sharing_nodes(member(slot, job=5, size=len(cpus), cpu=cpu, node=plan[uid], phase="Running"), together), place)
        if (uid := f"u{slot}") in bound
        else (pod, place)
        for slot, (cpu, (pod, place)) in enumerate(zip(cpus, entries, strict=True))
    ]
    rest = member_places.assign_places(pod_group.make(half), job)
    assert set(rest) == plan.keys() - bound
    used = [plan[uid] for uid in bound] + list(rest.values())
    assert all(used.count(node) <= together for node in job.nodes)
    assert all(shape_of[rest[uid]] == shape_of[plan[uid]] for uid in rest)


@given(st.lists(st.tuples(st.integers(0, 4) | st.none(), st.sampled_from("123")), min_size=5, max_size=9))
def test_a_submission_is_for_no_more_members_than_the_gang_has_and_one_for_each_slot(asked):
    found = [member(slot or 0, size=5, cpu=cpu, name=f"m{n}", uid=f"m{n}") for n, (slot, cpu) in enumerate(asked)]
    entries = [(pod, replace(links.membership(pod), slot=slot)) for pod, (slot, _) in zip(found, asked, strict=True)]
    gang = pod_group.make(entries)
    kept, others = member_places.choose_members(gang)
    assert sorted(map(pods.uid, [*kept.waiting, *others])) == sorted(map(pods.uid, found))
    if len(links.by_shape(kept.waiting)) > 1:
        slots = [gang.slots[pods.uid(pod)] for pod in kept.waiting]
        assert len(slots) <= 5
        assert len({slot for slot in slots if slot is not None}) == len([slot for slot in slots if slot is not None])
    assert member_places.choose_members(kept) == (kept, [])


class Scene:
    """The hub in memory, with a driver and two workers of one group."""

    def __init__(self):
        self.hub = MemoryHub(("n0", "n1", "n2", "n3"))
        for slot in range(3):
            self.create(slot)

    def create(self, slot, uid=""):
        self.hub.create(member(slot, cpu=WORKER if slot else DRIVER, uid=uid, finalizers=[names.FINALIZER]))

    def settle(self, steps=8):
        """Let the hub work until nothing changes."""
        for _ in range(steps):
            self.hub.deliver()
            self.hub.poller.poll()
            for loop in self.hub.loops:
                self.hub.run(loop.reconcile)
            self.hub.run_all()
            self.hub.clock.advance(6)

    def nodes(self):
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in self.hub.kube.pods()}

    @property
    def job(self):
        (found,) = self.hub.slurm.live()
        return found


@pytest.fixture
def scene():
    return Scene()


def test_a_group_runs_in_one_heterogeneous_job_and_releases_it(scene):
    scene.settle()
    job = scene.job
    assert [part.request.cpus for part in job.all] == [4, 1], "Slurm looks for nodes in this order"
    assert [part.request.min_nodes for part in job.all] == [2, 1]
    assert scene.hub.slurm.start(job)
    scene.settle()
    assert scene.nodes() == {"train-0": "n2", "train-1": "n0", "train-2": "n1"}
    assert {pods.job_id(pod) for pod in scene.hub.kube.pods()} == {job.job_id}
    for pod in scene.hub.kube.pods():
        pod["status"]["phase"] = "Succeeded"
        scene.hub.kube.put(path_of(pod), pod)
    scene.settle()
    assert not scene.hub.slurm.live()
    assert not any(map(pods.is_held, scene.hub.kube.pods()))


def test_each_component_has_its_own_number_of_members_on_a_node(scene):
    for slot in (1, 2):
        path = f"/api/v1/namespaces/ns/pods/train-{slot}"
        scene.hub.kube.put(path, sharing_nodes(scene.hub.kube.get(path), 2))
    scene.settle(2)
    asked = sorted((part.request.cpus, part.request.min_nodes, part.request.tasks_per_node) for part in scene.job.all)
    assert asked == [(1, 1, 1), (4, 1, 2)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_component_that_ends_alone_ends_the_whole_group(scene, number):
    scene.settle()
    job = scene.job
    scene.hub.slurm.start(job)
    scene.settle()
    assert all(scene.nodes().values())
    job.all[number].state = "TIMEOUT"
    scene.settle()
    assert not job.lives, "the rest is cancelled"
    assert [part.state for part in job.all] == (["CANCELLED", "TIMEOUT"] if number else ["TIMEOUT", "CANCELLED"])
    assert all(pods.is_deleted(pod) for pod in scene.hub.kube.pods())
    assert {pod["status"]["reason"] for pod in scene.hub.kube.pods()} == {"TimeLimit"}


def test_a_component_that_ends_while_the_group_waits_gives_it_a_new_job(scene):
    scene.settle()
    job = scene.job
    job.components[0].state = "NODE_FAIL"
    scene.settle()
    assert not job.lives
    assert scene.job.job_id != job.job_id
    assert len(scene.job.all) == 2


@pytest.mark.parametrize("writes", range(1, 8))
def test_a_crash_after_any_write_binds_every_member_once(scene, writes):
    hub = scene.hub
    hub.writes.kill_after = writes
    for _ in range(3):
        scene.settle(3)
        for job in hub.slurm.live():
            hub.slurm.start(job)
    scene.settle()
    assert all(scene.nodes().values())
    assert (scene.nodes()["train-0"],) == scene.job.components[0].nodes
    assert {scene.nodes()["train-1"], scene.nodes()["train-2"]} == {*scene.job.nodes}


def test_a_taint_changes_the_excluded_nodes_of_every_component(scene):
    scene.settle()
    node = scene.hub.kube.get("/api/v1/nodes/n3")
    node["spec"]["taints"].append({"key": "broken", "effect": "NoSchedule"})
    scene.hub.kube.put("/api/v1/nodes/n3", node)
    scene.settle()
    assert [part.excluded for part in scene.job.all] == [("n3",), ("n3",)]


def test_a_group_that_needs_more_nodes_than_fit_is_not_submitted(scene):
    """Slurm never puts two components on one node: such a job would be pending for ever."""
    for name in ("n2", "n3"):
        scene.hub.cordon(name)
    scene.settle()
    assert not scene.hub.slurm.live()
    conditions = [pods.condition(pod, names.POD_SCHEDULED) for pod in scene.hub.kube.pods()]
    assert {condition["message"] for condition in conditions} == {"the group needs 3 nodes, but only 2 fit"}


def test_a_version_without_heterogeneous_jobs_refuses_the_group_with_words(scene):
    scene.hub.slurm.version = replace(scene.hub.slurm.version, name="v0.0.40", heterogeneous=False)
    scene.settle()
    assert not scene.hub.slurm.live()
    messages = {pods.condition(pod, names.POD_SCHEDULED)["message"] for pod in scene.hub.kube.pods()}
    assert messages == {
        "the pods of one group differ in cpus: they need a heterogeneous job, which Slurm's API v0.0.40 can't make; "
        "allowed: the same requests and settings"
    }


def test_the_rest_of_an_orphan_is_cancelled(scene):
    """All pods are gone, and a component was cancelled alone."""
    scene.settle()
    job = scene.job
    job.components[0].state = "CANCELLED"
    for pod in scene.hub.kube.pods():
        del scene.hub.kube.objects[path_of(pod)]
        scene.hub.kube.changes.append((pod, True))
    scene.settle()
    assert not job.lives
