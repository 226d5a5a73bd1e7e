"""What an administrator does to the job of a pod: suspend, hold, dependency, another time limit. On every Slurm."""

import pytest

from cluster.polling import eventually

pytestmark = pytest.mark.real

SUSPENDED = "bridge.vk.io/JobSuspended"


def update(world, job, *fields):
    world.slurm("scontrol", "update", f"jobid={job}", *fields)


def unharmed(world, pod, job):
    """Wait for several polls; podbridge must not have terminated the pod or changed its job."""
    world.polled()
    found = world.get(pod)
    assert found["status"]["phase"] == "Running"
    assert not found["metadata"].get("deletionTimestamp")
    assert world.job_of(found) == job


def test_a_suspended_job_keeps_its_pod_which_says_so(clean):
    world = clean
    pod = world.running(world.create())
    job = world.labelled(pod)
    world.slurm("scontrol", "suspend", str(job))
    assert world.queue()[job] == "SUSPENDED"
    eventually(lambda: world.condition(pod, SUSPENDED).get("status") == "True", "the condition", 20)
    assert f"Slurm job {job} is suspended" in world.condition(pod, SUSPENDED)["message"]
    eventually(lambda: world.events(pod, "JobSuspended"), "an Event")
    unharmed(world, pod, job)
    world.slurm("scontrol", "resume", str(job))
    eventually(lambda: world.condition(pod, SUSPENDED).get("status") == "False", "resumed", 20)
    unharmed(world, pod, job)
    world.slurm("scontrol", "suspend", str(job))
    world.delete(pod, grace=1)
    world.gone(pod)
    eventually(lambda: job not in world.queue(), "the suspended job released", 20)


def test_another_time_limit_of_a_running_job_leaves_its_pod_alone(clean):
    world = clean
    pod = world.running(world.create(activeDeadlineSeconds=3500, terminationGracePeriodSeconds=60))
    job = world.labelled(pod)
    assert world.job(job)["TimeLimit"] == "01:00:00", "the deadline and the grace period, in whole minutes"
    for limit in ("120", "30"):
        update(world, job, f"timelimit={limit}")
        unharmed(world, pod, job)
        assert world.job(job)["TimeLimit"] == {"120": "02:00:00", "30": "00:30:00"}[limit]


def test_the_grace_period_does_not_make_a_job_too_long_for_its_partition(clean):
    world = clean
    pod = world.running(world.create(activeDeadlineSeconds=3600, job={"partition": "short"}))
    assert world.job(world.labelled(pod))["TimeLimit"] == "01:00:00", "MaxTime of the partition"


def test_a_pod_waits_while_its_job_is_held_or_depends_on_another(clean):
    world = clean
    blockers = [world.running(world.create(cpu="120")) for _ in range(4)]
    waiting = world.create(cpu="64")
    job = world.labelled(waiting)
    first = world.labelled(blockers[0])

    def told(reason):
        message = world.condition(waiting, "PodScheduled").get("message", "")
        return f"Slurm job {job} is pending" in message and reason in message

    world.slurm("scontrol", "hold", str(job))
    eventually(lambda: told("JobHeld"), "held", 40)
    update(world, job, f"dependency=afterany:{first}")
    world.slurm("scontrol", "release", str(job))
    for pod in blockers[1:]:
        world.delete(pod, grace=1)
    for pod in blockers[1:]:
        world.gone(pod)
    world.polled()
    assert not world.get(waiting)["spec"].get("nodeName"), "three nodes are free, but the dependency is not fulfilled"
    world.delete(blockers[0], grace=1)
    world.running(waiting, 40)
    assert world.labelled(waiting) == job


@pytest.mark.parametrize(
    ("size", "changes", "lacks"),
    [
        (1, ["CPUsPerTask=1", "NumCPUs=1", "MinCPUsNode=1"], "1 CPUs for pods that take 8"),
        (2, ["MinMemoryNode=10"], "20 MiB for pods that take 2048"),
    ],
)
def test_no_pod_is_bound_to_a_job_that_its_owner_has_made_smaller(clean, size, changes, lacks):
    world = clean
    blockers = [world.running(world.create(cpu="128")) for _ in range(4)]
    gang = world.create_gang("smaller", 2, cpu="8") if size > 1 else None
    alone = world.create(cpu="8") if gang is None else None
    members = eventually(lambda: len(found := world.members(gang)) == 2 and found, "members") if gang else [alone]
    job = world.labelled(members[0])
    for change in changes:
        update(world, job, change)
    for blocker in blockers[:2]:
        world.delete(blocker, grace=1)
    told = eventually(lambda: [e for pod in members for e in world.events(pod, "AllocationTooSmall")], "told why", 30)
    assert lacks in told[0]["note"]
    for pod in members:
        assert world.job_of(world.running(pod, 60)) != job
    if gang:
        world.delete_gang(gang)


@pytest.mark.not_on("22.05", reason="its API cannot exclude nodes")
def test_nodes_that_take_few_pods_do_not_get_all_pods(clean):
    """Slurm packs jobs and counts no pods: kubernetes/kubernetes#63190 and the default of 110 pods a node."""
    world = clean
    nodes = [f"/api/v1/nodes/node-{number}/status" for number in range(4)]

    def take(count):
        body = {"status": {"allocatable": {"pods": count}, "capacity": {"pods": count}}}
        for path in nodes:
            world.api.merge(path, body)

    before = world.kube_node("node-0")["status"]["allocatable"]["pods"]
    take("2")
    try:
        found = [world.running(pod, 60) for pod in [world.create() for _ in range(6)]]
    finally:
        take(before)
    assert len({pod["spec"]["nodeName"] for pod in found}) >= 3


@pytest.mark.not_on("24.11")
def test_a_running_gang_that_loses_a_node_goes_on_with_the_other_members(clean):
    world = clean
    gang = world.create_gang("shrunk", 3, run="600")
    members = eventually(lambda: len(found := world.members(gang)) == 3 and found, "the members")
    kept = {pod["metadata"]["name"]: pod for pod in map(world.running, members)}
    job = world.labelled(members[0])
    update(world, job, "nodelist=node-[0-1]")
    (removed,) = [pod for pod in kept.values() if pod["spec"]["nodeName"] == "node-2"]
    eventually(lambda: world.events(removed, "NodeRemoved"), "told", 40)  # the state of its job stays the same
    world.gone(removed)
    del kept[removed["metadata"]["name"]]
    for pod in kept.values():
        unharmed(world, pod, job)
    assert world.job(job)["NodeList"] == "node-[0-1]"
    world.delete_gang(gang)
