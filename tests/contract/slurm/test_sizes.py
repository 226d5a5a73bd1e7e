"""What Slurm gives for what podbridge asks: facts that ``gres.py`` and ``translate.py`` rely on."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.config.hub import Config
from bridge.slurm import states
from bridge.slurm.job_resources import indices
from bridge.slurm.models import GroupRef
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.versions import ApiVersion
from bridge.workload import translate
from cluster.polling import eventually
from tests.fakes.slurm_suite import ask, free_nodes

pytestmark = pytest.mark.real


class Site:
    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.client = SlurmClient(Config(slurm_rest_api=cluster.slurm_rest_url), cluster.token())

    def given(self, request: Any) -> str:
        """Run a job; return what scontrol says of it, node by node."""
        job_id = self.client.submit(request).job_id
        try:
            eventually(lambda: states.is_allocated(self.client.job(job_id).states))
            return str(self.cluster.run_slurm("scontrol", "show", "job", "-d", str(job_id)))
        finally:
            self.client.cancel(job_id)


@pytest.fixture
def site(slurm_cluster: Any) -> Iterator[Site]:
    free_nodes(slurm_cluster)
    yield Site(slurm_cluster)


def requesting(cpu: str, setting: str, value: str) -> dict[str, Any]:
    """Return a pod with 1 GiB of memory and one setting of its job."""
    annotations = {f"slurmjob.slinky.slurm.net/{setting}": value}
    return {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u", "annotations": annotations},
        "spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]},
    }


def test_of_a_gres_that_is_named_twice_the_last_counts(site: Site) -> None:
    assert "GRES=gpu:1(" in site.given(ask(site.client, gres=("gpu:3", "gpu:1")))


def test_each_of_several_nodes_has_room_for_the_pod(site: Site) -> None:
    pod = requesting("100", "min-nodes", "2")
    version: ApiVersion = site.client.version
    told = site.given(translate.request(pod, Config(partition="main"), version, "here"))
    assert re.search(r"Nodes=node-\[0-1\] CPU_IDs=0-99 Mem=1024 ", told)


@pytest.mark.parametrize("together", [1, 2])
def test_a_gang_with_a_minimum_gets_the_nodes_that_are_free_and_room_for_its_members_on_each(
    site: Site, together: int
) -> None:
    """The request has no number of tasks, only the largest one on a node."""
    pod = requesting("40", "gres", "gpu:2")

    def given(least: int, most: int) -> tuple[str, int, int, int]:
        """Return the nodes of a gang that needs ``least`` to ``most`` of them; CPUs, memory and GPUs on each."""
        shape = translate.GangShape(GroupRef("podgroup", "ns", "g", "o"), most * together, least * together, together)
        request = translate.gang_request([pod] * shape.minimum, shape, Config(partition="main"), version, "here")
        assert (request.min_nodes, request.max_nodes, request.tasks) == (least, most, 0)
        (found,) = re.findall(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=gpu:(\d+)", site.given(request))
        nodes, cpus, memory, gpus = found
        return nodes, len(indices(cpus)), int(memory), int(gpus)

    version: ApiVersion = site.client.version
    room = 40 * together, 1024 * together, 2 * together
    for least, most in ((1, 2), (2, 4)):
        free_nodes(site.cluster)
        assert given(least, most) == ("node-[0-1]", *room)
    blocker = site.client.submit(ask(site.client, cpus=100)).job_id
    try:
        (taken,) = eventually(lambda: site.client.job(blocker).nodes)
        (free,) = {"node-0", "node-1"} - {taken}
        assert given(1, 2) == (free, *room)
    finally:
        site.client.cancel(blocker)
