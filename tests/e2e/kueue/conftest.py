"""One cluster with Kueue, kube-scheduler, colocated Slurm and two pools, and podbridge on it."""

import itertools
import time

import pytest

from cluster import Cluster, kueue, pools
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.world import LABEL, NAMESPACE

SITES = ("local-site", "slurm-site")
FAST = {"slurm": {"pollIdle": 0.5}, "queues": {"enabled": True, "releaseAfter": 1}}
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
REQUEST = {"cpu": "1", "memory": "1Gi"}


class KueueWorld(PoolWorld):
    """Calls to Kueue, and Jobs with a queue."""

    counts = itertools.count(time.time_ns() // 1_000_000)
    """Numbers in names; a kept cluster has objects of earlier runs."""

    def quota(self, flavors, namespace=NAMESPACE, **spec):
        """Create a ClusterQueue with quotas (flavor -> CPUs), and its LocalQueue; return their name."""
        name = f"queue-{next(self.counts)}"
        quotas = {flavor: {"cpu": str(cpus), "memory": "1Ti"} for flavor, cpus in flavors.items()}
        self.api("POST", *kueue.cluster_queue(name, quotas, **spec))
        self.api("POST", *kueue.local_queue(name, namespace, name))
        return name

    def template(self, run="30", script=None, annotations=None, **spec):
        """Return the template of a pod that needs one CPU: ``run`` is seconds for kwok, ``script`` for a pool."""
        container = {"name": "main", "image": "busybox", "resources": {"requests": REQUEST}}
        if script is not None:
            container["command"] = ["sh", "-c", script]
        metadata = {"annotations": {"hack/run-seconds": run, **(annotations or {})}}
        return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container], **spec}}

    def queued(self, queue, size=1, namespace=NAMESPACE, priority=None, annotations=None, **template):
        """Create an indexed Job with a queue; return it."""
        name = f"job-{next(self.counts)}"
        spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "backoffLimit": 0}
        labels = {QUEUE: queue, **({PRIORITY: priority} if priority else {})}
        metadata = {"name": name, "labels": labels, "annotations": annotations or {}}
        body = {"metadata": metadata, "spec": {**spec, "template": self.template(**template)}}
        return self.api("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)

    def workload(self, owner):
        """Return the Workload of an object; empty if there is none."""
        path = f"{kueue.API}/namespaces/{owner['metadata']['namespace']}/workloads"
        uid = owner["metadata"]["uid"]
        items = self.api("GET", path)["items"]
        owned = [item for item in items if any(ref["uid"] == uid for ref in item["metadata"]["ownerReferences"])]
        return owned[0] if owned else {}

    def told(self, owner, condition):
        """Return the status of a condition of the Workload of an object; ``None`` without it."""
        found = self.workload(owner).get("status", {}).get("conditions") or ()
        return next((c["status"] for c in found if c["type"] == condition), None)

    def admitted(self, owner, timeout=30):
        """Wait until Kueue has admitted the Workload of an object; return its first flavor for CPUs."""
        eventually(lambda: self.told(owner, "Admitted") == "True", f"{owner['metadata']['name']} admitted", timeout)
        return self.workload(owner)["status"]["admission"]["podSetAssignments"][0]["flavors"]["cpu"]

    def running_members(self, owner, size, timeout=40):
        """Wait until as many pods of a Job run; return them."""

        def look():
            members = self.members(owner)
            running = [pod for pod in members if pod["status"]["phase"] == "Running"]
            return members if len(running) == len(members) == size else None

        return eventually(look, f"{size} pods of {owner['metadata']['name']} run", timeout)

    def completed(self, owner, timeout=40):
        """Wait until a Job is complete."""
        path = f"/apis/batch/v1/namespaces/{owner['metadata']['namespace']}/jobs/{owner['metadata']['name']}"

        def look():
            conditions = self.api("GET", path)["status"].get("conditions") or ()
            return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

        eventually(look, f"{owner['metadata']['name']} complete", timeout)

    def master_queue(self, name, flavors, **spec):
        """Create a MasterQueue with a LocalQueue for pools; return the path of the MasterQueue."""
        path = "/apis/vk.io/v1/masterqueues"
        body = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "metadata": {"name": name}}
        queues = {"localQueues": [{"namespace": pools.NAMESPACE}]}
        self.api("POST", path, {**body, "spec": {"flavors": flavors, **queues, **spec}})
        return f"{path}/{name}"

    def offered(self, name):
        """Return the CPU quota of each flavor of a ClusterQueue; empty without the queue."""
        status, found = self.api.request("GET", f"{kueue.API}/clusterqueues/{name}")
        groups = found["spec"].get("resourceGroups") or () if status == 200 else ()
        return {
            flavor["name"]: next(r["nominalQuota"] for r in flavor["resources"] if r["name"] == "cpu")
            for group in groups
            for flavor in group["flavors"]
        }

    def slurm_jobs(self, pods):
        """Return the ids of the Slurm jobs of pods."""
        return {int(pod["metadata"]["labels"][LABEL]) for pod in pods}


@pytest.fixture(scope="package")
def world(state_folder):
    """The cluster, with a ResourceFlavor for each pool."""
    options = {"nodes": 3, "kueue": True, "gangs": True, "pools": list(SITES), "podbridge": FAST}
    with Cluster(state_folder / "kueue", slurm="26.05", **options) as cluster:
        made = KueueWorld.started(cluster)
        for site in SITES:
            toleration = {"key": "pool.vk.io", "value": site, "effect": "NoSchedule"}
            labels = {"kubernetes.io/hostname": site}
            cluster.api.ensure(*kueue.flavor(site, nodeLabels=labels, tolerations=[toleration]))
        yield made
