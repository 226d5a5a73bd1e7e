"""What one refresh of the page of a waiting pod reads from the API server."""

import pytest

from bridge.apps.cli import explain
from bridge.apps.cli.dashboard_command import MOST_READS, REMEMBER, PageSession, SharedReads
from bridge.apps.dashboard.page_access import Viewer
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from tests.fakes.kube_answers import KubeAnswers
from tests.unit.apps.view.test_pod_view import pod, scheduled

ALL_PODS = "/api/v1/pods"
VOLUMES = "/api/v1/persistentvolumes"
CLUSTER_WIDE = (ALL_PODS, VOLUMES, "/apis/storage.k8s.io/v1/storageclasses", "/apis/resource.k8s.io/v1/deviceclasses")
NODE = {
    "metadata": {"name": "n1", "labels": {"slinky.slurm.net/slurm-nodename": "n1"}},
    "spec": {},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "8", "pods": "110"}},
}


def server(others=(), error=None):
    """Return an API server for one user; ``error`` answers lists of the whole cluster."""
    answers = {ALL_PODS: {"items": list(others)}} if error is None else dict.fromkeys(CLUSTER_WIDE, error)
    return KubeAnswers(answers, default={"items": []})


def waiting(name="p"):
    found = pod(name, conditions=[scheduled("False", "SlurmPending", "Priority")])
    found["spec"]["schedulerName"] = Config().scheduler_name
    found["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    return found


@pytest.fixture
def report(clock):
    reads = SharedReads(clock, MOST_READS)

    def refresh(identity, client):
        viewer = Viewer(identity, identity, client, lambda *_: True)
        return explain.describe(PageSession(Config(), viewer, [NODE], [], reads), waiting())

    return refresh


def test_the_whole_cluster_is_read_at_most_once_in_some_seconds(report, clock):
    client = server()
    first = report("ann", client)
    for _ in range(9):
        clock.advance(REMEMBER / 10)
        assert report("ann", client) == first
    assert {path: client.reads.count(path) for path in CLUSTER_WIDE} == dict.fromkeys(CLUSTER_WIDE, 1)
    clock.advance(REMEMBER / 10)
    report("ann", client)
    assert {path: client.reads.count(path) for path in CLUSTER_WIDE} == dict.fromkeys(CLUSTER_WIDE, 2)
    assert client.reads.count("/api/v1/namespaces/hpc/events") == 11


def test_nobody_sees_what_another_user_has_read(report):
    full = {**pod("secret", phase="Running", node="n1"), "spec": {**waiting()["spec"], "nodeName": "n1"}}
    full["spec"]["schedulerName"] = "default-scheduler"
    full["spec"]["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]
    ann = server([full])
    assert any("cpu" in line for line in report("ann", ann)["nodes"])
    mallory = server([full], KubeForbiddenError("forbidden", status=403))
    for _ in range(2):
        assert not any("cpu" in line for line in report("mallory", mallory)["nodes"])
    assert {path: mallory.reads.count(path) for path in (ALL_PODS, VOLUMES)} == {ALL_PODS: 1, VOLUMES: 1}


def test_other_errors_are_not_cached(report):
    client = server(error=KubeUnavailableError("timeout"))
    report("ann", client)
    client.answers.clear()
    report("ann", client)
    assert client.reads.count(VOLUMES) == client.reads.count(ALL_PODS) == 2
