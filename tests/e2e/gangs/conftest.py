"""One cluster for each version of Kubernetes, with podbridge and the controllers of groups; all tests here share it."""

from contextlib import ExitStack

import pytest

from cluster import Cluster
from cluster.gangs import WORKLOAD_API
from cluster.world import NAMESPACE, World

OPTIONS = {"nodes": 4, "gangs": True, "kuberay": True, "podbridge": {"slurm": {"pollIdle": 0.5}}}
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


@pytest.fixture(scope="package")
def worlds(state_folder):
    """Return a function that returns the running cluster of a version of Kubernetes."""
    with ExitStack() as stack:
        running = {}

        def start(version):
            if version not in running:
                options = {"slurm": "26.05", "kubernetes": version, **OPTIONS}
                cluster = stack.enter_context(Cluster(state_folder / f"gangs-{version}", **options))
                cluster.start_podbridge()
                running[version] = World(cluster)
            return running[version]

        yield start


@pytest.fixture(params=WORKLOAD_API)
def world(request, worlds):
    """A cluster without groups, before and after."""
    found = worlds(request.param)
    yield found
    for owner in OWNERS:
        found.api("DELETE", f"/apis/{owner.format(NAMESPACE)}", {"propagationPolicy": "Background"})
    for version in WORKLOAD_API[request.param][:1]:
        found.api("DELETE", f"/apis/{version}/namespaces/{NAMESPACE}/podgroups")
    found.clear()
