"""The controllers of groups on the local cluster: their webhooks answer, and each can be killed and started again."""

import pytest

from cluster.world import NAMESPACE

pytestmark = pytest.mark.real


def test_a_jobset_that_its_webhook_refuses_is_not_created(world):
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
    job = {"template": {"spec": {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}}}
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "n" * 70},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job}}]},
    }
    status, answer = world.api.request("POST", path, body)
    assert status == 403
    assert "vjobset.kb.io" in answer["message"]


def test_a_controller_that_was_killed_starts_again(world):
    for name in ("jobset-controller", "lws-controller", "scheduler-plugins-controller"):
        world.cluster.kill(name)
        assert not world.cluster.running
        world.cluster.start_daemon(name)
    assert world.cluster.running
