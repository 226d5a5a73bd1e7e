"""Bindings of the whole hub in memory: of pods that change meanwhile, and bindings that are lost."""

import copy
from typing import Any

import pytest

from bridge import names
from bridge.workload import resources
from tests import builders
from tests.fakes.memory_hub import MemoryHub

PATH = "/api/v1/namespaces/team/pods/p"


def hub_with_started_job(cpu: str = "1") -> MemoryHub:
    """Return a hub whose only pod has a job that has started; nothing was decided since."""
    hub = MemoryHub(("n1",))
    hub.create(builders.pod(held=True, requests={"cpu": cpu}, metadata={"namespace": "team", "name": "p"}))
    for _ in range(10):
        hub.work()
        if hub.slurm.jobs:
            break
    (job,) = hub.slurm.jobs.values()
    hub.slurm.start(job)
    return hub


def container(cpu: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}}


def decide_the_bind(hub: MemoryHub) -> None:
    for _ in range(10):
        hub.decide()
        if hub.queues[0].calls:
            return
    pytest.fail("no bind was decided")


def node(hub: MemoryHub) -> str:
    return str(hub.kube.objects[PATH]["spec"].get("nodeName") or "")


@pytest.mark.parametrize("delivered", [True, False], ids=["the cache shows the change", "the cache is behind"])
def test_a_pod_that_changed_after_the_decision_does_not_get_the_node(delivered: bool) -> None:
    hub = hub_with_started_job()
    decide_the_bind(hub)
    pod = copy.deepcopy(hub.kube.objects[PATH])
    pod["spec"]["containers"] = [container("8")]
    hub.kube.put(PATH, pod)
    if delivered:
        hub.deliver()
    hub.run_all()
    assert node(hub) == ""
    hub.work(30)
    bound = hub.kube.objects[PATH]
    jobs = {str(job.job_id): job for job in hub.slurm.jobs.values()}
    if node(hub):
        job = jobs[bound["metadata"]["annotations"][names.JOB_ID_ANNOTATION]]
        assert job.request.cpus >= resources.pod_requests(bound["spec"])["cpu"]


@pytest.mark.parametrize("shown", [True, False], ids=["the cache showed it", "the cache did not show it"])
def test_a_binding_that_the_api_server_has_lost_is_sent_again(shown: bool) -> None:
    hub = hub_with_started_job(cpu="5")
    decide_the_bind(hub)
    before = copy.deepcopy(hub.kube.objects[PATH])
    hub.run_all()
    assert node(hub) == "n1"
    # etcd is restored from a backup that is older than the binding
    if shown:
        hub.decide()
    hub.kube.changes.clear()
    hub.kube.put(PATH, before)
    if not shown:
        hub.work(50)
        assert node(hub) == ""
    hub.work(30)
    assert node(hub) == "n1"
    assert len(hub.slurm.jobs) == 1


YEAR = 31536000


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE", "NODE_FAIL"])
@pytest.mark.parametrize("how", ["in the pod", "in the deletion", "in a second deletion"])
def test_a_pod_outlives_its_job_by_the_maximum_grace_period_at_most(how: str, state: str) -> None:
    hub = hub_with_started_job()
    decide_the_bind(hub)
    hub.run_all()
    assert node(hub) == "n1"
    pod = copy.deepcopy(hub.kube.objects[PATH])
    pod["status"]["phase"] = "Running"
    if how == "in the pod":
        pod["spec"]["terminationGracePeriodSeconds"] = YEAR
    hub.kube.put(PATH, pod)
    if how != "in the pod":
        hub.kube.request_deletion(PATH, YEAR)
    if how == "in a second deletion":
        hub.kube.request_deletion(PATH, YEAR // 2)
    (job,) = hub.slurm.jobs.values()
    hub.slurm.moved.add(job.job_id)
    hub.work(5, controllers=True)
    before = hub.kube.objects[PATH]["metadata"]
    assert before.get("deletionGracePeriodSeconds") != hub.config.max_grace_period, "the job runs"
    job.set(state)
    deletions: list[Any] = []
    hub.kube.on_delete = deletions.append
    hub.work(20, controllers=True)
    after = hub.kube.objects[PATH]
    assert after["metadata"]["deletionGracePeriodSeconds"] == hub.config.max_grace_period
    assert "maxGracePeriod" in after["status"]["message"]
    assert len(deletions) == 1
