"""JupyterHub in four scenes, with a real browser: ``./hack/demo.sh --notebook [--site-slurm VERSION]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cluster.core import Cluster
from cluster.demo.story import Story
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import DEFAULT_SITES
from cluster.systems import jupyter
from cluster.systems.browser import Browser
from cluster.systems.jupyter import NAMESPACE, JupyterHub
from cluster.systems.lab import LabUser

SITE = "slurm-site"
CODE = "import os; print(6 * 7, 'computed in Slurm job', os.environ.get('SLURM_JOB_ID'))"


class NotebookStory(Story):
    """The scenes."""

    world: PoolWorld

    def __init__(self, world: PoolWorld, hub: JupyterHub) -> None:
        super().__init__(world)
        self._hub = hub

    def start(self) -> None:
        """A user starts a server at a site."""
        self.say(f"In Chromium, alice logs in to JupyterHub and selects the profile {SITE}.")
        self._alice.start(SITE)
        self.do(f"kubectl get pods,services -n {NAMESPACE}")
        self.show(self.world.cluster.site_slurm(SITE, "squeue", "-o", "%.6i %.9P %.42j %.9T %.8M %R"))
        self.do(f"kubectl get endpointslices -n {NAMESPACE} -l endpointslice.kubernetes.io/managed-by=podbridge")
        self.say("Nothing connects to the site: the endpoint is a port of podbridge, which forwards through NATS.")

    def cell(self) -> None:
        """A cell runs in the job."""
        self._alice.open_notebook()
        if not self._run(CODE).startswith("42 "):
            raise AssertionError("the result is wrong")
        self.say("The server reaches the Hub by its Service in the cluster, through an address on the loopback there.")
        self._run("os.environ['JUPYTERHUB_API_URL']")

    def refused(self) -> None:
        """Another user has no access."""
        self.say("In the same browser, bob logs in, and opens the address of alice's server.")
        bob = LabUser(self._browser, self._hub, "bob")
        bob.browser.open(f"{self._hub.url}/user/alice/lab")
        text = bob.browser.text("body")
        self.show(next((line for line in text.splitlines() if line.startswith("403")), text))
        if "403 : " not in text:
            raise AssertionError("bob was not refused")

    def stopped(self) -> None:
        """The end of the server ends the job."""
        self.say("alice presses the button Stop My Server.")
        LabUser(self._browser, self._hub, "alice").stop()
        eventually(lambda: not self.world.pods(NAMESPACE, "component=singleuser-server"), "the end of the pod")
        eventually(lambda: not self.world.jobs_at(SITE), "the end of the job")
        self.do(f"kubectl get pods,services -n {NAMESPACE}")
        self.show(self.world.cluster.site_slurm(SITE, "squeue"))

    def _run(self, code: str) -> str:
        self.show(f"In:  {code}")
        output = self._alice.run(code)
        self.show(f"Out: {output}")
        return output

    def play(self) -> None:
        """Play all scenes."""
        with self._hub, Browser(self.world.cluster.state / "browser") as self._browser:
            self._browser.size(1280, 900)
            self._alice = LabUser(self._browser, self._hub, "alice")
            self.scene("A user starts a notebook server; its pod is a job at a site", self.start)
            self.scene("A cell runs in the job", self.cell)
            self.scene("Another user cannot open the server", self.refused)
            self.scene("Stop My Server ends the pod and the job", self.stopped)


def tell(state: Path, site_slurm: str) -> tuple[Cluster, Callable[[], NotebookStory]]:
    """Return the cluster, not started, and a function that starts podbridge and JupyterHub and returns the story."""
    jupyter.ensure()
    cluster = jupyter.cluster(state, DEFAULT_SITES, site_slurm=site_slurm)

    def begin() -> NotebookStory:
        return NotebookStory(jupyter.start_podbridge(cluster), JupyterHub(cluster))

    return cluster, begin
