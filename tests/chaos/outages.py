"""Pods that run through an outage on two sites, and what must hold afterwards."""

import contextlib
import itertools
from datetime import datetime

from cluster.pods import FINISHED
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.chaos import marks

SITES = ("slurm-site", "local-site")
SETTLED = 90.0
NUMBERS = itertools.count()


def start(world, submitter=None, hub=None):
    for site in SITES:
        world.cluster.start_submitter(site, submitter)
    world.cluster.start_podbridge(config_overrides=hub)
    for pool in SITES:
        world.ready(pool)
    marks.prepare(world)


def create(world, kind, seconds):
    """Create a pod on each site; return the pods with their exit codes."""
    made = []
    for site in SITES:
        number = next(NUMBERS)
        name, code = f"{kind}-{number}", number % 3
        spec = marks.spec(name, seconds, code, terminationGracePeriodSeconds=1)
        made.append((world.create_pod(spec, site, name), code))
    return made


def terminated(status):
    """Return the terminated state of a pod's container; empty before its end."""
    return ((status.get("containerStatuses") or [{}])[0].get("state") or {}).get("terminated") or {}


def wrong(world, wanted):
    """Return the statuses of the pods that have not ended with their exit code, by name."""
    found = {pod["metadata"]["uid"]: pod["status"] for pod in world.pods(NAMESPACE)}
    bad = {}
    for pod, code in wanted:
        status = found.get(pod["metadata"]["uid"], {})
        if status.get("phase") not in FINISHED or terminated(status).get("exitCode") != code:
            bad[pod["metadata"]["name"]] = status
    return bad


def finished_at(world, pod):
    return datetime.fromisoformat(terminated(world.get(pod)["status"])["finishedAt"]).timestamp()


def check(world, kept, deleted, report, what):
    with contextlib.suppress(AssertionError):  # the next line shows the statuses
        eventually(lambda: not wrong(world, kept), "each pod ended with its exit code", SETTLED, 0.5)
    assert not wrong(world, kept)
    for pod, _ in deleted:
        world.gone(pod, 30)
    ran = marks.runs(world)
    names = [pod["metadata"]["name"] for pod, _ in kept]
    lost = [name for name in names if name not in ran]
    twice = [name for name, count in ran.items() if count > 1]
    world.clear()
    left = [uid for site in SITES for uid in world.jobs_at(site)]
    counts = f"{len(lost)} never run, {len(twice)} run twice, {len(left)} left behind"
    report(f"{what}, {len(kept) + len(deleted)} pods: {counts}")
    assert not lost
    assert not twice
    assert not left
