"""One Kueue queue with three flavors, on real systems: ``./hack/demo.sh --kueue``."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import NAMESPACE

SITE = "local-site"
PARTITION, NODE = "gpu", "node-1"
"""A Slurm partition beside ``main``, and its node."""
MASTER_QUEUE = f"""\
apiVersion: vk.io/v1
kind: MasterQueue
metadata: {{name: batch}}
spec:
  flavors:
  - name: local
    localFlavor: {{nodeLabels: {{kubernetes.io/hostname: {kueue.LOCAL_NODE}}}}}
    nominalQuota: {{cpu: 2}}
  - name: gpu
    slurmFlavor: {{partition: {PARTITION}}}
    nominalQuota: {{cpu: 2}}
  - name: sites
    poolFlavor: {{poolRegExp: "-site$", evictAfter: 10}}
    nominalQuota: {{cpu: 2}}
  localQueues:
  - {{namespace: {NAMESPACE}}}
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, namespace: slurm-bridge, labels: {{kueue.x-k8s.io/queue-name: batch, story: "{story}"}}}}
spec:
  backoffLimit: 0
  template:
    metadata: {{labels: {{story: "{story}"}}, annotations: {{hack/run-seconds: "{seconds}"}}}}
    spec:
      restartPolicy: Never
      tolerations: {tolerations}
      containers:
      - name: main
        image: busybox
        command: [sh, -c, "sleep {seconds}"]
        resources: {{requests: {{cpu: "1", memory: 64Mi}}}}
"""
OVERRIDES = {"queues": {"releaseAfter": 2}, "pools": {"silentAfter": 5}}


def jobs(story: str, count: int, seconds: int, *, remote: bool = True) -> str:
    """Return the manifest of Jobs of one CPU; ``remote``: with the toleration for pools."""
    tolerations = json.dumps([kueue.TOLERATION] if remote else [])
    made = (
        JOB.format(name=f"{story}-{number}", story=story, seconds=seconds, tolerations=tolerations)
        for number in range(count)
    )
    return "---\n".join(made)


class KueueStory(Story):
    """The scenes."""

    world: PoolWorld

    def queue(self) -> None:
        """A MasterQueue has a flavor for each place."""
        self.say("A MasterQueue names local nodes, a Slurm partition and the pools of sites, in order of preference.")
        self.do("kubectl apply -f -", MASTER_QUEUE, show_input=True)
        eventually(lambda: self._offered().get(f"batch-sites-{SITE}") == "2", "all flavors are offered", 60)
        self.do("podbridge get queues -o wide")
        self.do("kubectl get resourceflavors.kueue.x-k8s.io")

    def spread(self) -> None:
        """Six Jobs run at three places."""
        self.say("Six Jobs with a queue name and the toleration for sites. Each place has a quota of two CPUs.")
        self.say("The first of them:")
        self.show(jobs("spread", 1, 8))
        self.do("kubectl apply -f -", jobs("spread", 6, 8))
        self._complete("spread", 6)
        self.do(f"kubectl get pods -n {NAMESPACE} -l story=spread -o wide")
        places = Counter(pod["spec"]["nodeName"] for pod in self.world.pods(NAMESPACE, "story=spread"))
        self.say("Pods by place: " + ", ".join(f"{place} {count}" for place, count in sorted(places.items())))
        if set(places) != {kueue.LOCAL_NODE, NODE, SITE}:
            raise AssertionError(f"the Jobs did not run at three places: {places}")
        self._delete("spread")

    def waits(self) -> None:
        """A Job without the toleration never leaves; it waits for its quota."""
        self.say("Five Jobs without the toleration: four have quota on local nodes and in Slurm, one waits.")
        self.do("kubectl apply -f -", jobs("stays", 5, 6, remote=False))
        eventually(lambda: len(self.world.pods(NAMESPACE, "story=stays")) == 4, "four are admitted", 30)
        self.do("podbridge explain queue batch")
        self._complete("stays", 5)
        places = {pod["spec"]["nodeName"] for pod in self.world.pods(NAMESPACE, "story=stays")}
        if SITE in places:
            raise AssertionError("a Job without the toleration ran at a site")
        self._delete("stays")

    def leaves(self) -> None:
        """A site goes; its workload is admitted elsewhere."""
        world = self.world
        self.say("Local nodes and Slurm are busy, so a Job is admitted to the site.")
        self.do("kubectl apply -f -", jobs("busy", 4, 20, remote=False))
        eventually(lambda: self._running("busy") == 4, "local places are busy", 60)
        self.do("kubectl apply -f -", jobs("moves", 1, 30))
        eventually(lambda: self._running("moves") == 1, "the Job runs at the site", 60)
        (first,) = world.pods(NAMESPACE, "story=moves")
        if first["spec"]["nodeName"] != SITE:
            raise AssertionError(f"the Job runs on {first['spec']['nodeName']}")
        self.say("The submitter of the site is killed. The quota of its flavor becomes 0 after five seconds.")
        world.cluster.kill(f"{SITE}-submitter", signal.SIGKILL)
        eventually(lambda: self._offered()[f"batch-sites-{SITE}"] == "0", "held", 60)
        self.do("podbridge explain queue batch")
        self.say("After ten seconds of silence (evictAfter), Kueue evicts the workload and queues it again.")
        uid = first["metadata"]["uid"]
        eventually(
            lambda: any(
                pod["metadata"]["uid"] != uid and pod["spec"].get("nodeName")
                for pod in world.pods(NAMESPACE, "story=moves")
            ),
            "the Job is admitted to another place",
            90,
        )
        self.do(f"kubectl get pods -n {NAMESPACE} -l story=moves -o wide")
        self.say("The first pod stays Terminating: its job may still run at the site.")

    def returns(self) -> None:
        """The site is back."""
        self.say("The submitter is started again. podbridge cancels the first job, and the quota is back.")
        self.world.cluster.start_submitter(SITE)
        eventually(lambda: self._offered()[f"batch-sites-{SITE}"] == "2", "offered again", 60)
        self._complete("moves", 1)
        self.do("podbridge get queues")
        self.do(f"kubectl get pods -n {NAMESPACE} -l story=moves -o wide")
        for story in ("busy", "moves"):
            self._delete(story)
        eventually(lambda: not self.world.jobs_at(SITE), "no job left at the site", 60)
        self.do("kubectl delete masterqueue batch")

    def play(self) -> None:
        """Play all scenes."""
        self.scene("One queue has three flavors", self.queue)
        self.scene("Six Jobs run at three places", self.spread)
        self.scene("A Job without the toleration stays, and waits for its quota", self.waits)
        self.scene("A site goes: its quota is 0, and its workload is admitted elsewhere", self.leaves)
        self.scene("The site comes back", self.returns)

    # --- inside -------------------------------------------------------------------------------------------------------
    def _offered(self) -> dict[str, str]:
        """Return the CPU quota of each flavor."""
        status, found = self.world.api.request("GET", f"{kueue.API}/clusterqueues/batch")
        groups = found["spec"].get("resourceGroups") or () if status == 200 else ()
        return {
            flavor["name"]: next(item["nominalQuota"] for item in flavor["resources"] if item["name"] == "cpu")
            for group in groups
            for flavor in group["flavors"]
        }

    def _running(self, story: str) -> int:
        pods = self.world.pods(NAMESPACE, f"story={story}")
        return sum(pod["status"].get("phase") == "Running" for pod in pods)

    def _complete(self, story: str, count: int) -> None:
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs?labelSelector=story={story}"
        eventually(
            lambda: sum(job["status"].get("succeeded") == 1 for job in self.world.api("GET", path)["items"]) == count,
            f"{count} Jobs complete",
            120,
        )

    def _delete(self, story: str) -> None:
        self.do(f"kubectl delete jobs -n {NAMESPACE} -l story={story}")
        eventually(lambda: not self.world.pods(NAMESPACE, f"story={story}"), "its pods are gone", 60)


def tell(state: Path, slurm: str) -> tuple[Cluster, Callable[[], KueueStory]]:
    """Return the cluster, not started, and a function that starts podbridge on it and returns the story."""
    partition = f"PartitionName={PARTITION} Nodes={NODE} MaxTime=INFINITE State=UP"
    cluster = Cluster(
        state, slurm=slurm, nodes=2, pools=[SITE], kueue=True, slurm_conf=[partition], podbridge=OVERRIDES
    )

    def begin() -> KueueStory:
        cluster.open_to_pools(NAMESPACE)
        return KueueStory(PoolWorld.started(cluster))

    return cluster, begin
