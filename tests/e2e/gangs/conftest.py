"""One cluster for each version of Kubernetes with podbridge, the controllers of groups and a site, for all tests."""

from contextlib import ExitStack

import pytest

from cluster import Cluster, pools
from cluster.pods import PoolWorld
from cluster.systems.gangs import WORKLOAD_API
from cluster.world import NAMESPACE, World

OPTIONS = {
    "nodes": 4,
    "gangs": True,
    "kuberay": True,
    "pools": ["local-site"],
    "podbridge": {"slurm": {"pollIdle": 0.5}},
}
OWNERS = (
    "ray.io/v1/namespaces/{}/rayjobs",
    "ray.io/v1/namespaces/{}/rayclusters",
    "trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
    "trainer.kubeflow.org/v1alpha1/namespaces/{}/trainingruntimes",
    "jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
    "batch/v1/namespaces/{}/jobs",
    "scheduling.x-k8s.io/v1alpha1/namespaces/{}/podgroups",
)


class GangWorld(PoolWorld):
    """A cluster whose pods are at the colocated Slurm and at the site."""

    def clear(self):
        """Delete every pod, and wait until no pod and no job is left."""
        World.clear(self)
        super().clear()


@pytest.fixture(scope="package")
def worlds(state_folder):
    """Return a function that returns the running cluster of a version of Kubernetes."""
    with ExitStack() as stack:
        running = {}

        def start(version):
            if version not in running:
                options = {"slurm": "26.05", "kubernetes": version, **OPTIONS}
                cluster = stack.enter_context(Cluster(state_folder / f"gangs-{version}", **options))
                running[version] = GangWorld.started(cluster)
            return running[version]

        yield start


@pytest.fixture(params=WORKLOAD_API)
def world(request, worlds):
    """A cluster without groups, before and after."""
    found = worlds(request.param)
    yield found
    for owner in OWNERS:
        for namespace in (NAMESPACE, pools.NAMESPACE):
            found.api("DELETE", f"/apis/{owner.format(namespace)}", {"propagationPolicy": "Background"})
    for version in WORKLOAD_API[request.param][:1]:
        found.api("DELETE", f"/apis/{version}/namespaces/{NAMESPACE}/podgroups")
    found.clear()
