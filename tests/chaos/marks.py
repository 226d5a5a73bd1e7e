"""Pods that write the time into a file at their site each time they run: it shows which pods ran twice or never."""

from cluster.pods import FINISHED, PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE

SCRIPT = "date +%s >>$HOME/marks/$NAME; echo $NAME; sleep {seconds}; exit {code}"


def prepare(world: PoolWorld) -> None:
    """Create the directory of the lines at each site."""
    for site in world.cluster.sites.values():
        site.run("sh", "-c", "mkdir -p $HOME/marks")


def batches(total, kills):
    """Yield the numbers of the pods that are created before each kill, the last ones before the last.

    Half of the pods, at most 100, are created before the first kill.
    """
    created = 0
    for kill in range(1, kills + 1):
        wanted = max(min(total // 2, 100), total * kill // kills)
        yield range(created, wanted)
        created = wanted


def spec(name, seconds, code=0, **more):
    """Return the spec of a pod that prints its name, runs for ``seconds`` and ends with the exit code ``code``."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", SCRIPT.format(seconds=seconds, code=code)],
        "env": [{"name": "NAME", "value": name}],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    return {"containers": [container], "restartPolicy": "Never", **more}


def runs(world: PoolWorld):
    """Return how often each pod's script ran, by name of the pod."""
    counts = {}
    for site in world.cluster.sites.values():
        text = site.run("sh", "-c", "cd $HOME/marks 2>/dev/null && wc -l * || true")
        for line in text.splitlines():
            count, _, name = line.strip().partition(" ")
            if name != "total":
                counts[name] = counts.get(name, 0) + int(count)
    return counts


def starts(world: PoolWorld):
    """Return the time at which each pod's script first ran, in seconds, by name of the pod."""
    times = {}
    for site in world.cluster.sites.values():
        text = site.run("sh", "-c", "cd $HOME/marks && grep -H -m1 . * || true")
        times |= {name: float(time) for name, _, time in (line.partition(":") for line in text.splitlines())}
    return times


def wait_until_over(world: PoolWorld, count):
    """Wait until ``count`` pods are over."""

    def over():
        phases = [pod["status"].get("phase") for pod in world.pods(NAMESPACE)]
        return len(phases) == count and all(phase in FINISHED for phase in phases)

    eventually(over, "all pods over", 240, 1.0)


def check_each_ran_once(world: PoolWorld, count, report, what, is_excused=lambda status: False):
    """Wait until ``count`` pods are over; assert that each succeeded, ran once and left nothing behind.

    ``is_excused``: whether a pod with this status was allowed to fail.
    """
    wait_until_over(world, count)
    found = {pod["metadata"]["name"]: pod["status"] for pod in world.pods(NAMESPACE)}
    ran = runs(world)
    excused = {name for name, status in found.items() if is_excused(status)}
    lost = [name for name, status in found.items() if status["phase"] != "Succeeded" and name not in excused]
    twice = [name for name, times in ran.items() if times > 1]
    never = [name for name in found if name not in ran and name not in excused]
    world.clear()
    left = [uid for site in world.cluster.sites for uid in world.jobs_at(site)]
    found_wrong = f"{len(lost)} lost, {len(twice)} run twice, {len(never)} never run, {len(left)} left behind"
    failed = f"{len(excused)} failed with their nodes, " if excused else ""
    report(f"{what}, {count} pods: {failed}{found_wrong}")
    assert not lost, {name: found[name] for name in lost[:3]}
    assert not twice
    assert not never
    assert not left
