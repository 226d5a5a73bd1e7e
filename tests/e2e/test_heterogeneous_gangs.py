"""Groups whose pods request different resources: one heterogeneous Slurm job, with a component for each shape."""

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real

LABEL = "kueue.x-k8s.io/pod-group-name"
DRIVER, WORKER = {"cpu": "1"}, {"cpu": "100"}
"""No two workers fit on one node; a component shares no node with another one."""


@pytest.fixture
def group(clean):
    """Return a function that creates pods of a group of three; each argument after the name is a pod."""
    made = []

    def create(name, *pods):
        found = []
        for more in pods:
            body = clean.manifest(f"{name}-{len(made)}", **more)
            body["metadata"]["labels"] = {LABEL: name}
            body["metadata"]["annotations"] |= {"kueue.x-k8s.io/pod-group-total-count": "3"}
            found.append(clean.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body))
            made.append(found[-1])
        return found

    yield create
    for pod in made:
        clean.delete(pod, grace=1)


def components(world, job):
    """Return the nodes of each component of a job by id."""
    shown = world.slurm("scontrol", "--oneliner", "show", "job", str(job)).splitlines()
    fields = [dict(word.partition("=")[::2] for word in line.split()) for line in shown]
    found = {int(one["JobId"]): one.get("NodeList", "(null)") for one in fields}
    return {key: world.slurm("scontrol", "show", "hostnames", names).split() for key, names in found.items()}


def nodes(world, pods):
    """Return the nodes of pods; empty until all of them are bound."""
    found = [world.get(pod)["spec"].get("nodeName") for pod in pods]
    return found if all(found) else []


def reason(world, pod):
    return world.condition(pod, "PodScheduled").get("reason")


class TestHeterogeneousGangs:
    def test_01_a_version_without_such_jobs_refuses_the_group_with_words(self, clean, group):
        if clean.cluster.options.slurm != "22.05":
            return
        for pod in group("refused", DRIVER, WORKER, WORKER):
            eventually(lambda p=pod: reason(clean, p) == "Unschedulable", "told")
            message = clean.condition(pod, "PodScheduled")["message"]
            assert "differ in cpus: they need a heterogeneous job, which Slurm's API v0.0.38 can't" in message

    def test_02_a_driver_and_its_workers_start_together_each_in_its_component(self, clean, group):
        if clean.cluster.options.slurm == "22.05":
            return
        world = clean
        blockers = [world.running(world.create(cpu="120")) for _ in range(3)]
        found = group("train", DRIVER, WORKER, WORKER)
        (job,) = {world.labelled(pod) for pod in found}
        eventually(lambda: reason(world, found[2]) == "SlurmPending", "the reason on the last member", 40)
        assert not nodes(world, found[:1])
        world.delete(blockers[0], grace=1)
        driver, *workers = eventually(lambda: nodes(world, found), "all members bound")
        of_workers, of_driver = components(world, job).values()
        assert ([driver], sorted(workers)) == (of_driver, sorted(of_workers))
        assert {world.job_of(world.get(pod)) for pod in found} == {job}
        world.delete(world.running(found[1]), grace=1)
        world.gone(found[1])
        stranger, successor = group("train", {"cpu": "8"}, WORKER)
        assert world.running(successor)["spec"]["nodeName"] == workers[0]
        assert world.job_of(world.get(successor)) == job
        assert world.job_of(world.running(stranger)) not in (0, job)

    def test_03_a_component_that_is_cancelled_alone_ends_the_group(self, clean, group):
        if clean.cluster.options.slurm == "22.05":
            return
        world = clean
        found = group("broken", DRIVER, WORKER, WORKER)
        eventually(lambda: nodes(world, found), "all members bound")
        job, last = components(world, world.job_of(world.get(found[0])))
        world.slurm("scancel", str(last))
        eventually(lambda: not any(map(world.get, found)), "every member ended", 40)
        eventually(lambda: not {job, last} & world.queue().keys(), "the rest of the job cancelled")

    def test_04_each_component_follows_the_nodes_and_a_deleted_group_leaves_the_queue(self, clean, group):
        world = clean
        if clean.cluster.options.slurm == "22.05":
            return
        blockers = [world.running(world.create(cpu="120")) for _ in range(3)]
        found = group("waiting", DRIVER, WORKER, {**WORKER, "memory": "2Gi"})
        (job,) = {world.labelled(pod) for pod in found}
        path = f"/api/v1/nodes/{world.get(blockers[0])['spec']['nodeName']}"
        before = world.api("GET", path)["spec"].get("taints") or []
        broken = [*before, {"key": "broken", "effect": "NoSchedule"}]
        world.api.merge(path, {"spec": {"taints": broken}})
        try:
            excluded = f"ExcNodeList={path.rpartition('/')[2]}"
            shown = lambda: world.slurm("scontrol", "show", "job", str(job))  # noqa: E731
            eventually(lambda: shown().count(excluded) == 3, "excluded from every component", 40)
        finally:
            world.api.merge(path, {"spec": {"taints": before}})
        for pod in found:
            world.delete(pod, grace=1)
        others = {world.job_of(world.get(pod)) for pod in blockers}
        eventually(lambda: world.queue().keys() == others, "its job gone", 40)
