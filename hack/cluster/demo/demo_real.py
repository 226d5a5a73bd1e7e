"""The demonstration on a real node, in two scenes: ``./hack/demo.sh --real-node``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.polling import eventually
from cluster.systems import realnode
from cluster.world import NAMESPACE, Object, World

EIGHT = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: eight
  namespace: slurm-bridge
spec:
  parallelism: 8
  completions: 8
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: busybox:1
          command: [sh, -c, "echo hello from $HOSTNAME"]
          resources: {requests: {cpu: "1", memory: 64Mi}}
"""
STUBBORN = "trap '' TERM; while :; do sleep 0.2; done"


class RealStory(Story):
    """The scenes."""

    def eight(self) -> None:
        """A Job of eight pods runs in containers."""
        self.say(
            "A Job creates 8 pods. Slurm allocates the node to as many at a time as it has CPUs for; "
            "containerd runs them."
        )
        self.do("kubectl get nodes -o wide")
        self.do("kubectl apply -f -", EIGHT)
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/eight"
        eventually(lambda: [p for p in self.world.pods() if p["spec"].get("nodeName")], "a pod bound")
        self.do("podbridge get pods -n slurm-bridge")
        eventually(lambda: self.world.api("GET", jobs)["status"].get("succeeded") == 8, "the Job complete", 120)
        eventually(lambda: not self.world.queue(), "no job left")
        self.do("kubectl logs -n slurm-bridge -l job-name=eight")
        self.do("squeue")
        self.do("kubectl delete job eight -n slurm-bridge")

    def waits(self) -> None:
        """A pod waits for the grace period of another one whose job was cancelled."""
        old = self._whole("old")
        self.world.running(old)
        self.say(
            "A program that ignores SIGTERM has the whole node. Its job is cancelled, and Slurm starts the next one."
        )
        self.do(f"scancel {self.world.labelled(old)}")
        new = self._whole("new")
        eventually(lambda: self.world.condition(new, "PodScheduled").get("reason") == "NodeBusy", "the reason")
        self.do("squeue")
        self.do("kubectl get pods -n slurm-bridge")
        self.say(
            "If it were bound now, the kubelet would reject it (OutOfcpu): it counts the old pod until that has ended."
        )
        self.do("podbridge explain pod new -n slurm-bridge")
        self.world.running(new, 60)
        self.do("kubectl get pods -n slurm-bridge")
        self.world.clear()

    def play(self) -> None:
        """Play all scenes."""
        self.scene("A Job of 8 pods runs in real containers, and nothing is left behind", self.eight)
        self.scene("A pod waits until the pod of a cancelled job has ended", self.waits)

    def _whole(self, name: str) -> Object:
        """Create a pod that takes the whole node."""
        cpus = str(realnode.size().cpus)
        return self.world.create(name, cpu=cpus, memory="64Mi", script=STUBBORN, terminationGracePeriodSeconds=8)


def tell(state: Path, slurm: str) -> tuple[Cluster, Callable[[], RealStory]]:
    """Return the cluster, not started, and a function that starts podbridge on it and returns the story."""
    cluster = Cluster(state, slurm=slurm, nodes=1, real_node=True)

    def begin() -> RealStory:
        cluster.start_podbridge()
        return RealStory(World(cluster))

    return cluster, begin
