"""LeaderWorkerSets, partial admission, topology-aware scheduling, and the copies of Jobs that MultiKueue creates."""

import pytest

from cluster import pools
from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import NAMESPACE
from tests.e2e.rendezvous import container, lines

pytestmark = pytest.mark.real
SLURM = kueue.QUEUE
SETS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"


def test_each_replica_of_a_leader_worker_set_is_admitted_as_a_whole_and_is_one_slurm_job(world):
    queue, name = world.quota({SLURM: 3}), f"serve-{next(world.counts)}"
    worker = world.template(run="600", terminationGracePeriodSeconds=1)
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": worker}}
    del worker["spec"]["restartPolicy"]
    body = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "spec": spec}
    world.api("POST", SETS, {**body, "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}}})
    selector = f"leaderworkerset.sigs.k8s.io/name={name}"

    def bound():
        return [pod for pod in world.pods(selector=selector) if pod["spec"].get("nodeName")]

    eventually(lambda: len(bound()) == 3, "one replica is bound", 60)
    index = "leaderworkerset.sigs.k8s.io/group-index"
    assert len({pod["metadata"]["labels"][index] for pod in bound()}) == 1
    (job,) = world.slurm_jobs(bound())
    assert world.job(job)["NumNodes"] == "3"
    waiting = [pod for pod in world.pods(selector=selector) if not pod["spec"].get("nodeName")]
    assert waiting
    assert all(pod["spec"].get("schedulingGates") for pod in waiting), "the other replica has no quota"
    world.api("DELETE", f"{SETS}/{name}", {"propagationPolicy": "Background"})
    eventually(lambda: not world.pods(selector=selector), "its pods are gone", 60)
    eventually(lambda: job not in world.queue(), "its Slurm job is gone", 40)


def test_a_job_that_kueue_preempts_leaves_its_site_and_comes_back(world):
    number = next(world.counts)
    name, flavor = f"remote-high-{number}", "local-site"
    queue = world.quota({flavor: 1}, pools.NAMESPACE, preemption={"withinClusterQueue": "LowerPriority"})
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    world.api("POST", f"{kueue.API}/workloadpriorityclasses", {**kind, "metadata": {"name": name}, "value": 9})
    script = f"until [ -e /srv/home/{name} ]; do sleep 0.1; done"
    low = world.queued(queue, namespace=pools.NAMESPACE, script=script)
    (first,) = world.running_members(low, 1, 60)
    high = world.queued(queue, namespace=pools.NAMESPACE, script=script, priority=name)
    world.running_members(high, 1, 60)
    assert world.told(low, "Evicted") == "True"
    assert not world.members(low)
    assert first["metadata"]["uid"] not in world.jobs_at(flavor), "its job at the site has ended"
    world.let_go(name)
    for job in (high, low):
        world.completed(job, 60)


def test_a_jobset_that_is_admitted_to_the_flavor_of_a_pool_is_one_job_of_its_slurm(world):
    name, size, flavor = f"mesh-{next(world.counts)}", 3, "slurm-site"
    queue = world.quota({flavor: size}, pools.NAMESPACE)
    annotations = {"bridge.vk.io/members-per-node": "2", "bridge.vk.io/rendezvous": "torch,hostfile"}
    pod = world.template(annotations=annotations)
    check = (
        f'[ "$(head -n 1 $PODBRIDGE_GROUP_HOSTFILE), $(wc -l <$PODBRIDGE_GROUP_HOSTFILE)" = "$MASTER_ADDR, {size}" ]'
    )
    pod["spec"]["containers"] = [container("$MASTER_ADDR", "$MASTER_PORT", "$RANK", "$WORLD_SIZE", check)]
    job = {"parallelism": size, "completions": size, "backoffLimit": 0, "template": pod}
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{pools.NAMESPACE}/jobsets"
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": job}}]},
    }
    jobset = world.api("POST", path, body)
    assert world.admitted(jobset) == flavor
    label = f"jobset.sigs.k8s.io/jobset-name={name}"
    pods = eventually(lambda: len(found := world.pods(pools.NAMESPACE, label)) == size and found, "its pods", 60)
    ended = [world.ended(pod) for pod in pods]
    (one,) = {world.remote_job(pod) for pod in ended}
    assert one.startswith(f"{flavor}/")
    met = sorted(world.logs(pod).strip() for pod in ended)
    assert met == lines(f"{name}-w-0-0.{name}.{pools.NAMESPACE}.svc.cluster.local", size)
    assert {pod["status"]["phase"] for pod in ended} == {"Succeeded"}

    def completed():
        conditions = world.api("GET", f"{path}/{name}")["status"].get("conditions") or ()
        return any(c["type"] == "Completed" and c["status"] == "True" for c in conditions)

    eventually(completed, "the JobSet is complete", 60)


def test_a_gang_that_is_admitted_in_part_is_a_smaller_slurm_job(world):
    queue = world.quota({SLURM: 2})
    annotations = {
        "bridge.vk.io/gang": "true",
        "kueue.x-k8s.io/job-min-parallelism": "2",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    gang = world.queued(queue, size=3, run="600", annotations=annotations)
    pods = world.running_members(gang, 2, 60)
    (job,) = world.slurm_jobs(pods)
    assert world.job(job)["NumNodes"] == "2"
    world.delete_gang(gang)
    eventually(lambda: not world.queue(), "no Slurm job left")


def test_topology_aware_scheduling_selects_the_node_and_slurm_allocates_it(world):
    number = next(world.counts)
    name = f"topology-{number}"
    levels = [{"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": {"name": name}}
    world.api("POST", f"{kueue.API}/topologies", {**topology, "spec": {"levels": levels}})
    toleration = {"key": "slinky.slurm.net/managed-node", "operator": "Exists"}
    labels = {f"partition.bridge.vk.io/{world.partition}": "true"}
    world.api("POST", *kueue.flavor(name, nodeLabels=labels, tolerations=[toleration], topologyName=name))
    queue = world.quota({name: 8})
    required = {"kueue.x-k8s.io/podset-required-topology": "kubernetes.io/hostname"}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
    body = {
        "metadata": {"name": f"placed-{number}", "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {**spec, "template": world.template(run="600", annotations=required)},
    }
    placed = world.api("POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", body)
    pods = world.running_members(placed, 2, 60)
    assert {pod["spec"]["nodeName"] for pod in pods} == {world.partition_node}
    assert {pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] for pod in pods} == {world.partition_node}
    for job_id in world.slurm_jobs(pods):
        assert world.job(job_id)["Partition"] == world.partition
    world.delete_gang(placed)
    eventually(lambda: not world.queue(), "no Slurm job left", 40)
