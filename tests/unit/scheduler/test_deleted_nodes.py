"""A pending job excludes a node that Slurm deletes: slurmctld refuses each later update of the job."""

import pytest

from tests.builders import pod
from tests.fakes.memory_hub import MemoryHub

POD = "/api/v1/namespaces/team/pods/p"


def create(hub, name="p", **spec):
    hub.create(pod(name, held=True, requests={"cpu": "1"}, metadata={"namespace": "team", "name": name}, **spec))


def live(hub):
    return [job for job in hub.slurm.jobs.values() if job.lives]


@pytest.mark.parametrize("stays", [True, False], ids=["Kubernetes keeps the node", "Kubernetes deletes the node"])
def test_a_job_that_excludes_a_deleted_node_is_submitted_again(stays):
    hub = MemoryHub(("n1", "n2", "n3"))
    hub.cordon("n3")
    create(hub)
    hub.work(10)
    (first,) = live(hub)
    assert first.excluded == ("n3",)
    hub.slurm.node_names = ("n1", "n2")
    if not stays:
        hub.kube.delete("/api/v1/nodes/n3")
    hub.work(20, 5)
    (second,) = live(hub)
    assert second.job_id != first.job_id and second.excluded == ()
    assert first.job_id in hub.slurm.cancelled
    # and its excluded nodes follow the nodes again
    hub.cordon("n2")
    hub.work(20, 5)
    assert live(hub) == [second] and second.excluded == ("n2",)


def test_a_node_that_was_deleted_after_the_last_poll_costs_no_job():
    hub = MemoryHub(("n1", "n2", "n3"))
    create(hub)
    hub.work(10)
    (first,) = live(hub)
    assert first.excluded == ()
    hub.cordon("n3")
    hub.decide()  # the update that names the node is decided, not sent
    hub.slurm.node_names = ("n1", "n2")
    hub.run_all()
    hub.work(20, 5)
    assert live(hub) == [first] and first.excluded == ()
    hub.cordon("n2")
    hub.work(20, 5)
    assert live(hub) == [first] and first.excluded == ("n2",)
