"""Pools in seven scenes, on real systems: ``./hack/demo.sh --pools [--site-slurm VERSION]``."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import DEFAULT_SITES, NAMESPACE
from cluster.world import Object

SPREAD = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: spread
  namespace: remote
spec:
  parallelism: 10
  completions: 10
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: busybox
          command: [sh, -c, "echo I run on $(uname -n); sleep 3"]
          resources: {requests: {cpu: "1", memory: 64Mi}}
"""
SPEAKER = """\
apiVersion: v1
kind: Pod
metadata: {name: speaker, namespace: remote, annotations: {bridge.vk.io/pools: slurm-site}}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "for i in 1 2 3 4 5; do echo step $i of 5; sleep 1; done"]
"""
TRAIN = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: remote, annotations: {bridge.vk.io/gang: "true"}}
spec:
  parallelism: 3
  completions: 3
  completionMode: Indexed
  template:
    metadata: {annotations: {bridge.vk.io/pools: slurm-site, bridge.vk.io/members-per-node: "2"}}
    spec:
      subdomain: train
      restartPolicy: Never
      containers:
        - name: main
          image: busybox
          command: [sh, -c, "echo $PODBRIDGE_GROUP_RANK of $PODBRIDGE_GROUP_HOSTS; grep train- /etc/hosts; sleep 5"]
          resources: {requests: {cpu: "1", memory: 64Mi}}
"""
LOCAL = "local-site"
SILENT_AFTER = 5.0
ALLOW_RACE = {"limits": {"allow_race": True}}
RACE = {"enabled": True, "places": 2, "wait": 20}
OVERRIDES = {"pools": {"policy": "least-loaded", "silentAfter": SILENT_AFTER, "race": RACE}}


class PoolStory(Story):
    """The scenes."""

    world: PoolWorld

    def nodes(self) -> None:
        """Each site is a node."""
        self.say(
            "Two sites connect to nats-server over WebSocket with TLS. Each has a virtual node with "
            "the name of its pool."
        )
        for site in self.world.cluster.sites.values():
            self.say(site.describe())
        for pool in self.world.cluster.sites:
            self.world.ready(pool)
        self.do("kubectl get nodes -L bridge.vk.io/pool")
        self.do("kubectl get namespace remote -o jsonpath={.metadata.annotations}")
        print()

    def spread(self) -> None:
        """A Job spread over both sites."""
        self.say(
            "A Job creates 10 pods in the namespace remote, which may use any pool. podbridge chooses "
            "the least loaded one."
        )
        self.do("kubectl apply -f -", SPREAD)
        eventually(lambda: len(self._pods("spread", lambda p: p["spec"].get("nodeName"))) == 10, "every pod bound", 60)
        self.do("kubectl get pods -n remote -o wide")
        self.say("The jobs of these pods in the Slurm of the site:")
        queue = eventually(lambda: self._queue() if "pb-" in self._queue() else "", "jobs at slurm-site", 30)
        self.show(f"squeue at slurm-site:\n{queue}")
        job = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/spread"
        eventually(lambda: self.world.api("GET", job)["status"].get("succeeded") == 10, "the Job complete", 90)
        self.do("kubectl get job spread -n remote")
        counted = Counter(pod["spec"]["nodeName"] for pod in self._pods("spread", lambda _: True))
        self.say("Pods by pool: " + ", ".join(f"{pool} {count}" for pool, count in sorted(counted.items())))
        if set(counted) != set(self.world.cluster.sites):
            raise AssertionError(f"the Job was not spread over both sites: {counted}")
        self.do("kubectl logs job/spread -n remote")
        self.do("kubectl delete job spread -n remote")

    def logs(self) -> None:
        """Logs are followed."""
        self.say("kubectl logs -f of a pod that runs as a Slurm job at a site without inbound connections.")
        self.do("kubectl apply -f -", SPEAKER)
        self.world.seen(self._pod("speaker"), "running", lambda p: p["status"].get("phase") == "Running", 60)
        said = self.do("kubectl logs -f speaker -n remote")
        if "step 5 of 5" not in said:
            raise AssertionError(f"the log ended early: {said!r}")
        self.do("kubectl logs speaker -n remote --tail=2 --timestamps")

    def codes(self) -> None:
        """Exit codes and reasons."""
        self.say("One pod ends with exit code 7, the other exceeds its deadline.")
        failing = self.world.run("echo no more disk >&2; exit 7", "slurm-site", "failing")
        late = self.world.run("sleep 600", LOCAL, "late", activeDeadlineSeconds=2, terminationGracePeriodSeconds=1)
        for pod in (failing, late):
            self.world.ended(pod)
        self.do("kubectl get pods failing late -n remote -o wide")
        state = "{.status.containerStatuses[0].state.terminated}"
        self.do(f"kubectl get pod failing -n remote -o jsonpath={state}")
        print()
        self.do("kubectl logs failing -n remote")
        self.do("kubectl get pod late -n remote -o jsonpath={.status.reason}")
        print()

    def group(self) -> None:
        """The pods of a Job start together, as one Slurm job at the site."""
        self.say(
            "The Job train has the annotation bridge.vk.io/gang: its three pods are one job at slurm-site, with two on "
            "a machine. All of them start or none. They find each other by the names that Kubernetes gives them."
        )
        self.do("kubectl apply -f -", TRAIN)
        eventually(lambda: len(self._pods("train", lambda _: True)) == 3, "3 pods", 30)
        members = self._pods("train", lambda _: True)
        for pod in members:
            self.world.running(pod, 60)
        queue = self._queue()
        self.show(f"squeue at slurm-site:\n{queue}")
        said = [self.world.logs(self.world.ended(pod)) for pod in members]
        columns = "NAME:.metadata.name,STATUS:.status.phase,JOB:.metadata.annotations.bridge\\.vk\\.io/job"
        self.do(f"kubectl get pods -n remote -l job-name=train -o 'custom-columns={columns}'")
        self.do("kubectl logs -n remote -l job-name=train --prefix")
        jobs = {self.world.remote_job(self.world.get(pod) or pod) for pod in members}
        if len(jobs) != 1 or any(text.count("train-") < 3 for text in said):
            raise AssertionError(f"not one job, or the members do not know each other: {jobs}, {said}")
        self.do("kubectl delete job train -n remote")

    def race(self) -> None:
        """A pod waits in the queues of both sites; the first that starts runs it."""
        world, site = self.world, self.world.cluster.sites["slurm-site"]
        self.say("Another user fills slurm-site. Its announcement does not show this, because the queue is the site's.")
        nodes = site.run("sinfo", "-h", "-o", "%D").strip()
        options = ("--exclusive", f"--nodes={nodes}", "--output=/dev/null", "--parsable", "--wrap=sleep 3600")
        job = site.run("sbatch", *options).strip()
        eventually(lambda: " R " in site.run("squeue", "-h", "-j", job), "slurm-site is full", 30)
        self.say("A pod with bridge.vk.io/placement: race gets a job at both sites, which starts nothing by itself.")
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo I was the first"]}
        spec = {"containers": [container], "restartPolicy": "Never"}
        began = time.monotonic()
        pod = world.create_pod(spec, f"slurm-site,{LOCAL}", "racer", {"bridge.vk.io/placement": "race"})
        found = world.ended(pod)
        self.say(f"It has run after {time.monotonic() - began:.1f} s, at {found['spec']['nodeName']}.")
        self.do("kubectl get pod racer -n remote -o wide")
        self.show(world.explain(pod))
        if found["spec"]["nodeName"] != LOCAL or found["status"]["phase"] != "Succeeded":
            raise AssertionError(f"the pod did not run at {LOCAL}: {found['status']}")
        site.run("scancel", job)
        world.delete(pod)

    def killed(self) -> None:
        """A site is killed and comes back."""
        world, cluster = self.world, self.world.cluster
        long = world.run("for i in $(seq 12); do echo tick $i; sleep 1; done", LOCAL, "long")
        doomed = world.run("sleep 600", LOCAL, "doomed", terminationGracePeriodSeconds=1)
        for pod in (long, doomed):
            world.seen(pod, "running", lambda p: p["status"].get("phase") == "Running", 60)
        self.say(
            "The submitter of local-site is killed (SIGKILL). Its jobs go on; the node says when it was last heard."
        )
        cluster.kill(f"{LOCAL}-submitter", signal.SIGKILL)
        eventually(lambda: world.readiness(LOCAL).get("status") not in ("True", None), "not ready", 60)
        self.do("kubectl get nodes -L bridge.vk.io/pool")
        self.say(world.readiness(LOCAL).get("message", ""))
        self.say("Meanwhile a pod is deleted. It remains until the site confirms that its job is over.")
        self.do("kubectl delete pod doomed -n remote --wait=false")
        time.sleep(2)
        self.do("kubectl get pods long doomed -n remote")
        if world.get(doomed) is None:
            raise AssertionError("the pod was forgotten while its site was away")
        self.say("The submitter is started again.")
        cluster.start_submitter(LOCAL, overrides=ALLOW_RACE)
        world.ready(LOCAL, 60)
        world.gone(doomed, 60)
        found = world.ended(long)
        self.do("kubectl get pods -n remote")
        said = self.do("kubectl logs long -n remote --tail=2")
        ticks = world.logs(long).splitlines()
        if found["status"]["phase"] != "Succeeded" or ticks != [f"tick {n}" for n in range(1, 13)]:
            raise AssertionError(f"the pod was disturbed: {found['status']['phase']}, {said!r}")
        self.say("No pod was lost, and none ran twice.")
        world.clear()

    def play(self) -> None:
        """Play all scenes."""
        self.scene("Two sites, each with a virtual node", self.nodes)
        self.scene("A Job is spread over both sites", self.spread)
        self.scene("kubectl logs follows a pod at a site", self.logs)
        self.scene("Exit codes and their reasons", self.codes)
        self.scene("The pods of a Job start together, as one job at a site", self.group)
        self.scene("A pod waits at two sites; the first that starts runs it", self.race)
        self.scene("A submitter is killed and started again; no pod is lost", self.killed)

    # --- inside -------------------------------------------------------------------------------------------------------
    def _pods(self, job: str, check: Callable[[Object], object]) -> list[Object]:
        return [pod for pod in self.world.pods(NAMESPACE, f"job-name={job}") if check(pod)]

    def _queue(self) -> str:
        return self.world.cluster.site_slurm("slurm-site", "squeue", "-o", "%.6i %.9P %.42j %.9T %.8M %R")

    def _pod(self, name: str) -> Object:
        found: Object = self.world.api("GET", self.world.path(name, NAMESPACE))
        return found


def tell(state: Path, slurm: str, site_slurm: str) -> tuple[Cluster, Callable[[], PoolStory]]:
    """Return the cluster, not started, and a function that starts podbridge on it and returns the story."""
    cluster = Cluster(state, slurm=slurm, nodes=2, pools=list(DEFAULT_SITES), site_slurm=site_slurm)

    def begin() -> PoolStory:
        for site in DEFAULT_SITES:
            cluster.start_submitter(site, overrides=ALLOW_RACE)
        cluster.start_podbridge(config_overrides=OVERRIDES)
        world = PoolWorld(cluster)
        body = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        eventually(lambda: world.api("POST", path, body)["spec"]["schedulerName"] != "default-scheduler", "admission")
        return PoolStory(world)

    return cluster, begin
