"""The real controllers of groups of pods, on a control plane without Slurm: kwok's nodes run nothing of them."""

import pytest

from cluster import Cluster
from cluster.polling import eventually

pytestmark = pytest.mark.real
NAMESPACE = "groups"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
KIND_OF_POD = {"containers": [{"name": "main", "image": "busybox"}]}


@pytest.fixture(scope="module")
def cluster(state_folder):
    """A control plane with the gang controllers and a namespace."""
    with Cluster(state_folder / "gangs", slurm=None, nodes=1, gangs=True) as cluster:
        cluster.add_namespace(NAMESPACE)
        yield cluster


def create(cluster, version, plural, kind, name, spec):
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    path = f"/apis/{version}/namespaces/{NAMESPACE}/{plural}"
    cluster.api("POST", path, body)
    return f"{path}/{name}"


def pods(cluster, key, value):
    return [pod for pod in cluster.api("GET", PODS)["items"] if (pod["metadata"].get("labels") or {}).get(key) == value]


def labels(cluster, key, value, *wanted):
    """The wanted labels of each pod of a group, sorted."""
    return sorted(
        tuple(pod["metadata"]["labels"].get(name, "") for name in wanted) for pod in pods(cluster, key, value)
    )


def test_a_jobset_creates_the_pods_of_its_replicated_jobs(cluster):
    template = {"spec": {**KIND_OF_POD, "restartPolicy": "Never"}}
    jobs = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    replicated = [{"name": "workers", "replicas": 2, "template": {"spec": jobs}}]
    create(cluster, "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "train", {"replicatedJobs": replicated})
    wanted = ("jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index")
    found = [("workers", "0"), ("workers", "0"), ("workers", "1"), ("workers", "1")]
    eventually(lambda: labels(cluster, "jobset.sigs.k8s.io/jobset-name", "train", *wanted) == found)


def test_a_jobset_that_its_webhook_refuses_is_not_created(cluster):
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
    job = {"template": {"spec": {**KIND_OF_POD, "restartPolicy": "Never"}}}
    name = "n" * 70
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job}}]},
    }
    status, answer = cluster.api.request("POST", path, body)
    assert status == 403
    assert "vjobset.kb.io" in answer["message"]


def test_a_leader_worker_set_creates_leaders_and_their_workers(cluster):
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {"spec": KIND_OF_POD}}}
    create(cluster, "leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", "serve", spec)
    wanted = ("leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index")
    found = [(group, worker) for group in ("0", "1") for worker in ("0", "1", "2")]
    eventually(lambda: labels(cluster, "leaderworkerset.sigs.k8s.io/name", "serve", *wanted) == found)


def test_scheduler_plugins_controller_follows_the_members_of_a_pod_group(cluster):
    path = create(cluster, "scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup", "gang", {"minMember": 2})
    for number in range(2):
        label = {"scheduling.x-k8s.io/pod-group": "gang"}
        metadata = {"name": f"gang-{number}", "labels": label}
        cluster.api("POST", PODS, {"metadata": metadata, "spec": {**KIND_OF_POD, "nodeName": "node-0"}})
    eventually(lambda: cluster.api("GET", path).get("status", {}).get("phase") == "Running")
    assert cluster.api("GET", path)["status"]["running"] == 2


def check_workload_api(cluster, version):
    """A PodGroup of Kubernetes' own API stays until its members have gone."""
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    path = create(cluster, version, "podgroups", "PodGroup", "native", policy)
    member = {**KIND_OF_POD, "nodeName": "node-0", "schedulingGroup": {"podGroupName": "native"}}
    cluster.api("POST", PODS, {"metadata": {"name": "native"}, "spec": member})
    assert cluster.api("GET", f"{PODS}/native")["spec"]["schedulingGroup"] == {"podGroupName": "native"}
    cluster.api("DELETE", path)
    assert cluster.api("GET", path)["metadata"]["deletionTimestamp"], "a member still runs"
    cluster.api("DELETE", f"{PODS}/native")
    eventually(lambda: cluster.api.request("GET", path)[0] == 404)


def test_the_workload_api_is_served(cluster):
    check_workload_api(cluster, "scheduling.k8s.io/v1alpha2")


def test_the_newer_control_plane_serves_the_workload_api_as_beta(state_folder):
    options = {"slurm": None, "nodes": 1, "gangs": True, "kubernetes": "1.37"}
    with Cluster(state_folder / "kubernetes-1.37", **options) as cluster:
        assert cluster.api("GET", "/version")["gitVersion"] == "v1.37.2"
        cluster.add_namespace(NAMESPACE)
        check_workload_api(cluster, "scheduling.k8s.io/v1beta1")


def test_a_controller_that_was_killed_starts_again(cluster):
    for name in ("jobset-controller", "lws-controller", "scheduler-plugins-controller"):
        cluster.kill(name)
        assert not cluster.running
        cluster.start_daemon(name)
    assert cluster.running
