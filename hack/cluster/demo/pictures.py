"""Pictures of the web page for the documentation, from a real browser and real systems: ``./hack/pictures.sh``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cluster.core import Cluster
from cluster.places import CHECKOUT
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import dashboard
from cluster.systems.browser import Browser
from cluster.world import NAMESPACE, World

FOLDER = CHECKOUT / "docs" / "admins" / "pictures"
SITES = ["slurm-site", "local-site"]
WIDTH, HEIGHT = 1200, 720
"""CSS pixels of a picture."""
OTHERS = 3
"""CPUs of a job that is not podbridge's."""


def main() -> None:
    """Start a cluster with two pools and some pods, and write the pictures."""
    with tempfile.TemporaryDirectory(prefix="podbridge-") as name, _cluster(Path(name)) as cluster:
        cluster.start_podbridge()
        remote, local = PoolWorld.started(cluster), World(cluster)
        waiting = _create(remote, local)
        FOLDER.mkdir(exist_ok=True)
        with dashboard.served(local) as page, Browser(cluster.state / "browser") as browser:
            browser.size(WIDTH, HEIGHT)
            browser.open(page.url)
            browser.open(f"{page.base}map")
            browser.wait(lambda opened: f"{OTHERS} for other jobs" in opened.text(), "the job of others on the map", 60)
            browser.wait(lambda opened: "1 closed" in opened.text(), "the drained node on the map", 60)
            for file, path in (("overview.png", ""), ("map.png", "map"), ("pod.png", f"pods/{NAMESPACE}/{waiting}")):
                browser.open(f"{page.base}{path}")
                browser.screenshot(FOLDER / file)
                print(FOLDER.relative_to(CHECKOUT) / file)


def _cluster(folder: Path) -> Cluster:
    return Cluster(folder / "pictures", slurm="26.05", nodes=4, cpus=16, pools=SITES)


def _create(remote: PoolWorld, local: World) -> str:
    """Create pods in several states; return the name of one that waits for Slurm."""
    local.slurm("sbatch", "--chdir=/", "--output=/dev/null", "-n1", f"-c{OTHERS}", "--mem=100", "--wrap=sleep 600")
    gang = local.create_gang("training", 4, run="600", cpu="12")
    for number in range(3):
        local.running(local.create(f"render-{number}"))
    eventually(lambda: all(pod["status"]["phase"] == "Running" for pod in local.members(gang)), "the gang runs", 60)
    waiting = local.create("simulation", cpu="16")
    eventually(lambda: "SlurmPending" in str(local.get(waiting)), "the pod waits", 60)
    container = {"name": "main", "image": "none", "command": ["sh", "-c", "echo started; sleep 600"]}
    for name, pool in (("analysis", SITES[0]), ("conversion", SITES[1])):
        pod = remote.create_pod({"containers": [container], "restartPolicy": "Never"}, pool, name)
        remote.seen(pod, "running", lambda found: found["status"]["phase"] == "Running", 60)
    local.slurm("scontrol", "update", "nodename=node-3", "state=drain", "reason=new memory")
    return "simulation"


if __name__ == "__main__":
    main()
