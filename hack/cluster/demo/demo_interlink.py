"""interLink in five scenes, with interLink's own programs: ``./hack/demo.sh --interlink [--site-slurm VERSION]``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.interlink_pods import CHAIN, DIRECT, HUB, ROUTES, SITE, InterlinkWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE as REMOTE
from cluster.systems.interlink import NAMESPACE
from cluster.world import Object

SETTINGS = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: interlink}
data: {greeting: hello from a ConfigMap}
"""
SPEAKER = """\
apiVersion: v1
kind: Pod
metadata: {name: speaker, namespace: interlink}
spec:
  nodeName: chain
  restartPolicy: Never
  tolerations: [{key: virtual-node.interlink/no-schedule, operator: Exists}]
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "cat /etc/settings/greeting; echo; for i in 1 2 3 4; do echo step $i of 4; sleep 1; done"]
      volumeMounts: [{name: settings, mountPath: /etc/settings}]
  volumes: [{name: settings, configMap: {name: settings}}]
"""


class InterlinkStory(Story):
    """The scenes."""

    world: InterlinkWorld

    def chain(self) -> None:
        """Show a pod of interLink's virtual kubelet in a site's Slurm."""
        self.say("interLink's virtual kubelet and API server run unchanged. The API server's plugin is podbridge:")
        self.say("podbridge plugin --site site.toml, as an ordinary user of a Slurm cluster.")
        self.say("interLink's nodes are NotReady until the first ping, 30 s after the start; pods already run there.")
        self.do("kubectl get nodes -L virtual-node.interlink/type")
        self.do("kubectl apply -f -", SETTINGS + "---\n" + SPEAKER)
        speaker: Object = self.world.api("GET", self.world.path("speaker", NAMESPACE))
        job = eventually(lambda: self._jobs(speaker), "its job in the site's Slurm")
        self.show(f"squeue at {SITE}:\n" + "\n".join(job))
        self.world.running(speaker)
        said = self.do("kubectl logs -f speaker -n interlink")
        self._expect(said.startswith("hello from a ConfigMap") and "step 4 of 4" in said, f"the log: {said!r}")
        self.world.ended(speaker)
        self.do("kubectl get pod speaker -n interlink")

    def direct(self) -> None:
        """Show the same without interLink's API server."""
        self.say("The second virtual kubelet sends its requests to the plugin itself, without an API server.")
        failing = self.world.put_script(DIRECT, "echo no more disk >&2; exit 7", "failing")
        self.world.ended(failing)
        self.do("kubectl get pod failing -n interlink")
        self.do("kubectl logs failing -n interlink")
        state = self.do("kubectl get pod failing -n interlink -o jsonpath={.status.containerStatuses[0].state}")
        self._expect(json.loads(state)["terminated"]["exitCode"] == 7, "the exit code is not 7")

    def hub(self) -> None:
        """Show podbridge's hub with an API server and a plugin as pools."""
        self.say("podbridge's hub uses interLink's API server, and a plugin, as pools: each is a virtual node.")
        self.do("kubectl get nodes -L bridge.vk.io/pool")
        for route in HUB:
            self.world.put_script(route, "echo I run on $(uname -n)", f"job-{route}")
        for route in HUB:
            self.world.ended(self.world.api("GET", self.world.path(f"job-{route}", REMOTE)))
        self.do("kubectl get pods -n remote -o wide")
        for route in HUB:
            self._expect("I run on" in self.do(f"kubectl logs job-{route} -n remote"), "no log")

    def killed(self) -> None:
        """Kill the plugin while jobs run."""
        marks = "/srv/home/marks"
        self.world.cluster.sites[SITE].run("mkdir", "-p", marks)
        script = "echo ran >>{marks}/{name}; for i in 1 2 3 4 5 6 7 8; do echo tick $i; sleep 1; done"
        pods = {
            route: self.world.put_script(route, script.format(marks=marks, name=route), f"long-{route}")
            for route in ROUTES
        }
        eventually(lambda: all(self._jobs(pod, "R") for pod in pods.values()), "all jobs run", 60)
        self.say("A job runs for each route. The plugin is killed (SIGKILL). Slurm continues the jobs.")
        self.world.interlink.kill("plugin")
        time.sleep(2)
        self.show(self.world.cluster.site_slurm(SITE, "squeue", "-o", "%.6i %.42j %.9T %.8M"))
        self.say("The plugin is started again.")
        self.world.interlink.start("plugin")
        for route, pod in pods.items():
            found = self.world.ended(pod)
            ticks = self.world.logs(pod).splitlines()
            ok = found["status"]["phase"] == "Succeeded" and ticks == [f"tick {number}" for number in range(1, 9)]
            self._expect(ok, f"{route}: {found['status']['phase']}, {ticks}")
        self.do("kubectl get pods -A --field-selector status.phase=Succeeded")
        ran = self.world.cluster.sites[SITE].run("sh", "-c", f"cd {marks} && wc -l *").splitlines()
        self.show("\n".join(ran))
        self._expect(ran[-1].split() == [str(len(ROUTES)), "total"], f"a job ran twice or never: {ran}")
        self.say("Each job ran once, and each log is complete.")

    def deleted(self) -> None:
        """Delete running pods."""
        grace = {"terminationGracePeriodSeconds": 1}
        pods = [self.world.put_script(route, "sleep 600", f"doomed-{route}", **grace) for route in (CHAIN, HUB[1])]
        eventually(lambda: all(self._jobs(pod) for pod in pods), "their jobs")
        for pod in pods:
            self.do(f"kubectl delete pod {pod['metadata']['name']} -n {pod['metadata']['namespace']} --wait=false")
        for pod in pods:
            self.world.gone(pod)
        eventually(lambda: not any(self._jobs(pod) for pod in pods), "no job left")
        self.show(f"squeue at {SITE}:\n" + self.world.cluster.site_slurm(SITE, "squeue", "-o", "%.6i %.42j %.9T"))
        self.say("No job is left.")

    def play(self) -> None:
        """Play all scenes."""
        self.scene("interLink's virtual kubelet and API server run a pod in Slurm through podbridge", self.chain)
        self.scene("interLink's virtual kubelet uses podbridge's plugin without the API server", self.direct)
        self.scene("podbridge's hub uses interLink's API server and a plugin as pools", self.hub)
        self.scene("The plugin is killed and started again: no pod is lost, none runs twice", self.killed)
        self.scene("kubectl delete ends the jobs of both kinds of nodes", self.deleted)

    # --- inside -------------------------------------------------------------------------------------------------------
    def _jobs(self, pod: Object, state: str = "") -> list[str]:
        """Return the lines of squeue for a pod's job, which has ``state`` (short form, any if empty)."""
        listed = self.world.cluster.site_slurm(SITE, "squeue", "-h", "-o", "%i %j %t %M").splitlines()
        mine = [line for line in listed if pod["metadata"]["uid"] in line]
        return [line for line in mine if not state or line.split()[2] == state]

    @staticmethod
    def _expect(condition: bool, message: str) -> None:
        if not condition:
            raise AssertionError(message)


def tell(state: Path, site_slurm: str) -> tuple[Cluster, Callable[[], InterlinkStory]]:
    """Return the cluster, not started, and a function that starts all processes on it and returns the story."""
    cluster = Cluster(state, slurm=None, nodes=1, pools=[SITE], site_slurm=site_slurm, interlink=True)

    def begin() -> InterlinkStory:
        world = InterlinkWorld(cluster)
        world.start()
        return InterlinkStory(world)

    return cluster, begin
