"""The hub is killed (SIGKILL) after its N-th write while pods wait at every kind of place: each runs once.

A pod and a group race in Slurm and at two NATS pools, one pod waits at a NATS pool, and one at an interLink pool. If
Slurm's partition is down, a site wins the races. A short run tries one N; ``./hack/test.sh --long kills`` tries the odd
ones with the partition in one state and the even ones in the other.
"""

import random
from collections import Counter
from contextlib import contextmanager

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.chaos import marks
from tests.chaos.victims import Victims
from tests.e2e.pools import groups
from tests.fakes.interlink_plugin import FakePlugin

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

LEAST_WRITES, MOST_WRITES = 24, 130
SITES = ("slurm-site", "local-site")
FAR = "far"
RACE = {"bridge.vk.io/placement": "race", "hack/run-seconds": "1"}


def settings(plugin):
    far = {
        "name": FAR,
        "url": plugin.url,
        "capacity": {"cpu": "1000", "memory": "1Ti"},
        "pollPeriod": 0.5,
        "pingPeriod": 1,
        "timeout": 2,
        "lateCreate": 1,
    }
    return {"pools": {"interlink": [far], "submitTimeout": 3, "race": {"enabled": True, "places": 3, "wait": 10}}}


@pytest.fixture(scope="module")
def plugin():
    with FakePlugin(seconds=1.0) as running:
        yield running


@pytest.fixture(scope="module")
def world(state_folder, plugin):
    with Cluster(state_folder / "places-sweep", slurm="26.05", nodes=1, pools=list(SITES)) as cluster:
        for site in SITES:
            cluster.start_submitter(site, overrides={"limits": {"allow_race": True}}, wait=False)
        cluster.start_podbridge(("admission",), config_overrides=settings(plugin))
        world = PoolWorld(cluster)
        marks.prepare(world)
        yield world


@pytest.fixture
def start(world, plugin):
    """Return a function that starts the process that kills itself after ``limit`` writes, and returns its Popen."""
    victims = Victims(world.cluster, settings(plugin))
    try:
        first = victims.start()
        for pool in (*SITES, FAR):
            world.ready(pool, 60)
        eventually(lambda: all(races(world, site) for site in SITES), "the nodes say that the sites allow a race")
        victims.kill(first)
        yield lambda limit: victims.start(limit, counted="writes")
    finally:
        victims.close()


def races(world, site):
    return world.kube_node(site)["metadata"]["annotations"].get("bridge.vk.io/race") == "true"


@contextmanager
def partition(world, state):
    """Set the state of the partition of the colocated Slurm: in ``down``, it starts no job."""
    world.slurm("scontrol", "update", "partitionname=main", f"state={state}")
    try:
        yield
    finally:
        world.slurm("scontrol", "update", "partitionname=main", "state=up")


class Round:
    """The three pods and the group, from their creation to their deletion."""

    def __init__(self, world, plugin, limit):
        self._world, self._plugin, self._what = world, plugin, f"killed after write {limit}"
        name, anywhere = f"w{limit}", ",".join(("local", *SITES))
        self._racer = world.create_pod(marks.spec(f"race-{name}", 0), anywhere, f"race-{name}", RACE)
        self._there = world.create_pod(marks.spec(f"site-{name}", 0), "local-site", f"site-{name}")
        self._far = world.create_pod(marks.spec(f"far-{name}", 0), FAR, f"far-{name}")
        self._group = f"crowd-{name}"
        script = f"echo ran >>$HOME/marks/{self._group}-$PODBRIDGE_GROUP_RANK; sleep 1"
        members = groups.start(world, self._group, anywhere, script, RACE)
        self._pods = (self._racer, self._there, self._far, *members)

    def over(self):
        found = [self._world.get(pod) for pod in self._pods]
        assert all(found), f"{self._what}: a pod is lost"
        assert not any(pod["status"]["phase"] == "Failed" for pod in found), (self._what, found)
        return all(pod["status"]["phase"] == "Succeeded" for pod in found)

    def check(self):
        """Assert that each pod ran once, at the place of its Binding, and that no other job of it is left.

        Return the places that won: that of the pod, and that of the group.
        """
        world, uid, ran = self._world, self._racer["metadata"]["uid"], marks.runs(self._world)
        won = world.get(self._racer)["spec"]["nodeName"]
        counts = [ran.get(pod["metadata"]["name"], 0) for pod in (self._racer, self._there)]
        assert counts == [int(won in SITES), 1], f"{self._what}: {won} won, runs of racer and pod: {counts}"
        jobs = world.jobs_by_uid().get(uid, [])
        assert len(jobs) <= 1, f"{self._what}: the racer had the jobs {jobs}"
        assert won in SITES or len(jobs) == 1
        creates = self._plugin.creates.count(self._far["metadata"]["uid"])
        assert creates == 1, f"{self._what}: {creates} jobs at the interLink plugin"
        group_won = self._check_group(ran)
        eventually(lambda: not world.queue(), f"{self._what}: the job in Slurm ends")
        lost = [site for site in SITES if site != won]
        eventually(lambda: not any(uid in world.jobs_at(site) for site in lost), f"{self._what}: places withdrawn", 60)
        return won if won in SITES else "local", group_won

    def _check_group(self, ran):
        """Assert that the group had one job, at the place of its Bindings, and that the others are withdrawn."""
        members = [self._world.get(pod) for pod in self._pods[3:]]
        counts = [ran.get(f"{self._group}-{rank}", 0) for rank in range(groups.SIZE)]
        won = {pod["spec"]["nodeName"] for pod in members} & {*SITES}
        assert counts == [len(won)] * groups.SIZE, f"{self._what}: {won} won, runs of the group: {counts}"
        annotation = "bridge.vk.io/job" if won else "bridge.vk.io/slurm-job"
        jobs = {pod["metadata"]["annotations"].get(annotation) for pod in members}
        assert len(jobs) == 1, f"{self._what}: the group had the jobs {jobs}"
        uids = {pod["metadata"]["uid"] for pod in members}
        lost = {*SITES} - won
        eventually(
            lambda: all(uids.isdisjoint(self._world.jobs_at(site)) for site in lost),
            f"{self._what}: the places of the group are withdrawn at {lost}", 60
        )  # fmt: skip
        return next(iter(won), "local")

    def remove(self):
        """Delete the pods; assert that nothing is left."""
        groups.delete(self._world, self._group)
        for pod in self._pods[:3]:
            self._world.delete(pod)
        eventually(lambda: not self._world.pods(NAMESPACE), f"{self._what}: no pod left", 60)
        for site in SITES:
            eventually(lambda s=site: not self._world.jobs_at(s), f"{self._what}: no job left at {site}", 60)
        assert not self._plugin.jobs, f"{self._what}: jobs left at the interLink plugin"


def killed_once(world, plugin, start, state, limit):
    """Run a round with one kill; return whether the process was killed, and the places that won the races."""
    with partition(world, state):
        work = Round(world, plugin, f"{limit}-{state}")
        victim = start(limit)
        eventually(lambda: victim.poll() is not None or work.over(), "killed, or all over", 60)
        survived = victim.poll() is None
        if survived:
            victim.kill()
        assert victim.wait() == -9
        healer = start(0)
        eventually(work.over, f"all over after a kill at write {limit}", 90)
        won = work.check()
        work.remove()
        healer.kill()
        healer.wait()
    return not survived, won


def test_kill_after_every_write(world, plugin, start, long, report):
    killed, won = 0, Counter()
    states = random.sample(("up", "down"), 2 if long else 1)
    for first, state in enumerate(states, 1):
        for limit in range(first, MOST_WRITES, 2) if long else (random.randint(1, LEAST_WRITES),):
            was_killed, places = killed_once(world, plugin, start, state, limit)
            won.update(places)
            killed += was_killed
            if not was_killed:
                break
        assert not was_killed or not long, f"still being killed after {MOST_WRITES} writes"
    assert killed >= (LEAST_WRITES if long else 1), f"only {killed} writes were tried"
    count = (3 + groups.SIZE) * won.total() // 2
    report(f"killed {killed} times after writes, {count} pods: 0 lost, 0 run twice; races won: {dict(won)}")
