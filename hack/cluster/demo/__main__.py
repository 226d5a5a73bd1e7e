"""The demonstration in seven scenes, on real systems: ``./hack/demo.sh [--slurm VERSION]``; with ``--pools``,
``--interlink``, ``--real-node``, ``--nunet``, ``--kueue`` or ``--notebook`` the story of the module of that name.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster import places
from cluster.core import Cluster
from cluster.demo import demo_interlink, demo_kueue, demo_notebook, demo_nunet, demo_pools, demo_real
from cluster.demo.story import Story
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.world import NAMESPACE, World

EIGHT = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: eight
  namespace: slurm-bridge
  annotations:
    slurmjob.slinky.slurm.net/timelimit: "10"
spec:
  parallelism: 8
  completions: 8
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: busybox
          resources: {requests: {cpu: "4", memory: 1Gi}, limits: {nvidia.com/gpu: "1"}}
"""


class ColocatedStory(Story):
    """The scenes."""

    # --- the scenes ---------------------------------------------------------------------------------------------------
    def eight(self) -> None:
        """A Job of eight pods runs through Slurm."""
        self.say(
            "A Job creates 8 pods in the managed namespace. podbridge submits one placeholder job to Slurm for each."
        )
        self.do("kubectl apply -f -", EIGHT)
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/eight"
        eventually(lambda: len([p for p in self.world.pods() if p["spec"].get("nodeName")]) == 8, "pods bound", 60)
        self.do("podbridge get pods -n slurm-bridge")
        self.do("squeue")
        eventually(lambda: self.world.api("GET", jobs)["status"].get("succeeded") == 8, "the Job complete", 60)
        eventually(lambda: not self.world.queue(), "no job left")
        self.do("kubectl get job eight -n slurm-bridge")
        self.do("squeue")
        self.do("kubectl delete job eight -n slurm-bridge")
        self.say("Slurm's queue is empty, and no pod has a finalizer left.")

    def untouched(self) -> None:
        """Pods of other namespaces stay unchanged."""
        self.say("A pod in the namespace default keeps the default scheduler. podbridge submits no job for it.")
        self.do("kubectl run elsewhere --image=busybox")
        self.do("kubectl get pod elsewhere -o jsonpath={.spec.schedulerName}")
        print()
        self.do("kubectl delete pod elsewhere --now")

    def waits(self) -> None:
        """A pod that doesn't fit waits, with Slurm's reason."""
        self.say("Four pods take 120 of 128 CPUs on each node; a fifth asks for 64.")
        big = [self.world.create(f"big-{n}", cpu="120") for n in range(4)]
        for pod in big:
            self.world.running(pod)
        waiting = self.world.create("waiting", cpu="64")
        eventually(
            lambda: "is pending in partition" in self.world.condition(waiting, "PodScheduled").get("message", ""),
            "the reason",
        )
        eventually(
            lambda: "read yet" not in self.world.condition(waiting, "PodScheduled").get("message", ""),
            "Slurm's reason",
            40,
        )
        self.do("podbridge explain pod waiting -n slurm-bridge")
        self.say("A pod is deleted, so that the fifth fits:")
        self.do("kubectl delete pod big-0 -n slurm-bridge --grace-period=1")
        self.world.running(waiting)
        self.do("podbridge get pods -n slurm-bridge")

    def gang(self) -> None:
        """The pods of a Job with bridge.vk.io/gang share one Slurm job."""
        self.world.clear()
        blocker = self.world.running(self.world.create("blocker", cpu="120"))
        self.say("One node is busy. A Job with the annotation bridge.vk.io/gang needs all four nodes at once.")
        gang = self.world.create_gang("train", 4, cpu="64", run="60")
        eventually(lambda: len(self.world.members(gang)) == 4, "four pods")
        first = self.world.members(gang)[0]
        eventually(
            lambda: "is pending" in self.world.condition(first, "PodScheduled").get("message", ""), "the reason", 40
        )
        self.do("kubectl get pods -n slurm-bridge -l job-name=train -o wide")
        self.do("squeue")
        self.say("The node is free again: all four pods start together, each on its own node of the one Slurm job.")
        self.world.delete(blocker, grace=1)
        eventually(lambda: all(pod["spec"].get("nodeName") for pod in self.world.members(gang)), "all bound")
        self.do("podbridge get jobs -n slurm-bridge")
        self.do("kubectl get pods -n slurm-bridge -l job-name=train -o wide")
        self.do("kubectl delete job train -n slurm-bridge")
        self.world.clear()

    def cancelled(self) -> None:
        """Cancelling the job ends the pod."""
        pod = self.world.create("cancelled", stop="2")
        self.world.running(pod)
        job = self.world.labelled(pod)
        self.say("The Slurm job of a running pod is cancelled. The pod and an Event report the reason.")
        self.do(f"scancel {job}")
        self.world.seen(pod, "ended", lambda p: p["status"].get("reason") == "Cancelled")
        self.do("kubectl get pod cancelled -n slurm-bridge")
        eventually(lambda: self.world.events(pod, "Cancelled"), "the Event")
        self.do("kubectl get events -n slurm-bridge --field-selector involvedObject.name=cancelled,type=Warning")
        self.world.gone(pod)

    def deleted(self) -> None:
        """A deleted pod's job is released when its containers have ended."""
        waiting = self.world.create("too-big-now", cpu="100")
        job = self.world.labelled(waiting)
        self.say("A waiting pod is deleted: its job is cancelled at once.")
        self.do("kubectl delete pod too-big-now -n slurm-bridge")
        eventually(lambda: job not in self.world.queue(), "its job gone")
        slow = self.world.create("slow-to-end", cpu="2", stop="4")
        job = self.world.labelled(slow)
        self.world.running(slow)
        self.say(
            "A running pod that takes 4 s to end is deleted: its job keeps the node until the containers have ended."
        )
        self.do("kubectl delete pod slow-to-end -n slurm-bridge --wait=false")
        time.sleep(1.5)
        self.do(f"squeue -j {job}")
        self.world.gone(slow)
        eventually(lambda: job not in self.world.queue(), "its job gone")
        self.do(f"squeue -j {job}", check=False)  # Slurm may have forgotten it
        self.world.clear()

    def drained(self) -> None:
        """Cordon and drain in both directions."""
        self.say("A node that is cordoned in Kubernetes is drained in Slurm, and resumed when it is uncordoned.")
        self.do("kubectl cordon node-1")
        eventually(lambda: "DRAIN" in self.world.node("node-1")[0], "drained")
        self.do("sinfo -R")
        self.do("kubectl uncordon node-1")
        eventually(lambda: "DRAIN" not in self.world.node("node-1")[0], "back")
        self.say(
            "A node that the administrator of Slurm drained is cordoned in Kubernetes. kubectl "
            "uncordon does not resume it in Slurm."
        )
        self.do("scontrol update nodename=node-2 state=drain reason=disk")
        eventually(lambda: self.world.kube_node("node-2")["spec"].get("unschedulable"), "cordoned")
        self.do("podbridge get nodes")
        self.do("kubectl uncordon node-2")
        time.sleep(3)
        self.do("sinfo -R")
        self.world.slurm("scontrol", "update", "nodename=node-2", "state=resume")

    def play(self) -> None:
        """Play all scenes."""
        self.scene("A Job of 8 pods runs, and nothing is left behind", self.eight)
        self.scene("A pod in another namespace is not changed", self.untouched)
        self.scene("A pod that does not fit waits with Slurm's reason, and runs when resources are free", self.waits)
        self.scene("The pods of a gang share one Slurm job, and start together", self.gang)
        self.scene("scancel terminates the pod, with the reason Cancelled", self.cancelled)
        self.scene("kubectl delete releases the job after the containers have ended", self.deleted)
        if self.world.cluster.options.slurm == "22.05":
            self.say("Slurm 22.05's REST API can't drain nodes: the last scene is skipped.")
        else:
            self.scene("Cordon and drain in both directions", self.drained)


def tell(state: Path, slurm: str) -> tuple[Cluster, Callable[[], ColocatedStory]]:
    """Return the cluster, not started, and a function that starts podbridge on it and returns the story."""
    cluster = Cluster(state, slurm=slurm, nodes=4)

    def begin() -> ColocatedStory:
        cluster.start_podbridge()
        return ColocatedStory(World(cluster))

    return cluster, begin


@dataclass(frozen=True)
class Kind:
    """A story: what it shows, its real systems and scenes; ``up``: options of ``up.sh`` for the reader's trials."""

    about: str
    systems: str
    tell: Callable[[Path, argparse.Namespace], tuple[Cluster, Callable[[], Story]]]
    up: str | None = None


_PLANE = "kube-apiserver, kube-controller-manager"
_SITES = "nats-server, a site with Slurm {site_slurm}, a site without"
KINDS = {
    "": Kind(
        "run pods on Slurm", f"{_PLANE}, kwok, Slurm {{slurm}}", lambda state, options: tell(state, options.slurm), ""
    ),
    "pools": Kind(
        "show pools: remote sites over NATS",
        f"{_PLANE}, kwok, Slurm {{slurm}}, {_SITES}",
        lambda state, options: demo_pools.tell(state, options.slurm, options.site_slurm),
        " --pools",
    ),
    "interlink": Kind(
        "show interLink: its own programs, podbridge's plugin and hub",
        f"{_PLANE}, interLink's virtual kubelet and API server, a site with Slurm {{site_slurm}}",
        lambda state, options: demo_interlink.tell(state, options.site_slurm),
    ),
    "kueue": Kind(
        "show Kueue: one queue with local nodes, Slurm and a site",
        f"{_PLANE}, kwok, Slurm {{slurm}}, kube-scheduler, Kueue, nats-server, a site",
        lambda state, options: demo_kueue.tell(state, options.slurm),
        " --kueue --pools local-site",
    ),
    "nunet": Kind(
        "show a NuNet DMS as a pool: a fake DMS over HTTP",
        "kube-apiserver and kube-controller-manager, with a fake NuNet DMS",
        lambda state, options: demo_nunet.tell(state),
    ),
    "notebook": Kind(
        "show JupyterHub: its servers are jobs at a site",
        f"{_PLANE}, {_SITES}, JupyterHub, Chromium",
        lambda state, options: demo_notebook.tell(state, options.site_slurm),
    ),
    "real-node": Kind(
        "run pods with a kubelet and containerd instead of kwok",
        f"{_PLANE}, kubelet, containerd, Slurm {{slurm}}",
        lambda state, options: demo_real.tell(state, options.slurm),
        " --real-node --nodes 1",
    ),
}
"""Option -> the story."""


def main() -> int:
    """Start a cluster, play the scenes, stop it."""
    parser = argparse.ArgumentParser(prog="hack/demo.sh", description=__doc__)
    versions = list(places.SUITES)
    parser.add_argument("--slurm", default=places.DEFAULT_SLURM, choices=versions)
    group = parser.add_mutually_exclusive_group()
    for name in filter(None, KINDS):
        group.add_argument(
            f"--{name}", dest="kind", action="store_const", const=name, default="", help=KINDS[name].about
        )
    parser.add_argument(
        "--site-slurm",
        default="24.11",
        choices=versions,
        help="Slurm at slurm-site, with --pools, --interlink or --notebook",
    )
    options = parser.parse_args()
    kind = KINDS[options.kind]
    state = Path(tempfile.mkdtemp(prefix="podbridge-demo-"))
    state.chmod(0o755)
    began = time.monotonic()
    systems = kind.systems.format(slurm=options.slurm, site_slurm=options.site_slurm)
    print(f"Starting etcd, {systems} and podbridge ...", flush=True)
    try:
        cluster, begin = kind.tell(state, options)
        with cluster:
            story = begin()
            print(f"up after {time.monotonic() - began:.0f} s", flush=True)
            try:
                story.play()
            except AssertionError as error:
                print(f"\nFAILED: {error}\nlast lines of podbridge's logs:", file=sys.stderr)
                for name in sorted(set(cluster.processes.names()) - set(cluster.daemons)):
                    print(cluster.processes.tail(name), file=sys.stderr)
                return 1
            print(f"\nShown on real {systems}:")
            for number, title in enumerate(story.shown, 1):
                print(f"  {number}. {title}")
            trials = "" if kind.up is None else f" To start a cluster for your own trials: ./hack/up.sh{kind.up}"
            print(f"The demo stops all that it started.{trials}")
            return 0
    except ClusterError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
