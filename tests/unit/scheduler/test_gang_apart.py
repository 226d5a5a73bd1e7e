"""Members for which the running job of their gang has no place, in the whole hub in memory.

Reported for other schedulers in ray-project/kuberay#5205 (scale-up after the start), volcano-sh/volcano#5805 (a node is
drained) and kubernetes-sigs/lws#586 (a node is lost).
"""

from collections import Counter

import pytest

from bridge import names
from bridge.errors import SlurmRefusedError
from bridge.kube.resources import NODES
from bridge.workload import links, pods
from scheduler import member_places, pod_group
from tests import builders
from tests.unit.scheduler.test_ended_jobs import World


@pytest.fixture(params=[False, True], ids=["one process", "two processes"])
def world(request):
    return World(apart=request.param)


def make(world, name, *, cpu="5", size=3, minimum=3, slot=None):
    """Create a member; its UID is new each time."""
    world.made += 1
    slots = {} if slot is None else {"slot": slot}
    place = builders.group(size, minimum, kind="podgroup", name="ring", uid="o-ring", **slots)
    metadata = {"name": name, "creationTimestamp": world.hub.kube.stamp()}
    world.hub.create(
        builders.pod(f"u{world.made}", held=True, requests={"cpu": cpu}, annotations=place, metadata=metadata)
    )


def jobs(world):
    """Return the job of each running pod, by name."""
    return {pod["metadata"]["name"]: pods.job_id(pod) for pod in world.running() if not pods.is_deleted(pod)}


def settle(world, looks=25):
    for _ in range(looks):
        world.look()
        for job in world.jobs("PENDING"):
            world.hub.slurm.start(job)


def trio(world):
    for number in range(3):
        make(world, f"ring-{number}")
    settle(world)
    (job,) = world.hub.slurm.live()
    assert jobs(world) == dict.fromkeys(["ring-0", "ring-1", "ring-2"], job.job_id)
    return job


def end(world, name, phase="Failed"):
    """Delete a pod, and end its containers."""
    pod = world.hub.kube.get(f"/api/v1/namespaces/ns/pods/{name}")
    world.hub.kube.request_deletion(f"/api/v1/namespaces/ns/pods/{name}")
    if pods.is_bound(pod):
        world.finish(pod, phase)
    world.look(3)


@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("cpu", ["5", "7"], ids=["the same request", "another request"])
def test_a_controller_that_is_scaled_up_gets_its_pods(world, more, slots, cpu):
    job = trio(world)
    for number in range(3, 3 + more):
        make(world, f"ring-{number}", cpu=cpu, size=3 + more, slot=number if slots else None)
    settle(world)
    found = jobs(world)
    assert len(found) == 3 + more
    assert len(set(found.values())) == 1 + more
    assert list(found.values()).count(job.job_id) == 3
    for number in range(3 + more):
        end(world, f"ring-{number}", "Succeeded")
    settle(world, 10)
    assert not world.hub.kube.pods()
    assert not world.hub.slurm.live()


def test_extra_members_wait_until_the_minimum_runs(world):
    for number in range(3):
        make(world, f"ring-{number}")
    world.look(8)
    make(world, "ring-3")
    world.look(8)
    assert len(world.hub.slurm.live()) == 1
    settle(world)
    assert len(jobs(world)) == 4
    assert len(world.hub.slurm.live()) == 2


def test_a_rolling_update_replaces_all_pods(world):
    """One more pod than wanted is created, an old one is deleted when it runs, and so on."""
    trio(world)
    for number in range(3):
        make(world, f"new-{number}", cpu="6")
        settle(world)
        assert f"new-{number}" in jobs(world)
        end(world, f"ring-{number}")
    settle(world, 10)
    assert sorted(jobs(world)) == ["new-0", "new-1", "new-2"]
    assert len(world.hub.slurm.live()) == 3


def trio_with_a_successor(world):
    """Return the job of three pods, one of which has a successor since its node was drained."""
    job = trio(world)
    world.hub.cordon(job.nodes[1])
    gone = next(pod for pod in world.running() if pod["spec"]["nodeName"] == job.nodes[1])
    end(world, gone["metadata"]["name"])
    make(world, "again")
    settle(world)
    return job


def test_the_successor_of_a_pod_on_a_drained_node_runs_elsewhere(world):
    job = trio_with_a_successor(world)
    found = jobs(world)
    assert len(found) == 3
    assert found["again"] != job.job_id
    assert job.lives


def place_of(world, name):
    return world.hub.kube.get(f"/api/v1/namespaces/ns/pods/{name}")["spec"].get("nodeName")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_running_job_gives_back_a_drained_node_on_which_no_member_is_left(world, number, restarted):
    """Slurm shows a node as DRAINING while a job has it: nebius/soperator#2962."""
    job = trio(world)
    before = {f"ring-{slot}": place_of(world, f"ring-{slot}") for slot in range(3)}
    drained = job.nodes[number]
    (gone,) = [name for name, node in before.items() if node == drained]
    world.hub.cordon(drained)
    world.look()
    world.hub.kube.request_deletion(f"/api/v1/namespaces/ns/pods/{gone}")
    settle(world, 3)
    assert drained in job.nodes, "its containers have not ended"
    end(world, gone)
    if restarted:
        world.hub.restart()
    settle(world)
    kept = tuple(node for node in before.values() if node != drained)
    assert (job.nodes, job.state) == (kept, "RUNNING")
    world.hub.cordon(drained, False)
    for name in before:  # whoever comes later gets none of the place
        make(world, f"next-{name}")
    settle(world)
    assert {name: place_of(world, name) for name in before if name != gone} == {
        name: node for name, node in before.items() if name != gone
    }
    assert all(jobs(world)[f"next-{name}"] not in (None, job.job_id) for name in before)
    (other, *_) = [name for name in before if name != gone]
    end(world, other)
    make(world, "heir")
    settle(world)
    assert (jobs(world)["heir"], place_of(world, "heir")) == (job.job_id, before[other])


@pytest.mark.parametrize("number", range(4))
def test_a_component_gives_back_a_drained_node(world, number):
    for slot in range(4):
        make(world, f"ring-{slot}", cpu="5" if slot < 2 else "6", size=4, minimum=4, slot=slot)
    settle(world)
    (job,) = world.hub.slurm.live()
    before = {f"ring-{slot}": place_of(world, f"ring-{slot}") for slot in range(4)}
    drained = [node for part in job.all for node in part.nodes][number]
    (gone,) = [name for name, node in before.items() if node == drained]
    world.hub.cordon(drained)
    end(world, gone)
    settle(world, 5)
    kept = [[node for node in before.values() if node in part.nodes] for part in job.all]
    assert sorted(map(len, kept)) == [1, 2]
    assert drained not in {node for part in job.all for node in part.nodes}
    assert jobs(world) == {name: job.job_id for name in before if name != gone}
    (alone,) = [name for name, node in before.items() if [node] in kept]
    world.hub.cordon(before[alone])
    end(world, alone)
    settle(world, 5)
    assert [before[alone]] in [list(part.nodes) for part in job.all], "a component keeps one node"


def test_a_kill_at_any_write_of_a_drain_ends_no_member_and_gives_the_node_back(world):
    apart, writes, kills = world.apart, 1, 0
    while kills == writes - 1:
        world = World(apart=apart)
        job = trio(world)
        (drained, *kept) = job.nodes
        (gone,) = [f"ring-{slot}" for slot in range(3) if place_of(world, f"ring-{slot}") == drained]
        before = jobs(world)
        restarts = world.hub.restarts
        world.hub.writes.kill_after = writes
        world.hub.cordon(drained)
        world.look(2)
        end(world, gone)
        make(world, "again")
        settle(world, 40)
        kills += world.hub.restarts > restarts
        writes += 1
        assert job.nodes == tuple(kept), world.story()
        found = jobs(world)
        assert found.pop("again") not in (None, job.job_id), world.story()
        assert found == {name: job_id for name, job_id in before.items() if name != gone}, world.story()
        assert len(world.hub.slurm.live()) == 2
    assert kills >= 6


def test_a_process_that_has_not_seen_the_loss_of_a_node_binds_no_pod_there(world):
    """Slurm shows no change of the state of the job, so no poll reads it: nodes are lost to an administrator, too."""
    job = trio(world)
    lost = place_of(world, "ring-1")
    job.nodes = tuple(node for node in job.nodes if node != lost)
    end(world, "ring-1")
    make(world, "heir")
    settle(world)
    assert jobs(world)["heir"] not in (None, job.job_id)


def test_a_refused_request_leaves_the_job_as_it_is(world, monkeypatch):
    job = trio(world)
    asked = []

    def refuse(job_id, nodes):
        asked.append(nodes)
        raise SlurmRefusedError("no", code=2018)

    monkeypatch.setattr(world.hub.slurm, "shrink", refuse)
    nodes = job.nodes
    world.hub.cordon(nodes[1])
    (gone,) = [f"ring-{slot}" for slot in range(3) if place_of(world, f"ring-{slot}") == nodes[1]]
    end(world, gone)
    settle(world, 20)
    assert (job.nodes, job.state, len(asked)) == (nodes, "RUNNING", 1)
    assert len(jobs(world)) == 2
    world.hub.clock.advance(300)
    settle(world, 2)
    assert len(asked) == 2


def test_the_job_of_a_gang_whose_last_living_member_is_evicted_ends(world):
    job = trio(world)
    for slot in range(3):
        world.hub.cordon(place_of(world, f"ring-{slot}"))
        end(world, f"ring-{slot}")
    settle(world, 5)
    assert not job.lives
    assert not world.hub.slurm.live()


@pytest.mark.parametrize("size", [5, 6])
def test_a_job_that_has_lost_a_node_has_the_places_of_the_others(size):
    """The last node of a job for five members, two on a node, has CPUs for one of them."""
    found = gang_of(size)
    nodes, short = ("n1", "n2", "n3"), 1 if size == 5 else 2
    assert Counter(member_places.assign(found, nodes, size, 2, exact=True).values()) == {"n1": 2, "n2": 2, "n3": short}
    assert Counter(member_places.assign(found, nodes[1:], size, 2, exact=True).values()) == {"n2": 2, "n3": short}


def gang_of(size):
    found = [builders.pod(f"u{number}", annotations=builders.group(size), containers=[]) for number in range(size)]
    return pod_group.make((pod, links.membership(pod)) for pod in found)


@pytest.mark.parametrize("seconds", [0, 60], ids=["in one second", "later"])
def test_a_pod_with_another_request_gets_a_job_of_its_own_though_a_member_is_gone(world, seconds, monkeypatch):
    """Time stamps are in whole seconds: a pod that is created in the second of a bind is not known to be younger."""
    if not seconds:
        stamp = world.hub.kube.stamp()
        monkeypatch.setattr(world.hub.kube, "stamp", lambda later=0: stamp)
    trio(world)
    world.hub.clock.advance(seconds)
    end(world, "ring-2")
    make(world, "ring-3", cpu="7")
    settle(world)
    assert len(set(jobs(world).values())) == 2
    assert "ring-3" in jobs(world)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_with_a_job_of_its_own_counts_when_the_others_start_again(world, restarted):
    """Else the two others would wait for a third pod that nobody creates."""
    job = trio_with_a_successor(world)
    if restarted:
        world.hub.restart(inherited=False)
    job.set("TIMEOUT")
    settle(world, 10)
    for pod in world.running():
        if pods.is_deleted(pod):
            world.finish(pod, "Failed")
    settle(world, 5)
    for number in range(2):
        make(world, f"next-{number}")
    settle(world, 60)
    assert sorted(jobs(world)) == ["again", "next-0", "next-1"]
    assert jobs(world)["next-0"] == jobs(world)["next-1"] != jobs(world)["again"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pod_on_a_lost_node_does_not_keep_the_group_waiting(world, restarted):
    """The node fails: Slurm ends the job, and the kubelet there never ends its pod."""
    job = trio(world)
    world.power(job.nodes[0], "", ready=False)
    dead = next(pod for pod in world.running() if pod["spec"]["nodeName"] == job.nodes[0])
    job.set("NODE_FAIL")
    settle(world, 6)
    assert all(pods.is_deleted(pod) for pod in world.running())
    for pod in world.running():
        if pod["spec"]["nodeName"] != job.nodes[0]:
            world.finish(pod, "Failed")
    if restarted:
        world.hub.restart(inherited=False)
    settle(world, 4)
    for number in range(3):
        make(world, f"next-{number}")
    settle(world, 40)
    assert sorted(jobs(world)) == ["next-0", "next-1", "next-2"]
    assert dead["metadata"]["uid"] in {pods.uid(pod) for pod in world.running()}


def test_a_pod_on_a_living_node_keeps_the_group_waiting(world):
    job = trio(world)
    job.set("NODE_FAIL")
    settle(world, 6)
    for number in range(3):
        make(world, f"next-{number}")
    settle(world)
    assert not jobs(world)
    said = {
        pods.condition(pod, names.POD_SCHEDULED).get("reason") for pod in filter(pods.is_open, world.hub.kube.pods())
    }
    assert said == {"GangEnding"}


def test_a_member_of_a_full_place_gets_a_job_of_its_own_after_a_while(world):
    job = trio(world)
    gone = next(pod for pod in world.running() if pod["spec"]["nodeName"] == job.nodes[1])
    end(world, gone["metadata"]["name"])
    world.create(("alone", 0))  # bound to the same node by an earlier job; its containers have not ended
    path = "/api/v1/namespaces/ns/pods/alone-0"
    other = world.hub.kube.get(path)
    other["spec"]["nodeName"] = job.nodes[1]
    other["metadata"]["annotations"] = {names.JOB_ID_ANNOTATION: "99", names.SLURM_NODE_ANNOTATION: job.nodes[1]}
    world.hub.kube.put(path, other)
    make(world, "again")
    settle(world, 5)
    assert "again" not in jobs(world)
    again = world.hub.kube.get("/api/v1/namespaces/ns/pods/again")
    assert pods.condition(again, names.POD_SCHEDULED)["reason"] == "NodeBusy"
    world.hub.clock.advance(world.hub.config.busy_node_timeout)
    settle(world, 60)
    assert jobs(world)["again"] not in (None, job.job_id)


def test_a_member_with_a_job_of_its_own_keeps_its_group_on_the_pod(world):
    trio(world)
    make(world, "ring-3")
    settle(world)
    pod = world.hub.kube.get("/api/v1/namespaces/ns/pods/ring-3")
    assert links.membership(pod) is None
    assert links.key(pod) == pods.uid(pod)
    member = links.group_of(pod)
    assert (member.alone, member.key.key, member.minimum) == (True, "podgroup/o-ring/", 3)


def taint(world, node):
    entry = world.hub.kube.get(NODES.path(name=node))
    entry["spec"].setdefault("taints", []).append({"key": "broken", "effect": "NoSchedule"})
    world.hub.kube.put(NODES.path(name=node), entry)


def in_one_second(world):
    """Let all that has happened have happened within one second of the API server's clock."""
    for pod in world.hub.kube.pods():
        pod["metadata"]["creationTimestamp"] = world.hub.kube.stamp()
        for entry in pod["status"].get("conditions") or ():
            if entry["type"] == names.POD_SCHEDULED and entry["status"] == "True":
                entry["lastTransitionTime"] = world.hub.kube.stamp()
        world.hub.kube.put(f"/api/v1/namespaces/ns/pods/{pod['metadata']['name']}", pod)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("why", ["cordon", "taint"])
def test_a_refused_node_ends_no_member_though_the_one_with_a_job_of_its_own_is_deleted(world, why, restarted):
    """The members that run in the job are then fewer than the minimum, as after a crash between two binds."""
    for number in range(2):
        make(world, f"ring-{number}", size=2, minimum=2)
    settle(world)
    (job,) = world.hub.slurm.live()
    gone = next(pod for pod in world.running() if pod["spec"]["nodeName"] == job.nodes[1])
    if why == "taint":
        taint(world, job.nodes[1])
    else:
        world.hub.cordon(job.nodes[1])
    end(world, gone["metadata"]["name"])
    make(world, "again", size=2, minimum=2)
    settle(world)
    assert jobs(world)["again"] != job.job_id
    world.hub.kube.request_deletion("/api/v1/namespaces/ns/pods/again")
    if restarted:
        world.hub.restart(inherited=False)
    make(world, "third", size=2, minimum=2)
    in_one_second(world)
    settle(world)
    world.hub.clock.advance(world.hub.config.busy_node_timeout)
    settle(world)
    assert job.lives
    assert len(jobs(world)) == 2
