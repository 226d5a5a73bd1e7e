"""All daemons are killed or stopped at random while pods run on two sites: no pod is lost, run twice or left behind.

Half of the pods are in groups of three: each group is one job there, whose pods start together; in every other one, the
first pod requests more than the others. The hub, the submitters, nats-server and the slurmd of a node are killed by
SIGKILL, the site's slurmctld is ended by SIGTERM, and each of them is stopped (SIGSTOP) for some seconds. Every other
node whose slurmd is killed is lost: pods there fail for this reason, of a group all that still run. A short run has 84
pods, a long run (``./hack/test.sh --long sites``) 300; ``--kills N`` sets the number of kills, with two pods for each.
"""

import random
import signal
import time

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.pools import NAMESPACE
from tests.chaos import marks

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
PODS, KILLS = 84, 10  # a multiple of 2 * MEMBERS
LONG_PODS, LONG_KILLS = 300, 150
SITES = ("slurm-site", "local-site")
NODES = ("node-0", "node-1")
VICTIMS = (
    "podbridge", "nats-server", "slurm-site-submitter", "local-site-submitter", "slurm-site-slurmctld",
    *[f"slurm-site-slurmd-{node}" for node in NODES],
)  # fmt: skip
EXCUSED = ("NodeFail", "MemberNotStarted")
"""Reasons of pods whose node was lost, or whose slurmd was killed when they were to start."""
GROUP, MEMBERS_PER_NODE = "kueue.x-k8s.io/pod-group-name", "bridge.vk.io/members-per-node"
MEMBERS = 3
LONGEST_PAUSE = 4.0
LONGEST_START = 20.0
"""Seconds between the starts of the first and the last pod of a group: all daemons of the site are slow by then."""


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-pools", slurm=None, pools=list(SITES), nodes=1) as cluster:
        yield PoolWorld.started(cluster)


def create(world, number):
    """Create a pod; those with the numbers 0 to 2, 6 to 8, ... are the members of groups."""
    group, place = divmod(number, 2 * MEMBERS)
    labels, annotations, spec = {}, {}, marks.spec(f"c{number}", number % 20)
    if place < MEMBERS:
        labels = {GROUP: f"g{group}"}
        annotations = {"kueue.x-k8s.io/pod-group-total-count": str(MEMBERS), MEMBERS_PER_NODE: str(MEMBERS)}
        if group // 2 % 2 and not place:
            spec["containers"][0]["resources"]["requests"]["cpu"] = "2"
    site = SITES[(group if labels else number) % 2]
    world.create_pod(spec, site, f"c{number}", annotations, labels)


def check_groups(world):
    """Assert that the pods of each group have run in one job and started together; return the number of groups."""
    started, jobs = marks.starts(world), {}
    for pod in world.pods(NAMESPACE, GROUP):
        job, rank, _ = pod["metadata"]["annotations"]["bridge.vk.io/place-in-job"].split("/")
        group = jobs.setdefault(pod["metadata"]["labels"][GROUP], {})
        group[rank] = (job, started.get(pod["metadata"]["name"]), pod["status"])
    for name, members in jobs.items():
        times = [time for _, time, _ in members.values() if time is not None]
        assert len(members) == MEMBERS, f"group {name}: two pods with one rank: {members}"
        assert len({job for job, *_ in members.values()}) == 1, f"group {name} had more than one job: {members}"
        assert not times or max(times) - min(times) < LONGEST_START, f"group {name} was half started: {members}"
        if len(times) < MEMBERS:
            ends = [status for _, _, status in members.values()]
            assert all(map(is_excused, ends)), f"group {name} was half started: {members}"
    return len(jobs)


def is_excused(status):
    """Whether a pod has failed because its node, or the slurmd there, was killed."""
    return status["phase"] == "Failed" and status.get("reason") in EXCUSED


def hurt(world, chance):
    """Kill a daemon, or stop it for some seconds, and start or continue it; return what was done."""
    victim = chance.choice(VICTIMS)
    site = next((site for site in SITES if victim == f"{site}-submitter"), None)
    if chance.random() < 0.4:
        world.cluster.kill(victim, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, LONGEST_PAUSE))
        world.cluster.kill(victim, signal.SIGCONT)
        return f"{victim} stopped"
    if victim.endswith("slurmctld"):
        # after SIGKILL it has lost the changes of its last five seconds, and kills jobs that it does not know
        world.cluster.stop_daemon(victim)
    elif victim.partition("slurmd-")[2] and chance.random() < 0.5:
        return lose_node(world, victim, chance)
    else:
        world.cluster.kill(victim)
    time.sleep(chance.uniform(0, LONGEST_PAUSE / 2))
    if victim == "podbridge":
        world.cluster.start_podbridge()
    elif site:
        world.cluster.start_submitter(site)
    else:
        world.cluster.start_daemon(victim)
    return f"{victim} killed"


def lose_node(world, victim, chance):
    """Kill a slurmd; slurmctld gives the node up at once, and gets it back later."""
    world.cluster.kill(victim)
    node = victim.partition("slurmd-")[2]
    down = ("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
    world.cluster.sites["slurm-site"].run_root(*down)
    time.sleep(chance.uniform(0, LONGEST_PAUSE / 2))
    world.cluster.start_daemon(victim)
    return f"{node} lost"


def test_pods_survive_everything(world, long, kills, report, capsys):
    total = (kills // MEMBERS or 1) * 2 * MEMBERS if kills else LONG_PODS if long else PODS
    kills = kills or (LONG_KILLS if long else KILLS)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    marks.prepare(world)
    for number, batch in enumerate(marks.batches(total, kills), 1):
        for name in batch:
            create(world, name)
        done = hurt(world, chance)
        if kills > KILLS:
            with capsys.disabled():
                print(f"{number}/{kills} {done}, {batch.stop} pods created", flush=True)
        time.sleep(chance.uniform(0.2, 2))
    marks.wait_until_over(world, total)
    groups = check_groups(world)
    assert groups == total // (2 * MEMBERS)
    what = f"chaos on pools, seed {seed}: {kills} kills, {groups} groups"
    marks.check_each_ran_once(world, total, report, what, is_excused)
