"""What Slurm gives for what podbridge asks: facts that ``bridge/workload/gres.py`` and ``translate.py`` rely on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.config import Config
from bridge.slurm import states
from bridge.slurm.client import SlurmClient
from bridge.slurm.models import ApiVersion
from bridge.workload import translate
from cluster.polling import eventually
from tests.fakes.slurm_suite import ask

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
    yield Site(slurm_cluster)


def test_of_a_gres_that_is_named_twice_the_last_counts(site: Site) -> None:
    assert "GRES=gpu:1(" in site.given(ask(site.client, gres=("gpu:3", "gpu:1")))


def test_each_of_several_nodes_has_room_for_the_pod(site: Site) -> None:
    pod = {
        "metadata": {
            "namespace": "ns",
            "name": "p",
            "uid": "u",
            "annotations": {"slurmjob.slinky.slurm.net/min-nodes": "2"},
        },
        "spec": {"containers": [{"resources": {"requests": {"cpu": "100", "memory": "1Gi"}}}]},
    }
    version: ApiVersion = site.client.version
    told = site.given(translate.request(pod, Config(partition="main"), version, "here"))
    assert re.search(r"Nodes=node-\[0-1\] CPU_IDs=0-99 Mem=1024 ", told)
