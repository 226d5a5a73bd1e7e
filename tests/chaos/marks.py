"""Pods that leave a mark at their site each time they run: whoever ran twice, or never, is found out."""

from cluster.pods import FINISHED, PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE

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


def check_each_ran_once(world: PoolWorld, count, capsys, what):
    """Wait until ``count`` pods are over: each succeeded, ran once and left nothing. ``what`` begins the report."""

    def over():
        phases = [pod["status"].get("phase") for pod in world.pods(NAMESPACE)]
        return len(phases) == count and all(phase in FINISHED for phase in phases)

    eventually(over, "all pods over", 240, 1.0)
    found = {pod["metadata"]["name"]: pod["status"] for pod in world.pods(NAMESPACE)}
    ran = runs(world)
    lost = [name for name, status in found.items() if status["phase"] != "Succeeded"]
    twice = [name for name, times in ran.items() if times > 1]
    never = [name for name in found if name not in ran]
    world.clear()
    left = [uid for site in world.cluster.sites for uid in world.jobs_at(site)]
    with capsys.disabled():
        print(f"\n{what}, {count} pods: ", end="")
        print(f"{len(lost)} lost, {len(twice)} run twice, {len(never)} never run, {len(left)} left behind")
    assert not lost, {name: found[name] for name in lost[:3]}
    assert not twice
    assert not never
    assert not left
