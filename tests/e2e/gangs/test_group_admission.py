"""The group on the pods that real controllers create: JobSet, LeaderWorkerSet, scheduler-plugins.

The pods have a scheduling gate, so that none of them is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import names
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from bridge.slurm.models import GroupRef
from bridge.workload import links
from bridge.workload.groups import Membership
from bridge.workload.kinds import job_kinds, pod_group_kinds
from cluster.polling import eventually
from cluster.world import NAMESPACE, World

pytestmark = pytest.mark.real

Json = dict[str, Any]

JOBSETS, SETS, GROUPS = (
    job_kinds.JOBSET.resources[0],
    job_kinds.LWS.resources[0],
    pod_group_kinds.POD_GROUP.resources[0],
)
GATED: Json = {
    "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
    "schedulingGates": [{"name": "test/wait"}],
}


@pytest.fixture
def hub(world: World) -> Iterator[SimpleNamespace]:
    """A client of the administrator."""
    admin = KubeClient.load(str(world.cluster.kubeconfig))
    yield SimpleNamespace(admin=admin)
    admin.close()


def members(hub: SimpleNamespace, selector: str, count: int) -> dict[str, Membership]:
    """Wait for the pods of a selector; return their memberships by name."""
    found: list[Json] = []

    def appeared() -> bool:
        found[:] = hub.admin.get(PODS.path(NAMESPACE), {"labelSelector": selector})["items"]
        return len(found) == count

    eventually(appeared, 30)
    read = {pod["metadata"]["name"]: links.group_of(pod) for pod in found}
    return {name: member for name, member in read.items() if member is not None}


def job(parallelism: int, **template: Any) -> Json:
    """Return the specification of an indexed Job."""
    pod = {"metadata": template, "spec": {**GATED, "restartPolicy": "Never"}}
    return {"parallelism": parallelism, "completions": parallelism, "completionMode": "Indexed", "template": pod}


def create_job_set(hub: SimpleNamespace, name: str, annotations: Json | None = None) -> str:
    """Create a JobSet of one driver and two Jobs of three workers; return its UID."""
    jobs = [
        {"name": "driver", "replicas": 1, "template": {"spec": job(1)}},
        {"name": "workers", "replicas": 2, "template": {"spec": job(3)}},
    ]
    body = {
        "apiVersion": JOBSETS.api_version,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": jobs},
    }
    body["metadata"]["annotations"] = annotations or {}
    return str(hub.admin.create(JOBSETS.path(NAMESPACE), body)["metadata"]["uid"])


def without_suffix(found: dict[str, Membership]) -> dict[str, Membership]:
    """Return memberships by the name of the pod without the random suffix that the Job controller adds."""
    return {name.rpartition("-")[0]: member for name, member in found.items()}


def test_a_whole_job_set_is_a_group_by_annotation(hub: SimpleNamespace) -> None:
    annotations = {names.GANG: "all", names.MEMBERS_PER_NODE: "2"}
    uid = create_job_set(hub, "whole", annotations)
    found = without_suffix(members(hub, f"{job_kinds.JOBSET_NAME}=whole", 7))
    key = GroupRef("jobset", NAMESPACE, "whole", uid)
    workers = {f"whole-workers-{j}-{i}": Membership(key, 7, 7, 1 + 3 * j + i, 2) for j in range(2) for i in range(3)}
    assert found == {"whole-driver-0-0": Membership(key, 7, 7, 0, 2), **workers}


def create_set(hub: SimpleNamespace, name: str) -> str:
    """Create a LeaderWorkerSet of two replicas of three pods; return its UID."""
    template = {"size": 3, "workerTemplate": {"spec": GATED}}
    spec = {"replicas": 2, "leaderWorkerTemplate": template}
    body = {"apiVersion": SETS.api_version, "kind": "LeaderWorkerSet", "metadata": {"name": name}, "spec": spec}
    return str(hub.admin.create(SETS.path(NAMESPACE), body)["metadata"]["uid"])


def test_each_replica_of_a_leader_worker_set_is_a_group(hub: SimpleNamespace) -> None:
    uid = create_set(hub, "serve")
    found = members(hub, f"{job_kinds.LWS_NAME}=serve", 6)
    for replica in range(2):
        key = GroupRef("lws", NAMESPACE, "serve", uid, str(replica))
        assert found[f"serve-{replica}"] == Membership(key, 3, 3, 0)
        assert found[f"serve-{replica}-1"] == Membership(key, 3, 3, 1)
        assert found[f"serve-{replica}-2"] == Membership(key, 3, 3, 2)
