"""Every kind of group with its real controller: one Slurm job for all members, on one cluster."""

import json

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real
CORES = f"/api/v1/namespaces/{NAMESPACE}"


def create(world, version, plural, kind, name, spec):
    path = f"/apis/{version}/namespaces/{NAMESPACE}/{plural}"
    world.api("POST", path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def template(world, run=None, **spec):
    found = world.manifest(run=run, **spec)
    del found["metadata"]["name"]
    return found


def one_job(world, pods, size):
    """Return the job of a group whose members all run, each on a node of its own."""
    members = eventually(lambda: pods() if len(pods()) == size and all(map(bound, pods())) else None, "all bound", 40)
    (job,) = {world.job_of(pod) for pod in members}
    nodes = world.slurm("scontrol", "show", "hostnames", world.job(job)["NodeList"]).split()
    assert sorted(pod["spec"]["nodeName"] for pod in members) == sorted(nodes)
    return job


def bound(pod):
    return pod["spec"].get("nodeName")


def condition(world, path, kind):
    found = world.api("GET", path).get("status", {}).get("conditions") or ()
    return next((entry["status"] for entry in found if entry["type"] == kind), "")


def progress(world, word, name):
    """Return the summary of ``podbridge explain`` for an owner of pods, and its pods of any state."""
    report = world.explained(word, name)
    return report["summary"], [line.partition(":")[0] for line in report["pods"]]


def labelled(world, label):
    return lambda: world.pods(selector=label)


def test_a_jobset_runs_each_replicated_job_in_one_slurm_job_and_completes(world):
    def replicated(name, replicas, size):
        spec = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
        spec["template"] = template(world, run="4", restartPolicy="Never")
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    jobs = [replicated("driver", 1, 1), replicated("workers", 2, 2)]
    path = create(world, "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "train", {"replicatedJobs": jobs})
    label = "jobset.sigs.k8s.io/jobset-name=train,jobset.sigs.k8s.io/replicatedjob-name="
    workers = one_job(world, labelled(world, f"{label}workers"), 4)
    driver = one_job(world, labelled(world, f"{label}driver"), 1)
    assert driver != workers
    assert len(progress(world, "jobset", "train")[1]) == 5
    eventually(lambda: condition(world, path, "Completed") == "True", "the JobSet completed", 40)
    eventually(lambda: not {driver, workers} & world.queue().keys(), "its jobs gone")


@pytest.mark.parametrize("policy", [{}, {"podGroupPolicy": {"coscheduling": {}}}], ids=["alone", "with-pod-group"])
def test_the_nodes_of_a_train_job_are_one_slurm_job(world, policy):
    """Kubeflow Trainer's own controller makes a JobSet of it, and with a policy also a PodGroup."""
    api = "trainer.kubeflow.org/v1alpha1"
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job = {"metadata": step, "spec": {"template": template(world, run="2")}}
    job["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    runtime = {
        "mlPolicy": {"numNodes": 1},
        "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
    }
    create(world, api, "trainingruntimes", "TrainingRuntime", "runtime", runtime | policy)
    reference = {"name": "runtime", "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
    path = create(world, api, "trainjobs", "TrainJob", "tune", {"runtimeRef": reference, "trainer": {"numNodes": 3}})
    one_job(world, labelled(world, "jobset.sigs.k8s.io/jobset-name=tune"), 3)
    groups = {json.loads(pod["metadata"]["annotations"]["bridge.vk.io/group"])["kind"] for pod in world.pods()}
    assert groups == {"podgroup" if policy else "jobset"}
    assert len(progress(world, "trainjob", "tune")[1]) == 3
    eventually(lambda: condition(world, path, "Complete") == "True", "the TrainJob is complete", 40)


def test_each_replica_of_a_leader_worker_set_is_one_slurm_job_and_becomes_available(world):
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template(world)}}
    path = create(world, "leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", "serve", spec)
    label = "leaderworkerset.sigs.k8s.io/name=serve,leaderworkerset.sigs.k8s.io/group-index="
    jobs = [one_job(world, labelled(world, f"{label}{replica}"), 3) for replica in (0, 1)]
    assert jobs[0] != jobs[1]
    eventually(lambda: world.api("GET", path).get("status", {}).get("readyReplicas") == 2, "both replicas ready")
    assert progress(world, "leaderworkerset", "serve")[0] == "0 of 6 pods done, 6 running"
    world.api("DELETE", path)
    eventually(lambda: not set(jobs) & world.queue().keys(), "their jobs gone", 40)


def test_a_leader_that_its_workers_wait_for_starts_alone_and_the_workers_share_one_slurm_job(world):
    spec = {"replicas": 1, "startupPolicy": "LeaderReady"}
    spec["leaderWorkerTemplate"] = {"size": 3, "workerTemplate": template(world)}
    path = create(world, "leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet", "first", spec)
    label = "leaderworkerset.sigs.k8s.io/name=first,leaderworkerset.sigs.k8s.io/worker-index"
    leader = one_job(world, labelled(world, f"{label}=0"), 1)
    workers = one_job(world, labelled(world, f"{label}!=0"), 2)
    assert leader != workers
    eventually(lambda: world.api("GET", path).get("status", {}).get("readyReplicas") == 1, "the replica is ready")


@pytest.mark.parametrize("kind", ["podgroup", "kueue"])
def test_bare_pods_of_a_group_share_one_slurm_job(world, kind):
    labels, annotations = {"group": kind}, {}
    if kind == "podgroup":
        path = create(world, "scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup", "plain", {"minMember": 3})
        labels["scheduling.x-k8s.io/pod-group"] = "plain"
    else:
        labels["kueue.x-k8s.io/pod-group-name"] = "kueue"
        annotations["kueue.x-k8s.io/pod-group-total-count"] = "3"
    for number in range(3):
        body = world.manifest(f"{kind}-{number}")
        body["metadata"] |= {"labels": labels, "annotations": annotations}
        world.api("POST", f"{CORES}/pods", body)
        if number == 1:
            first = world.pods(selector=f"group={kind}")[0]
            eventually(lambda p=first: world.condition(p, "PodScheduled").get("reason") == "GangIncomplete", "told")
    job = one_job(world, labelled(world, f"group={kind}"), 3)
    if kind == "podgroup":
        eventually(lambda: world.api("GET", path).get("status", {}).get("phase") == "Running", "the PodGroup runs")
        assert progress(world, "podgroup", "plain")[0] == "0 of 3 pods done, 3 running"
    for pod in world.pods(selector=f"group={kind}"):
        world.delete(pod, grace=1)
    eventually(lambda: job not in world.queue(), "its job gone", 40)


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_head_and_workers_of_a_ray_cluster_are_one_slurm_job(world, kind):
    """The pods of a RayJob run no Ray, so the operator cannot read its state: it gets as far as the submitter pod."""
    pods = template(world)
    pods["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "ray"}
    create(world, "scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup", "ray", {"minMember": 3})
    workers = {"groupName": "small", "replicas": 2, "minReplicas": 2, "maxReplicas": 2}
    cluster = {
        "headGroupSpec": {"rayStartParams": {}, "template": pods},
        "workerGroupSpecs": [{**workers, "rayStartParams": {}, "template": pods}],
    }
    if kind == "RayJob":
        cluster = {"entrypoint": "true", "rayClusterSpec": cluster, "submitterPodTemplate": template(world)}
        cluster["submitterPodTemplate"]["spec"]["restartPolicy"] = "Never"
    path = create(world, "ray.io/v1", f"{kind.lower()}s", kind, "ray", cluster)
    job = one_job(world, labelled(world, "ray.io/is-ray-node=yes"), 3)
    kinds = [pod["metadata"]["labels"]["ray.io/node-type"] for pod in world.pods(selector="ray.io/is-ray-node=yes")]
    assert sorted(kinds) == ["head", "worker", "worker"]
    if kind == "RayJob":
        submitter = one_job(world, labelled(world, "job-name=ray"), 1)
        assert submitter != job
    else:
        eventually(lambda: world.api("GET", path).get("status", {}).get("state") == "ready", "the RayCluster is ready")
        assert progress(world, "raycluster", "ray")[0] == "0 of 3 pods done, 3 running"
    world.api("DELETE", path)
    eventually(lambda: job not in world.queue(), "its job gone", 40)


def test_a_pod_that_joins_a_running_group_needs_the_request_of_its_members(world):
    def member(name, cpu):
        body = world.manifest(name, cpu=cpu)
        body["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "joined"}
        body["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
        return world.api("POST", f"{CORES}/pods", body)

    first, second = member("joined-0", "1"), member("joined-1", "1")
    job = one_job(world, labelled(world, "kueue.x-k8s.io/pod-group-name=joined"), 2)
    node = world.get(second)["spec"]["nodeName"]
    world.delete(second, grace=1)
    eventually(lambda: world.get(second) is None, "a free place")
    stranger = member("joined-2", "8")
    assert world.job_of(world.running(stranger)) != job
    successor = member("joined-3", "1")
    assert world.job_of(world.running(successor)) == job
    assert world.get(successor)["spec"]["nodeName"] == node
    for pod in (first, stranger, successor):
        world.delete(pod, grace=1)
    eventually(lambda: job not in world.queue(), "its job gone", 40)
