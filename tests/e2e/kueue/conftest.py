"""One cluster with Kueue, kube-scheduler, colocated Slurm and two pools, and podbridge on it."""

import itertools
import json
import os
import subprocess
import time

import pytest

from bridge.clock import parse_rfc3339
from bridge.workload.quantity import parse
from cluster import Cluster, places, pools
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import LABEL, NAMESPACE

SITES = ("local-site", "slurm-site")
PARTITION, PARTITION_NODE = "gpu", "node-2"
"""A Slurm partition beside ``main``, and its only node."""
FAST = {"slurm": {"pollIdle": 0.5}, "queues": {"releaseAfter": 1}, "pools": {"silentAfter": 5}}
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
REQUEST = {"cpu": "1", "memory": "1Gi"}


class KueueWorld(PoolWorld):
    """Calls to Kueue, and Jobs with a queue."""

    partition, partition_node = PARTITION, PARTITION_NODE
    counts = itertools.count(time.time_ns() // 1_000_000)
    """Numbers in names; a kept cluster has objects of earlier runs."""

    def quota(self, flavors, namespace=NAMESPACE, **spec):
        """Create a ClusterQueue with quotas (flavor -> CPUs), and its LocalQueue; return their name."""
        name = f"queue-{next(self.counts)}"
        quotas = {flavor: {"cpu": str(cpus), "memory": "1Ti"} for flavor, cpus in flavors.items()}
        self.api("POST", *kueue.cluster_queue(name, quotas, **spec))
        self.api("POST", *kueue.local_queue(name, namespace, name))
        return name

    def template(self, run="30", script=None, annotations=None, labels=None, **spec):
        """Return the template of a pod that needs one CPU: ``run`` is seconds for kwok, ``script`` for a pool."""
        container = {"name": "main", "image": "busybox", "resources": {"requests": REQUEST}}
        if script is not None:
            container["command"] = ["sh", "-c", script]
        metadata = {"annotations": {"hack/run-seconds": run, **(annotations or {})}, "labels": labels or {}}
        return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container], **spec}}

    def queued(self, queue, size=1, namespace=NAMESPACE, priority=None, annotations=None, labels=None, **template):
        """Create an indexed Job with a queue; return it. It and its pods have the labels."""
        name = f"job-{next(self.counts)}"
        spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "backoffLimit": 0}
        own = {QUEUE: queue, **({PRIORITY: priority} if priority else {}), **(labels or {})}
        metadata = {"name": name, "labels": own, "annotations": annotations or {}}
        body = {"metadata": metadata, "spec": {**spec, "template": self.template(labels=labels, **template)}}
        return self.api("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)

    def workload(self, owner):
        """Return the Workload of an object; empty if there is none."""
        path = f"{kueue.API}/namespaces/{owner['metadata']['namespace']}/workloads"
        uid = owner["metadata"]["uid"]
        items = self.api("GET", path)["items"]
        owned = [item for item in items if uid in self._owners(item)]
        return owned[0] if owned else {}

    @staticmethod
    def _owners(item):
        """Return the UIDs of the owners; a Workload of MultiKueue has none until Kueue has seen its Job."""
        return [ref["uid"] for ref in item["metadata"].get("ownerReferences") or ()]

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

    def queue_state(self, path):
        """Return the status of a MasterQueue: reason of the condition Ready, and state by flavor and pool."""
        found = self.api("GET", path).get("status") or {"conditions": ()}
        reasons = [c["reason"] for c in found["conditions"] if c["type"] == "Ready"]
        return (*reasons, {item["name"] + item.get("pool", ""): item["state"] for item in found.get("flavors", ())})

    def both_offered(self, name):
        """Wait until both sites have quota: an earlier test may have stopped one."""

        def look():
            quotas = list(self.offered(name).values())
            return len(quotas) == len(SITES) and "0" not in quotas

        eventually(look, "both sites are offered")

    def reservations(self, name, namespace=pools.NAMESPACE):
        """Return what each unfinished Workload of a queue has reserved, by its UID: flavor, CPUs, time of admission."""
        found = {}
        for item in self.api("GET", f"{kueue.API}/namespaces/{namespace}/workloads")["items"]:
            status = item.get("status") or {}
            conditions = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
            if item["spec"].get("queueName") == name and status.get("admission") and "Finished" not in conditions:
                (assignment,) = status["admission"]["podSetAssignments"]
                usage = float(parse(assignment["resourceUsage"]["cpu"]))
                admitted = parse_rfc3339(conditions["QuotaReserved"]["lastTransitionTime"])
                found[item["metadata"]["uid"]] = (assignment["flavors"]["cpu"], usage, admitted)
        return found

    def reserved(self, name):
        """Return the CPUs that workloads have reserved of each flavor of a ClusterQueue."""
        status = self.api("GET", f"{kueue.API}/clusterqueues/{name}").get("status") or {}
        return {
            flavor["name"]: sum(float(r["total"]) for r in flavor["resources"] if r["name"] == "cpu")
            for flavor in status.get("flavorsReservation") or ()
        }

    def shown(self, *args):
        """Run a command of podbridge with the output JSON; return what it prints."""
        command = [str(self.cluster.state / "bin" / "podbridge"), *args, "-o", "json"]
        env = {**os.environ, **self.cluster.env}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)

    def let_go(self, name):
        """Let the scripts at the sites go on that wait for the file ``name``."""
        for site in self.cluster.sites.values():
            site.run("touch", f"/srv/home/{name}")

    def slurm_jobs(self, pods):
        """Return the ids of the Slurm jobs of pods."""
        return {int(pod["metadata"]["labels"][LABEL]) for pod in pods}


@pytest.fixture(scope="package")
def world(state_folder):
    """The cluster, with a ResourceFlavor for each pool."""
    partition = f"PartitionName={PARTITION} Nodes={PARTITION_NODE} MaxTime=INFINITE State=UP"
    options = {"nodes": 3, "kueue": True, "gangs": True, "pools": list(SITES), "podbridge": FAST}
    options["slurm_conf"] = [partition]
    options["kueue_version"] = places.kueue()
    with Cluster(state_folder / "kueue", slurm="26.05", **options) as cluster:
        made = KueueWorld.started(cluster)
        for site in SITES:
            toleration = {"key": "pool.vk.io", "value": site, "effect": "NoSchedule"}
            labels = {"kubernetes.io/hostname": site}
            cluster.api.ensure(*kueue.flavor(site, nodeLabels=labels, tolerations=[toleration]))
        cluster.open_to_pools(NAMESPACE)  # its Jobs may be admitted to a pool, too
        yield made
