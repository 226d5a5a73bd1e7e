"""A pending job excludes a node that Slurm deletes: slurmctld refuses each later update of the job."""

import pytest

from tests.fakes.memory_hub import MemoryHub

POD = "/api/v1/namespaces/team/pods/p"


def create(hub, name="p", **spec):
    hub.kube.put(
        f"/api/v1/namespaces/team/pods/{name}",
        {
            "kind": "Pod",
            "metadata": {
                "namespace": "team",
                "name": name,
                "uid": f"u-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["scheduler.slinky.slurm.net/finalizer"],
                "annotations": {},
                "labels": {},
            },
            "spec": {
                "schedulerName": hub.config.scheduler_name,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                **spec,
            },
            "status": {"phase": "Pending"},
        },
    )


def pass_time(hub, seconds=1, steps=1):
    for _ in range(steps):
        hub.clock.advance(seconds)
        hub.poller.poll()
        hub.deliver()
        hub.scheduler.reconcile()
        hub.run_all()


def live(hub):
    return [job for job in hub.slurm.jobs.values() if job.lives]


def cordon(hub, name, on=True):
    node = hub.kube.objects[f"/api/v1/nodes/{name}"]
    hub.kube.put(f"/api/v1/nodes/{name}", {**node, "spec": {**node.get("spec", {}), "unschedulable": on}})


@pytest.mark.parametrize("stays", [True, False], ids=["Kubernetes keeps the node", "Kubernetes deletes the node"])
def test_a_job_that_excludes_a_deleted_node_is_submitted_again(stays):
    hub = MemoryHub(("n1", "n2", "n3"))
    cordon(hub, "n3")
    create(hub)
    pass_time(hub, steps=10)
    (first,) = live(hub)
    assert first.excluded == ("n3",)
    hub.slurm.node_names = ("n1", "n2")
    if not stays:
        hub.kube.delete("/api/v1/nodes/n3")
    pass_time(hub, 5, steps=20)
    (second,) = live(hub)
    assert second.job_id != first.job_id and second.excluded == ()
    assert first.job_id in hub.slurm.cancelled
    # and its excluded nodes follow the nodes again
    cordon(hub, "n2")
    pass_time(hub, 5, steps=20)
    assert live(hub) == [second] and second.excluded == ("n2",)


def test_a_node_that_was_deleted_after_the_last_poll_costs_no_job():
    hub = MemoryHub(("n1", "n2", "n3"))
    create(hub)
    pass_time(hub, steps=10)
    (first,) = live(hub)
    assert first.excluded == ()
    cordon(hub, "n3")
    hub.clock.advance(1)
    hub.poller.poll()
    hub.deliver()
    hub.scheduler.reconcile()  # the update that names the node is decided, not sent
    hub.slurm.node_names = ("n1", "n2")
    hub.run_all()
    pass_time(hub, 5, steps=20)
    assert live(hub) == [first] and first.excluded == ()
    cordon(hub, "n2")
    pass_time(hub, 5, steps=20)
    assert live(hub) == [first] and first.excluded == ("n2",)
