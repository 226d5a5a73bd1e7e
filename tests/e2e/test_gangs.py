"""Gangs on real systems: one Slurm job for all pods of a Job, on every version of Slurm."""

import html
import json

import pytest

from cluster.polling import eventually
from cluster.systems import dashboard
from cluster.world import NAMESPACE, NODE
from tests.e2e.test_volumes import unprovisioned
from tests.fakes import pod_groups

pytestmark = pytest.mark.real

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_GROUPS = f"/apis/{pod_groups.API_VERSION}/namespaces/{NAMESPACE}/podgroups"
GROUP = "bridge.vk.io/group"
SLOT = "batch.kubernetes.io/job-completion-index"


@pytest.fixture
def gang(clean):
    """Return a function that creates a gang; all of them are deleted afterwards."""
    made = []

    def create(name, size, **more):
        made.append(clean.create_gang(name, size, **more))
        return made[-1]

    yield create
    for one in made:
        clean.delete_gang(one)


@pytest.fixture
def pod_group(clean):
    """Return a function that creates a PodGroup of scheduler-plugins; their resource is removed afterwards."""
    clean.api("POST", DEFINITIONS, pod_groups.DEFINITION)
    eventually(lambda: clean.api.request("GET", POD_GROUPS)[0] == 200, "PodGroups are served")

    def create(name, minimum):
        body = {"apiVersion": pod_groups.API_VERSION, "kind": "PodGroup", "metadata": {"name": name}}
        return clean.api("POST", POD_GROUPS, {**body, "spec": {"minMember": minimum}})

    yield create
    clean.api("DELETE", f"{DEFINITIONS}/{pod_groups.NAME}")


def minimum(pod):
    """Return the minimum of its group that admission has written on a pod."""
    return json.loads(pod["metadata"]["annotations"][GROUP])["minimum"]


def minimum_of_new_pods(world, group):
    """Return the minimum that admission writes on new pods of a PodGroup."""
    body = world.manifest()
    body["metadata"]["labels"] = {pod_groups.LABEL: group}
    return minimum(world.api("POST", f"{PODS}?dryRun=All", body))


def nodes(world, gang):
    """Return the node of each member by its slot."""
    return {
        int(pod["metadata"]["annotations"][SLOT]): pod["spec"].get("nodeName", "")
        for pod in world.members(gang)
        if pod["status"]["phase"] not in ("Failed", "Succeeded")
    }


def reasons(world, gang):
    return {world.condition(pod, "PodScheduled").get("reason") for pod in world.members(gang)}


def told(world, pods):
    """Return the reasons for which the pods wait, sorted."""
    return sorted(world.condition(pod, "PodScheduled").get("reason", "") for pod in pods)


def at_slot(world, gang, slot):
    return next(pod for pod in world.members(gang) if pod["metadata"]["annotations"][SLOT] == str(slot))


def finish(world, pod):
    """Let the containers of a pod end with exit code 0."""
    body = {"metadata": {"annotations": {"hack/run-seconds": "0"}}}
    world.api.merge(world.path(pod["metadata"]["name"]), body)


def succeeded(world, gang):
    name = gang["metadata"]["name"]
    return world.api("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")["status"].get("succeeded", 0)


def succeed_and_delete(world, gang, slot):
    """Let a member end successfully, and delete its pod after the Job controller has counted it."""
    pod = world.running(at_slot(world, gang, slot))
    finish(world, pod)
    eventually(lambda: succeeded(world, gang) == 1, "the member has succeeded")
    world.delete(pod, grace=1)
    world.gone(pod)


def hosts(world, job):
    return world.slurm("scontrol", "show", "hostnames", world.job(job)["NodeList"]).split()


def drain(world, node, *, ends=False):
    """Drain a node, or end its drain: in Kubernetes, on 22.05 in Slurm, where podbridge cannot do it."""
    if world.cluster.options.slurm == "22.05":
        world.slurm("scontrol", "update", f"nodename={node}", "state=resume" if ends else "state=drain", "reason=disk")
        if ends:
            eventually(lambda: not world.kube_node(node)["spec"].get("unschedulable"), "uncordoned", 20)
    else:
        world.cluster.kubectl("uncordon" if ends else "cordon", node)


def all_bound(world, group, count):
    """Return whether ``count`` members exist and each has a node, by one answer of the API server."""
    found = nodes(world, group)
    return len(found) == count and all(found.values())


def member_of_pair(world, name, **more):
    """Create a pod of a group that starts with two pods."""
    body = world.manifest(name, **more)
    body["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "pair"}
    body["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    return world.api("POST", PODS, body)


class TestGangs:
    def test_01_a_gang_waits_as_a_whole_and_starts_in_one_job_each_member_on_the_node_of_its_slot(self, clean, gang):
        world = clean
        blockers = [world.running(world.create(cpu="120")) for _ in range(2)]
        waiting = gang("train", 3, cpu="64", run="600")
        eventually(lambda: reasons(world, waiting) == {"SlurmPending"}, "the reason on all members", 40)
        assert set(nodes(world, waiting).values()) == {""}
        jobs = {world.labelled(pod) for pod in world.members(waiting)}
        assert len(jobs) == 1
        (job,) = jobs
        assert world.job(job)["JobName"] == "train"
        world.delete(blockers[0], grace=1)
        eventually(lambda: all(nodes(world, waiting).values()), "all members bound")
        assert nodes(world, waiting) == dict(enumerate(hosts(world, job)))
        for pod in world.members(waiting):
            assert pod["metadata"]["annotations"][NODE] == pod["spec"]["nodeName"]
        assert [found[0] for found in world.jobs_by_uid()[waiting["metadata"]["uid"]]] == [job]

    def test_02_a_member_that_is_made_again_takes_its_place_in_the_same_job(self, clean, gang):
        """The pod of a member that has succeeded is deleted before: the others do not need it."""
        world = clean
        running = gang("again", 3, run="600")
        eventually(lambda: all_bound(world, running, 3), "all bound")
        before, jobs = nodes(world, running), {world.job_of(pod) for pod in world.members(running)}
        succeed_and_delete(world, running, 0)
        victim = world.running(at_slot(world, running, 1))
        world.delete(victim, grace=1)
        eventually(lambda: world.get(victim) is None, "the member gone")
        eventually(lambda: len(found := nodes(world, running)) == 2 and all(found.values()), "its successor bound")
        assert nodes(world, running) == {1: before[1], 2: before[2]}
        assert {world.job_of(pod) for pod in world.members(running)} == jobs
        world.slurm("scancel", str(*jobs))
        ended = [pod for pod in world.members(running) if pod["metadata"]["uid"]]
        eventually(lambda: all(world.get(pod) is None for pod in ended), "every member ended with the job", 60)
        # the pods and their Events are gone; the Job keeps the reason
        eventually(lambda: world.events(running, "Cancelled"), "an Event on the owner")
        (event,) = world.events(running, "Cancelled")
        assert event["note"] == "podbridge has ended a pod: its Slurm job was cancelled"

    def test_03_members_share_nodes_where_the_job_says_so(self, clean, gang):
        world = clean
        packed = gang("packed", 5, run="600", annotations={"bridge.vk.io/members-per-node": "2"})
        eventually(lambda: all_bound(world, packed, 5), "all bound")
        (job,) = {world.job_of(pod) for pod in world.members(packed)}
        given = hosts(world, job)
        assert len(given) == 3
        assert nodes(world, packed) == {slot: given[slot // 2] for slot in range(5)}

    def test_05_a_deleted_gang_leaves_the_queue(self, clean, gang):
        world = clean
        blocker = world.running(world.create(cpu="120"))
        waiting = gang("deleted", 4, cpu="64")
        eventually(lambda: len(world.queue()) == 2, "queued")
        world.delete_gang(waiting)
        eventually(lambda: not world.members(waiting), "no member left")
        eventually(lambda: world.queue().keys() == {world.job_of(blocker)}, "its job gone")

    def test_07_members_that_are_made_again_do_not_wait_for_one_that_has_succeeded(self, clean, gang):
        world = clean
        group = gang("once", 3, run="600")
        eventually(lambda: all_bound(world, group, 3), "all bound")
        (first,) = {world.labelled(pod) for pod in world.members(group)}
        succeed_and_delete(world, group, 0)
        world.slurm("scancel", str(first))
        eventually(lambda: {world.job_of(pod) for pod in world.members(group)} - {0, first}, "the next job", 40)
        eventually(lambda: all_bound(world, group, 2) and nodes(world, group).keys() == {1, 2}, "both bound")
        (second,) = {world.labelled(pod) for pod in world.members(group)}
        assert len(hosts(world, second)) == 2
        for slot in (1, 2):
            finish(world, at_slot(world, group, slot))
        eventually(lambda: second not in world.queue(), "the job ends with its last member")
        eventually(lambda: succeeded(world, group) == 3, "the Job is complete")

    def test_08_a_gang_starts_on_as_many_nodes_as_are_free_and_its_last_member_gets_a_job_of_its_own(
        self, clean, gang, pod_group
    ):
        """Meanwhile the minimum of its PodGroup changes, which applies to new pods only."""
        world = clean
        blockers = [world.running(world.create(cpu="120")) for _ in range(2)]
        pod_group("least", 2)
        group = gang("least", 3, cpu="64", run="600", labels={pod_groups.LABEL: "least"})
        eventually(lambda: len([name for name in nodes(world, group).values() if name]) == 2, "two members are bound")
        eventually(lambda: len(world.members(group)) == 3, "all members exist")
        members = [world.running(pod) for pod in world.members(group)]
        (alone,) = [pod for pod in members if json.loads(pod["metadata"]["annotations"][GROUP]).get("alone")]
        first, second = [pod for pod in members if pod is not alone]
        job = world.job_of(first)
        assert (world.job_of(second), len(hosts(world, job))) == (job, 2)
        assert world.job_of(alone) != job
        for pod in blockers:  # the job stays as it is
            world.delete(pod, grace=1)
        world.api.merge(f"{POD_GROUPS}/least", {"spec": {"minMember": 3}})
        assert minimum_of_new_pods(world, "least") == 3
        world.delete(second, grace=1)
        world.gone(second)
        slot = second["metadata"]["annotations"][SLOT]
        eventually(lambda: nodes(world, group).get(int(slot)), "the successor of a deleted member is bound")
        successor = at_slot(world, group, slot)
        assert (successor["spec"]["nodeName"], world.job_of(successor)) == (second["spec"]["nodeName"], job)
        assert (minimum(alone), minimum(successor)) == (2, 3)
        for pod in (first, alone, successor):
            finish(world, world.running(pod))
        eventually(lambda: not world.queue(), "each job ends with its last member")

    def test_09_the_successor_of_a_member_that_is_deleted_before_the_bind_starts_in_the_same_job(self, clean):
        world = clean
        blockers = [world.running(world.create(cpu="120")) for _ in range(3)]
        first, second = (member_of_pair(world, f"early-{number}", cpu="64") for number in range(2))
        (job,) = {world.labelled(pod) for pod in (first, second)}
        world.delete(second)
        world.gone(second)
        world.polled()
        successor = member_of_pair(world, "early-2", cpu="64")
        eventually(lambda: world.job_of(world.get(successor)) == job, "the job id on the successor")
        assert world.queue()[job] == "PENDING"
        world.delete(blockers[0], grace=1)
        members = [world.running(pod) for pod in (first, successor)]
        assert [world.job_of(pod) for pod in members] == [job, job]
        assert {pod["spec"]["nodeName"] for pod in members} == {*hosts(world, job)}

    def test_10_the_job_gives_a_drained_node_back_while_the_other_members_run(self, clean, gang):
        """Slurm shows a node as DRAINING while a job has it: nebius/soperator#2962."""
        world = clean
        group = gang("drained", 3, run="600")
        eventually(lambda: all_bound(world, group, 3), "all bound")
        before = {slot: world.running(at_slot(world, group, slot)) for slot in range(3)}
        job, victim = world.job_of(before[2]), before.pop(2)
        node = victim["spec"]["nodeName"]
        drain(world, node)
        try:
            eventually(lambda: "DRAIN" in world.node(node)[0], "the drain", 20)
            eventually(lambda: world.kube_node(node)["spec"].get("unschedulable"), "the cordon", 20)
            world.delete(victim, grace=1)
            world.gone(victim)
            eventually(
                lambda: {*world.node(node)[0].split("+")} == {"IDLE", "DRAIN"}, "nothing is left on the node", 30
            )
            eventually(lambda: all_bound(world, group, 3), "the successor is bound elsewhere")
        finally:
            drain(world, node, ends=True)
        assert (world.queue()[job], hosts(world, job)) == (
            "RUNNING",
            [pod["spec"]["nodeName"] for pod in before.values()],
        )
        assert world.job_of(world.running(at_slot(world, group, 2))) != job
        world.polled()
        for pod in before.values():
            now = world.get(pod)
            assert now["status"]["phase"] == "Running"
            assert not now["metadata"].get("deletionTimestamp")
        told = [event for pod in before.values() for event in world.events(pod, "NodeReleased")]
        assert f"Slurm job {job} has released {node}" in told[0]["note"]
        (heir,) = [before.pop(1)]
        world.delete(heir, grace=1)
        world.gone(heir)
        eventually(lambda: all_bound(world, group, 3), "a later member takes a place that is left")
        again = at_slot(world, group, 1)
        assert (again["spec"]["nodeName"], world.job_of(again)) == (heir["spec"]["nodeName"], job)

    def test_11_a_member_without_a_place_says_why_and_what_to_do(self, clean):
        """The others have the places, and their bind waits for volumes: the minimum does not run yet."""
        world = clean
        with unprovisioned(world) as volume, dashboard.served(world) as page:
            members = [member_of_pair(world, f"pair-{number}", volumes=[volume]) for number in range(2)]
            for pod in members:
                world.labelled(pod)  # the job has places for the two: with three at once it would ask for three
            members.append(member_of_pair(world, "pair-2", volumes=[volume]))
            eventually(lambda: told(world, members) == ["GangFull", "VolumeBinding", "VolumeBinding"], "two places")
            _, second, full = members
            assert told(world, [full]) == ["GangFull"], "it came last"
            name, job = full["metadata"]["name"], world.labelled(second)
            cause = f"every place of Slurm job {job} (2 nodes) is taken by another pod of the group"
            step = "wait until a pod of the group has ended, or make the group larger (minMember, parallelism)"
            assert world.condition(full, "PodScheduled")["message"] == cause
            report = world.explained("pod", name)
            assert (report["summary"], report["next"]) == (f"pending: GangFull: {cause}", step)
            shown = html.unescape(page.get(f"pods/{NAMESPACE}/{name}")[1])
            assert cause in shown
            assert f'<p class="next">Next: <code class="copy">{step}</code></p>' in shown
