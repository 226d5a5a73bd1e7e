"""NuNet in five scenes, with a fake DMS over HTTP: ``./hack/demo.sh --nunet``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.nunet_pods import NODES, PLAIN, RTX, NunetWorld
from cluster.polling import eventually
from cluster.systems.dms import PUBLISHED_RESOURCES
from cluster.world import Object

TRAINING = """\
apiVersion: v1
kind: Pod
metadata:
  name: training
  namespace: remote
  annotations:
    bridge.vk.io/pools: nunet-rtx
    nunet.bridge.vk.io/max-price-per-hour: "500"
    nunet.bridge.vk.io/request: '{"requiredCapability": {"libraries": ["pytorch@1.0.0"]}}'
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 6300
  containers:
    - name: main
      image: busybox
      args: [train, --epochs=3]
      env: [{name: DMS_SECONDS, value: "4"}]
      resources: {limits: {cpu: "2", memory: 4Gi, nunet.io/gpu.nvidia.rtx.3080.10gb: "1"}}
"""


class NunetStory(Story):
    """The scenes."""

    world: NunetWorld

    def nodes(self) -> None:
        """Show the peers as virtual nodes."""
        self.say("The DMS lists three peers, as in NuNet's published example: one is not available, one has six GPUs.")
        self.say("Two groups of peers are two virtual nodes. Only available peers count.")
        self.do("kubectl get nodes -L gpu-type,type,nunet.io/largest-peer-cpu")
        for node in NODES:
            self.do(f"kubectl get node {node} -o jsonpath={{.status.allocatable}}")
            print()
        example = "nunet.gpu.nvidia.rtx.3080.10gb"
        self.say(
            f"The published answer has {example}={PUBLISHED_RESOURCES[example]}; its list has 4, and so has the node."
        )

    def training(self) -> None:
        """Show a pod with a GPU."""
        self.say("A pod requests a GPU by its type. Annotations become fields of the DMS's request.")
        self.do("kubectl apply -f -", TRAINING)
        pod = self._pod("training")
        self.world.running(pod)
        self.do("kubectl get events -n remote --field-selector involvedObject.name=training,reason=BridgeStarted")
        body = self.world.dms.jobs_of(pod["metadata"]["uid"])[0].body
        self.show(f"the DMS got: {body}")
        self._expect(body["requiredCapability"]["price"]["max_per_hour"] == 500, "the price did not arrive")
        said = self.do("kubectl logs -f training -n remote")
        self._expect("step 7" in said, f"the log ended early: {said!r}")
        self._expect(self.world.ended(pod)["status"]["phase"] == "Succeeded", "the pod failed")
        self.do("kubectl get pod training -n remote")

    def refused(self) -> None:
        """Show what the DMS cannot run."""
        self.say("A pod with a volume, a service, and a pod for a peer that is not in the pool.")
        volume = [{"name": "data", "emptyDir": {}}]
        pods = [
            self.world.put(RTX, "with-volume", volumes=volume),
            self.world.put(RTX, "service", restartPolicy="Always"),
            self.world.put(RTX, "far-away", annotations={"nunet.bridge.vk.io/peers": "QmPeer1"}),
        ]
        for pod in pods:
            self._expect(self.world.ended(pod)["status"]["phase"] == "Failed", "it was not refused")
            self.do(f"kubectl get pod {pod['metadata']['name']} -n remote -o jsonpath={{.status.message}}")
            print()
            self._expect(not self.world.jobs(pod), "the DMS got a job of it")

    def never_twice(self) -> None:
        """Show that a lost answer and a killed hub start no second job."""
        self.say("The DMS accepts a job, but its answer is lost. Then podbridge is killed (SIGKILL) and started again.")
        self.world.dms.drop = 1
        pod = self.world.put(RTX, "once", 12)
        eventually(lambda: self.world.jobs(pod), "the job at the DMS")
        self.world.kill_hub()
        found = self.world.ended(pod)
        self.do("kubectl get pod once -n remote")
        self._expect(found["status"]["phase"] == "Succeeded", "the pod failed")
        self._expect(len(self.world.jobs(pod)) == 1, f"jobs: {self.world.jobs(pod)}")
        self.say("The DMS has one job of the pod: podbridge found it in the services of its peer.")

    def deleted(self) -> None:
        """Show that a deleted pod's job is cancelled."""
        pod = self.world.put(PLAIN, "long", 600)
        self.world.running(pod)
        self.do("kubectl delete pod long -n remote")
        self.world.gone(pod)
        self.show(f"the DMS has the job of the pod: {self.world.jobs(pod)}")
        self._expect(self.world.jobs(pod) == ["cancelled"], "the job was not cancelled")

    def play(self) -> None:
        """Play all scenes."""
        self.scene("The peers of a DMS are virtual nodes, by type of GPU", self.nodes)
        self.scene("A pod with a GPU runs on a peer; its log is followed", self.training)
        self.scene("What the DMS cannot run is refused by the name of the field", self.refused)
        self.scene("A lost answer and a killed hub start no second job", self.never_twice)
        self.scene("kubectl delete cancels the job", self.deleted)

    def _pod(self, name: str) -> Object:
        found: Object = self.world.api("GET", self.world.path(name, "remote"))
        return found

    @staticmethod
    def _expect(condition: bool, message: str) -> None:
        if not condition:
            raise AssertionError(message)


def tell(state: Path) -> tuple[Cluster, Callable[[], NunetStory]]:
    """Return the cluster, not started, and a function that starts the DMS and podbridge and returns the story."""
    cluster = Cluster(state, slurm=None, nodes=0)
    return cluster, lambda: NunetStory(NunetWorld(cluster).__enter__())
