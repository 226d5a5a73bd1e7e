"""Pods that leave a mark at their site each time they run: whoever ran twice, or never, is found out."""

from cluster.pods import PoolWorld

SCRIPT = "echo ran >>$HOME/marks/$NAME; echo $NAME; sleep {seconds}; exit {code}"


def prepare(world: PoolWorld) -> None:
    """Make the folder for marks at each site."""
    for site in world.cluster.sites.values():
        site.run("sh", "-c", "mkdir -p $HOME/marks")


def spec(name, seconds, code=0, **more):
    """Describe a pod that says its name, runs for so long and ends with a code."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", SCRIPT.format(seconds=seconds, code=code)],
        "env": [{"name": "NAME", "value": name}],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    return {"containers": [container], "restartPolicy": "Never", **more}


def runs(world: PoolWorld):
    """How often each pod's script ran, by name."""
    counts = {}
    for site in world.cluster.sites.values():
        text = site.run("sh", "-c", "cd $HOME/marks 2>/dev/null && wc -l * || true")
        for line in text.splitlines():
            count, _, name = line.strip().partition(" ")
            if name != "total":
                counts[name] = counts.get(name, 0) + int(count)
    return counts
