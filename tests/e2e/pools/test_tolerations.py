"""Which pools a pod may use follows from its tolerations, as Kubernetes reads them, and from the annotation."""

import pytest

from cluster.pools import NAMESPACE

EVERYTHING = [{"operator": "Exists"}]


@pytest.fixture
def create(pools_world):
    made = []

    def make(tolerations, hostname, annotations=None):
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo here"]}
        spec = {
            "containers": [container],
            "restartPolicy": "Never",
            "tolerations": tolerations,
            "nodeSelector": {"kubernetes.io/hostname": hostname},
        }
        body = {"metadata": {"generateName": "tolerant-", "annotations": annotations or {}}, "spec": spec}
        made.append(pools_world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body))
        return made[-1]

    yield make
    for pod in made:
        pools_world.delete(pod, 1)
        pools_world.gone(pod)


def test_a_pod_that_tolerates_everything_goes_to_the_pools_that_its_namespace_opens(pools_world, create):
    pod = create(EVERYTHING, "slurm-site")
    ended = pools_world.ended(pod)
    assert ended["spec"]["nodeName"] == "slurm-site"
    assert ended["status"]["phase"] == "Succeeded"


def test_explain_names_the_pools_of_a_pod_that_tolerates_everything(pools_world, create):
    pod = create(EVERYTHING, "no-such-site")
    message = pools_world.seen(
        pod, "told", lambda p: pools_world.condition(p, "PodScheduled").get("reason") == "Unschedulable"
    )
    assert message["spec"].get("nodeName") is None
    told = pools_world.condition(pod, "PodScheduled")["message"]
    assert "slurm-site (nodeSelector kubernetes.io/hostname=no-such-site does not match)" in told
    story = pools_world.explain(pod)
    assert "slurm-site: nodeSelector kubernetes.io/hostname=no-such-site does not match" in story
