"""Workloads that Kueue admits to colocated Slurm, to a pool and to kube-scheduler."""

import time
from collections import Counter

import pytest

from cluster import pools
from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real
SLURM = kueue.QUEUE
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
SCRIPT = "until [ -e /srv/home/kueue-go ]; do sleep 0.1; done"


def writes(world):
    """Return how many objects podbridge has written for MasterQueues, by kind."""
    kinds = ("resourceflavor", "clusterqueue", "localqueue", "workload", "masterqueue")
    counts = Counter({kind: int(world.metric("podbridge_queue_writes_total", kind=kind)) for kind in kinds})
    assert counts.total() == world.metric("podbridge_queue_writes_total"), "no other kind"
    return +counts


def members(world, name):
    return world.pods(selector=f"{GROUP}={name}")


def create_group(world, queue, name, size, numbers, **template):
    """Create some pods of a group of plain pods."""
    for number in numbers:
        body = world.template(**template)
        body["metadata"] |= {"name": f"{name}-{number}", "labels": {"kueue.x-k8s.io/queue-name": queue, GROUP: name}}
        body["metadata"]["annotations"][TOTAL] = str(size)
        world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def delete_group(world, name):
    """Delete a group of plain pods: Kueue keeps deleted pods of a group that has not finished as its members."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={GROUP}={name}"
    world.api("DELETE", path, {"gracePeriodSeconds": 1})
    world.api.request("DELETE", f"{kueue.API}/namespaces/{NAMESPACE}/workloads/{name}")
    eventually(lambda: not members(world, name), f"the finalizers of group {name} are gone", 40)


def one_job(world, pods):
    (job,) = world.slurm_jobs(pods)
    return job


def test_jobs_run_on_slurm_within_the_quota_of_their_queue(world):
    queue = world.quota({SLURM: 2})
    jobs = [world.queued(queue, run="60") for _ in range(2)]
    for job in jobs:
        (pod,) = world.running_members(job, 1)
        assert world.job(one_job(world, [pod]))["JobState"] == "RUNNING"
    waiting = world.queued(queue, run="1")
    eventually(lambda: world.told(waiting, "QuotaReserved") == "False", "the third waits")
    assert not world.members(waiting)
    quota = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    more = [{"op": "replace", "path": quota, "value": "3"}]
    world.api("PATCH", f"{kueue.API}/clusterqueues/{queue}", more, "application/json-patch+json")
    world.completed(waiting)
    for job in jobs:
        world.delete_gang(job)
    eventually(lambda: not world.queue(), "no Slurm job left")


def test_a_pod_group_is_admitted_as_a_whole_and_becomes_one_slurm_job(world):
    queue = world.quota({SLURM: 3})
    create_group(world, queue, "group", 3, range(2), run="5")
    first = members(world, "group")[0]
    assert [gate["name"] for gate in first["spec"]["schedulingGates"]]
    create_group(world, queue, "group", 3, [2], run="5")
    eventually(lambda: all(pod["spec"].get("nodeName") for pod in members(world, "group")), "the group is bound", 40)
    pods = members(world, "group")
    assert len(pods) == 3
    assert world.job(one_job(world, pods))["NumNodes"] == "3"
    path = f"{kueue.API}/namespaces/{NAMESPACE}/workloads/group"

    def finished():
        conditions = world.api("GET", path)["status"]["conditions"]
        return any(c["type"] == "Finished" and c["status"] == "True" for c in conditions)

    eventually(finished, "Kueue counts the group as finished", 40)
    eventually(lambda: not world.queue(), "its Slurm job gone")
    delete_group(world, "group")


def test_a_member_of_a_pod_group_that_failed_is_replaced_in_the_same_slurm_job(world):
    queue = world.quota({SLURM: 2})
    create_group(world, queue, "again", 2, [0], run="60")
    create_group(world, queue, "again", 2, [1], run="2", annotations={"hack/exit-code": "1"})
    eventually(lambda: [p["status"]["phase"] for p in members(world, "again")] == ["Running", "Failed"], "failed", 40)
    job = one_job(world, members(world, "again")[:1])
    create_group(world, queue, "again", 2, [2], run="60")

    def replaced():
        found = [pod for pod in members(world, "again") if pod["metadata"]["name"] == "again-2"]
        return found and found[0]["status"]["phase"] == "Running"

    eventually(replaced, "the new member runs", 40)
    assert one_job(world, [pod for pod in members(world, "again") if pod["status"]["phase"] == "Running"]) == job
    delete_group(world, "again")
    eventually(lambda: job not in world.queue(), "its Slurm job is gone")


def test_a_job_that_kueue_preempts_leaves_slurm_and_comes_back(world):
    name = f"high-{next(world.counts)}"
    queue = world.quota({SLURM: 2}, preemption={"withinClusterQueue": "LowerPriority"})
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    world.api("POST", f"{kueue.API}/workloadpriorityclasses", {**kind, "metadata": {"name": name}, "value": 9})
    low = world.queued(queue, size=2, annotations={"bridge.vk.io/gang": "true"})
    preempted = one_job(world, world.running_members(low, 2))
    high = world.queued(queue, size=2, priority=name)
    world.running_members(high, 2)
    assert world.told(low, "Evicted") == "True"
    assert not world.members(low)
    assert world.job(preempted).get("JobState", "CANCELLED") == "CANCELLED"
    world.delete_gang(high)
    assert one_job(world, world.running_members(low, 2)) != preempted
    world.delete_gang(low)
    eventually(lambda: not world.queue(), "no Slurm job left")


def test_a_jobset_waits_for_its_quota_and_is_one_slurm_job_for_each_replicated_job(world):
    queue = world.quota({SLURM: 4})
    blocker = world.queued(queue, run="60")
    world.running_members(blocker, 1)

    def replicated(name, size):
        spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "backoffLimit": 0}
        return {"name": name, "replicas": 1, "template": {"spec": {**spec, "template": world.template(run="4")}}}

    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"replicatedJobs": [replicated("driver", 1), replicated("workers", 3)]},
    }
    jobset = world.api("POST", path, body)
    eventually(lambda: world.told(jobset, "QuotaReserved") == "False", "the JobSet waits")
    label = "jobset.sigs.k8s.io/jobset-name=train,jobset.sigs.k8s.io/replicatedjob-name="
    assert not world.pods(selector=f"{label}workers")
    world.delete_gang(blocker)
    eventually(lambda: len(world.pods(selector=f"{label}workers")) == 3, "admitted", 40)
    eventually(lambda: all(p["spec"].get("nodeName") for p in world.pods(selector=f"{label}workers")), "bound", 40)
    workers = one_job(world, world.pods(selector=f"{label}workers"))
    assert world.job(workers)["NumNodes"] == "3"

    def completed():
        conditions = world.api("GET", f"{path}/train")["status"].get("conditions") or ()
        return any(c["type"] == "Completed" and c["status"] == "True" for c in conditions)

    eventually(completed, "the JobSet is complete", 40)


def test_a_job_of_a_namespace_that_podbridge_does_not_manage_goes_to_kube_scheduler(world):
    queue = world.quota({SLURM: 2}, "default")
    job = world.queued(queue, namespace="default")
    (pod,) = world.running_members(job, 1)
    assert pod["spec"]["nodeName"] == kueue.LOCAL_NODE
    assert not world.slurm("squeue", "-h", "-n", pod["metadata"]["name"]).strip()
    world.delete_gang(job)


def test_each_job_runs_on_the_pool_of_its_flavor_and_on_no_other(world):
    queue = world.quota({"slurm-site": 1, "local-site": 2}, pools.NAMESPACE)
    jobs = [world.queued(queue, namespace=pools.NAMESPACE, script=SCRIPT) for _ in range(4)]
    eventually(lambda: sum(world.told(job, "QuotaReserved") == "True" for job in jobs) == 3, "three admitted")
    (waiting,) = [job for job in jobs if world.told(job, "QuotaReserved") != "True"]
    admitted = [job for job in jobs if job is not waiting]
    for job in admitted:
        flavor = world.admitted(job)
        (pod,) = world.running_members(job, 1, 60)
        assert pod["spec"]["nodeName"] == flavor
        assert world.remote_job(pod).startswith(f"{flavor}/")
    assert sorted(map(world.admitted, admitted)) == ["local-site", "local-site", "slurm-site"]
    assert not world.members(waiting)
    world.let_go("kueue-go")
    for job in jobs:
        world.completed(job, 60)


def test_the_flavors_of_a_master_queue_follow_the_pools(world):
    name = f"master-{next(world.counts)}"
    flavors = [{"name": "p", "share": 50, "poolFlavor": {"pools": ["slurm-site", "local-site"]}}]
    foreign = f"{name}-p-slurm-site"
    world.api("POST", *kueue.flavor(foreign))
    path = world.master_queue(name, flavors)
    mine = f"{name}-p-local-site"
    eventually(lambda: list(world.offered(name)) == [mine], "the flavor of local-site is offered")
    eventually(lambda: world.queue_state(path) == ("InStep", {"pslurm-site": "Conflict", "plocal-site": "Offered"}))
    assert not world.api("GET", f"{kueue.API}/resourceflavors/{foreign}")["spec"]
    world.api("DELETE", f"{kueue.API}/resourceflavors/{foreign}")
    eventually(lambda: list(world.offered(name)) == [foreign, mine], "both are offered")
    half = int(world.kube_node("local-site")["status"]["allocatable"]["cpu"]) // 2
    assert world.offered(name)[mine] == str(half)
    job = world.queued(name, namespace=pools.NAMESPACE, script="true", tolerations=[kueue.TOLERATION])
    assert world.admitted(job) == foreign
    world.completed(job, 60)

    before = writes(world)
    world.cluster.stop_submitter("local-site")
    eventually(lambda: world.offered(name)[mine] == "0", "held")
    assert world.offered(name)[foreign] != "0"
    world.cluster.start_submitter("local-site")
    eventually(lambda: world.offered(name)[mine] == str(half), "offered again")
    made = writes(world) - before
    assert made["clusterqueue"] == 2, "held, offered"
    assert made["masterqueue"] <= 4, "the site has left, is silent, has announced itself again, is offered"
    assert set(made) == {"clusterqueue", "masterqueue"}

    world.cluster.stop_podbridge()
    world.cluster.start_podbridge()
    eventually(lambda: world.metric("podbridge_queue_flavors", state="offered") >= 2, "observed again")
    time.sleep(world.cluster.options.podbridge["pools"]["silentAfter"] + 2)
    assert not writes(world), "a restart changes nothing, and no site is silent"
    world.api.merge(path, {"spec": {"flavors": [{"name": "p"}]}})
    eventually(lambda: world.queue_state(path)[0] == "Invalid", "told")
    assert list(world.offered(name)) == [foreign, mine]
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its objects are garbage", 60)


def test_a_job_without_the_toleration_of_virtual_nodes_stays_local(world):
    name = f"master-{next(world.counts)}"
    flavors = [
        {"name": "site", "natsFlavor": {"poolRegExp": "slurm", "natsSubject": "interlink"}},
        {"name": "local", "localFlavor": {"nodeLabels": {"kubernetes.io/hostname": kueue.LOCAL_NODE}}},
    ]
    path = world.master_queue(name, flavors, localQueues=[{"namespace": name} for name in ("default", pools.NAMESPACE)])
    eventually(lambda: len(world.offered(name)) == 2, "both flavors are offered")
    job = world.queued(name, namespace="default")
    assert world.admitted(job) == f"{name}-local"
    (pod,) = world.running_members(job, 1)
    assert pod["spec"]["nodeName"] == kueue.LOCAL_NODE
    remote = world.queued(name, namespace=pools.NAMESPACE, script="true", tolerations=[kueue.TOLERATION])
    assert world.admitted(remote) == f"{name}-site-slurm-site"
    world.completed(remote, 60)
    conditions = {c["type"]: c for c in world.api("GET", path)["status"]["conditions"]}
    assert "natsFlavor.natsSubject" in conditions["FieldsIgnored"]["message"]
    world.delete_gang(job)
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)


def test_a_flavor_of_slurm_follows_its_nodes_and_takes_jobs_to_them(world):
    name = f"master-{next(world.counts)}"
    node = "node-1"
    patch = {"metadata": {"labels": {"rack": "r1"}}}
    world.api.merge(f"/api/v1/nodes/{node}", patch)
    flavors = [{"name": "slurm", "slurmFlavor": {"nodeLabels": {"rack": "r1"}}}]
    path = world.master_queue(name, flavors, localQueues=[{"namespace": NAMESPACE}])
    flavor = f"{name}-slurm"
    eventually(lambda: world.offered(name) == {flavor: "128"}, "the CPUs of one node")
    job = world.queued(name)
    assert world.admitted(job) == flavor
    (pod,) = world.running_members(job, 1)
    assert pod["spec"]["nodeName"] == node
    world.cluster.kubectl("cordon", node)
    eventually(lambda: world.offered(name) == {flavor: "0"}, "no CPUs of a cordoned node")
    world.cluster.kubectl("uncordon", node)
    eventually(lambda: world.offered(name) == {flavor: "128"}, "the node is back")
    world.delete_gang(job)
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)


def test_a_queue_that_cannot_be_written_is_reported_until_it_is_mended(world):
    name = f"master-{next(world.counts)}"
    flavors = [{"name": "local", "localFlavor": {"nodeLabels": {"kubernetes.io/hostname": kueue.LOCAL_NODE}}}]
    unknown = {"preemption": {"withinClusterqueue": "LowerPriority"}}
    path = world.master_queue(name, flavors, template=unknown)
    eventually(lambda: world.queue_state(path)[0] == "WriteFailed", "the API server does not know the field", 30)
    assert world.api.request("GET", f"{kueue.API}/clusterqueues/{name}")[0] == 404
    world.api.merge(path, {"spec": {"template": None}})
    eventually(lambda: world.queue_state(path) == ("InStep", {"local": "Offered"}), "written", 40)
    assert world.offered(name)[f"{name}-local"] != "0"
    refused = [*flavors, {"name": "rack", "localFlavor": {"nodeLabels": {"rack": "my rack"}}}]
    world.api.merge(path, {"spec": {"flavors": refused}})
    eventually(lambda: world.queue_state(path)[0] == "Invalid", "the value of the label is refused")
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)


def test_a_deleted_queue_is_reported_until_its_workloads_have_ended_and_it_exists_again(world):
    name = f"master-{next(world.counts)}"
    path = world.master_queue(name, [{"name": "site", "poolFlavor": {"poolRegExp": "slurm"}}])
    flavor = f"{name}-site-slurm-site"
    eventually(lambda: world.queue_state(path) == ("InStep", {"siteslurm-site": "Offered"}), "written", 40)
    job = world.queued(name, namespace=pools.NAMESPACE, script=SCRIPT, tolerations=[kueue.TOLERATION])
    world.running_members(job, 1, 60)
    flavor_path, queue_path = f"{kueue.API}/resourceflavors/{flavor}", f"{kueue.API}/clusterqueues/{name}"
    world.api("DELETE", flavor_path)
    assert world.api("GET", flavor_path)["metadata"]["deletionTimestamp"], "Kueue keeps it"
    second = world.queued(name, namespace=pools.NAMESPACE, script=SCRIPT, tolerations=[kueue.TOLERATION])
    assert world.admitted(second) == flavor
    assert world.queue_state(path)[0] == "InStep"
    uid = world.api("GET", queue_path)["metadata"]["uid"]
    world.api("DELETE", queue_path)
    eventually(lambda: world.queue_state(path)[0] == "BeingDeleted", "the deletion is reported")
    world.let_go("kueue-go")
    for each in (job, second):
        world.completed(each, 60)
    eventually(lambda: world.queue_state(path) == ("InStep", {"siteslurm-site": "Offered"}), "written again", 60)
    assert world.api("GET", queue_path)["metadata"]["uid"] != uid
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)
