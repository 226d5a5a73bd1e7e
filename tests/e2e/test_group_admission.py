"""The group on the pods that real controllers create: JobSet, LeaderWorkerSet, scheduler-plugins, the Workload API."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from admission.server import Admission, unregister
from bridge import names
from bridge.config import Config
from bridge.kube.client import KubeClient
from bridge.kube.resources import JOBS, PODS, Resource
from bridge.slurm.models import GroupRef
from bridge.threads import Supervisor
from bridge.workload.groups import Membership, membership
from bridge.workload.kinds import jobset, lws, podgroup, workload_api
from cluster import Cluster, places
from cluster.polling import eventually

pytestmark = pytest.mark.real

NAMESPACE = f"groups-{os.getpid()}"
SCHEDULER = "groups-scheduler"
Json = dict[str, Any]

JOBSETS, SETS, GROUPS = jobset.KIND.resources[0], lws.KIND.resources[0], podgroup.KIND.resources[0]
OPTIONS: Json = {"slurm": None, "nodes": 1, "gangs": True}
CONTAINERS = [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}]


@pytest.fixture(scope="module", params=places.KUBERNETES)
def hub(request: pytest.FixtureRequest, state_folder: Any) -> Iterator[SimpleNamespace]:
    """Kubernetes with the controllers of groups, and podbridge's admission; no pod is scheduled."""
    with Cluster(state_folder / f"groups-{request.param}", **OPTIONS, kubernetes=request.param) as cluster:
        cluster.add_namespace(NAMESPACE)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        config = Config.model_validate(
            {
                "schedulerName": SCHEDULER,
                "managedNamespaces": [NAMESPACE],
                "slurmRestApi": "http://127.0.0.1:1",
                "admission": {"host": "127.0.0.1", "port": port, "url": f"https://127.0.0.1:{port}"},
            }
        )
        client, admin = (
            KubeClient.load(str(file)) for file in (cluster.part_kubeconfig("admission"), cluster.kubeconfig)
        )
        supervisor = Supervisor()
        Admission(config, client, supervisor, tuple).start()

        def mutated() -> bool:
            body = {"metadata": {"name": "probe"}, "spec": {"containers": CONTAINERS}}
            made = admin.create(PODS.path(NAMESPACE), body, {"dryRun": "All"})
            return bool(made["spec"]["schedulerName"] == SCHEDULER)

        eventually(mutated)
        yield SimpleNamespace(cluster=cluster, admin=admin)
        unregister(config, admin)
        supervisor.stop()
        client.close()
        assert supervisor.join(10) == []
        assert supervisor.failure is None


def members(hub: SimpleNamespace, selector: str, count: int) -> dict[str, Membership]:
    """Wait for the pods of a selector; return their memberships by name."""
    found: list[Json] = []

    def appeared() -> bool:
        found[:] = hub.admin.get(PODS.path(NAMESPACE), {"labelSelector": selector})["items"]
        return len(found) == count

    eventually(appeared, 30)
    return {pod["metadata"]["name"]: membership(pod) for pod in found}


def job(parallelism: int, **template: Any) -> Json:
    """Return the specification of an indexed Job."""
    pod = {"metadata": template, "spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}
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


def test_each_replicated_job_of_a_job_set_is_a_group(hub: SimpleNamespace) -> None:
    uid = create_job_set(hub, "parts")
    found = without_suffix(members(hub, f"{jobset.NAME}=parts", 7))
    key = GroupRef("jobset", NAMESPACE, "parts", uid, "workers")
    expected = {f"parts-workers-{j}-{i}": Membership(key, 6, 6, 3 * j + i) for j in range(2) for i in range(3)}
    assert found.pop("parts-driver-0-0").key.kind == "pod"
    assert found == expected


def test_a_whole_job_set_is_a_group_by_annotation(hub: SimpleNamespace) -> None:
    annotations = {names.GANG: "all", names.MEMBERS_PER_NODE: "2"}
    uid = create_job_set(hub, "whole", annotations)
    found = without_suffix(members(hub, f"{jobset.NAME}=whole", 7))
    key = GroupRef("jobset", NAMESPACE, "whole", uid)
    workers = {f"whole-workers-{j}-{i}": Membership(key, 7, 7, 1 + 3 * j + i, 2) for j in range(2) for i in range(3)}
    assert found == {"whole-driver-0-0": Membership(key, 7, 7, 0, 2), **workers}


def create_set(hub: SimpleNamespace, name: str, startup: str) -> str:
    """Create a LeaderWorkerSet of two replicas of three pods; return its UID."""
    template = {"size": 3, "workerTemplate": {"spec": {"containers": CONTAINERS}}}
    spec = {"replicas": 2, "startupPolicy": startup, "leaderWorkerTemplate": template}
    body = {"apiVersion": SETS.api_version, "kind": "LeaderWorkerSet", "metadata": {"name": name}, "spec": spec}
    return str(hub.admin.create(SETS.path(NAMESPACE), body)["metadata"]["uid"])


def test_each_replica_of_a_leader_worker_set_is_a_group(hub: SimpleNamespace) -> None:
    uid = create_set(hub, "serve", "LeaderCreated")
    found = members(hub, f"{lws.NAME}=serve", 6)
    for replica in range(2):
        key = GroupRef("lws", NAMESPACE, "serve", uid, str(replica))
        assert found[f"serve-{replica}"] == Membership(key, 3, 3, 0)
        assert found[f"serve-{replica}-1"] == Membership(key, 3, 3, 1)
        assert found[f"serve-{replica}-2"] == Membership(key, 3, 3, 2)


def test_a_leader_whose_workers_wait_for_it_starts_alone(hub: SimpleNamespace) -> None:
    create_set(hub, "first", "LeaderReady")
    found = members(hub, f"{lws.NAME}=first", 2)
    assert {member.key.kind for member in found.values()} == {"pod"}


def test_pods_of_a_job_follow_the_pod_group_of_scheduler_plugins(hub: SimpleNamespace) -> None:
    body = {"apiVersion": GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}}
    uid = str(hub.admin.create(GROUPS.path(NAMESPACE), body)["metadata"]["uid"])
    labelled = {"metadata": {"name": "grouped"}, "spec": job(3, labels={podgroup.NAME: "g"})}
    hub.admin.create(JOBS.path(NAMESPACE), labelled)
    found = members(hub, f"{podgroup.NAME}=g", 3)
    assert set(found.values()) == {Membership(GroupRef("podgroup", NAMESPACE, "g", uid), 3, 2, None)}


def test_pods_follow_the_pod_group_of_the_workload_api(hub: SimpleNamespace) -> None:
    served = {entry["groupVersion"] for group in hub.admin.get("/apis")["groups"] for entry in group["versions"]}
    resource: Resource = next(entry for entry in workload_api.KIND.resources if entry.api_version in served)
    for name, policy in (("gang", {"gang": {"minCount": 2}}), ("basic", {"basic": {}})):
        spec = {"schedulingPolicy": policy}
        body = {"apiVersion": resource.api_version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        uid = hub.admin.create(resource.path(NAMESPACE), body)["metadata"]["uid"]
        pod = {"metadata": {"name": f"in-{name}"}, "spec": {"containers": CONTAINERS}}
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        found = hub.admin.create(PODS.path(NAMESPACE), pod)
        expected = {"kind": "workload", "name": "gang", "uid": uid, "size": 2, "minimum": 2}
        written = (found["metadata"].get("annotations") or {}).get(names.GROUP)
        assert written == (json.dumps(expected, separators=(",", ":")) if name == "gang" else None)
