"""Kueue never admits more to a pool than its site announces, while sites come and go, and after a site has failed."""

import time

import pytest

from cluster import pools
from cluster.polling import eventually
from cluster.systems import kueue
from tests.e2e.kueue.capacity import CapacityWatch

pytestmark = pytest.mark.real
SITES = [{"name": "sites", "poolFlavor": {"poolRegExp": "-site$"}}]
JOBS, FEW = 40, 16
"""Jobs of a long run, and of a short one."""


def created(world, name):
    """Create a MasterQueue of both sites; return its path and its flavors by pool."""
    path = world.master_queue(name, SITES)
    flavors = {pool: f"{name}-sites-{pool}" for pool in world.cluster.sites}
    world.both_offered(name)
    return path, flavors


def removed(world, name, path):
    world.api("DELETE", path)
    eventually(lambda: not world.offered(name), "its queue is garbage", 60)


def test_no_second_admits_more_than_the_sites_announce_while_they_come_and_go(world, long, report):
    name = f"coming-{next(world.counts)}"
    path, flavors = created(world, name)
    own = flavors["local-site"]
    small = {"local": {"cpus": 3}}
    by_flavor = {flavor: pool for pool, flavor in flavors.items()}
    try:
        with CapacityWatch(world, name, by_flavor) as watch:
            options = {"namespace": pools.NAMESPACE, "script": "sleep 2", "tolerations": [kueue.TOLERATION]}
            jobs = [world.queued(name, **options) for _ in range(JOBS if long else FEW)]
            for overrides in (small, {}, small) if long else (small, {}):
                world.cluster.stop_submitter("local-site")
                eventually(lambda: world.offered(name)[own] == "0", "the pool that has left is held")
                world.cluster.start_submitter("local-site", overrides)
                wanted = "3" if overrides else "32"
                eventually(lambda w=wanted: world.offered(name)[own] == w, "offered as announced")
            for job in jobs:
                world.completed(job, 180)
        report(str(watch))
        assert watch.problems == []
        assert watch.looks >= 10
        assert watch.peak[own] > 0
    finally:
        world.cluster.stop_submitter("local-site")
        world.cluster.start_submitter("local-site")
    removed(world, name, path)


def test_workloads_of_a_silent_site_are_evicted_and_run_at_another(world):
    name = f"failed-{next(world.counts)}"
    pool = {"pools": ["local-site", "slurm-site"], "evictAfter": 8}
    path = world.master_queue(name, [{"name": "s", "poolFlavor": pool}])
    world.both_offered(name)
    script = f"until [ -e /srv/home/{name} ]; do sleep 0.1; done"
    job = world.queued(name, namespace=pools.NAMESPACE, script=script, tolerations=[kueue.TOLERATION])
    assert world.admitted(job) == f"{name}-s-local-site"
    (first,) = world.running_members(job, 1, 60)
    world.cluster.kill("local-site-submitter")
    began = time.monotonic()
    try:
        eventually(
            lambda: any(pod["metadata"]["uid"] != first["metadata"]["uid"] for pod in world.members(job)), "again", 60
        )
        assert time.monotonic() - began >= 6, "not before evictAfter; the site speaks every 2 s"
        assert world.admitted(job) == f"{name}-s-slurm-site"
        assert world.events({"metadata": world.api("GET", path)["metadata"]}, "QueueEvicted", "default")
        left = world.get(first)
        assert left is not None, "its job may still run"
        assert left["metadata"].get("deletionTimestamp")
    finally:
        world.cluster.start_submitter("local-site")
    world.gone(first, 60)
    (second,) = world.running_members(job, 1, 60)
    assert world.remote_job(second).startswith("slurm-site/")
    world.let_go(name)
    world.completed(job, 60)
    removed(world, name, path)


def test_a_flavor_leaves_a_queue_that_borrows_it_after_its_workloads(world):
    number = next(world.counts)
    name, guests = f"lender-{number}", f"borrowers-{number}"
    flavors = [
        {"name": pool, "canLendTo": [{"queue": guests}], "poolFlavor": {"pools": [pool]}}
        for pool in ("local-site", "slurm-site")
    ]
    path = world.master_queue(name, flavors, template={"cohort": f"cohort-{number}"})
    world.api("POST", *kueue.local_queue(guests, pools.NAMESPACE, guests))
    left, stays = (f"{name}-{pool}-{pool}" for pool in ("local-site", "slurm-site"))
    eventually(lambda: set(world.offered(guests)) == {left, stays}, "both flavors are lent")
    world.both_offered(name)
    script = f"until [ -e /srv/home/{name} ]; do sleep 0.1; done"
    options = {"namespace": pools.NAMESPACE, "tolerations": [kueue.TOLERATION]}
    job = world.queued(guests, script=script, **options)
    assert world.admitted(job) == left
    (first,) = world.running_members(job, 1, 60)
    world.api.merge(path, {"spec": {"flavors": flavors[1:]}})

    def states():
        return {item.get("flavor"): item["state"] for item in world.api("GET", path)["status"]["flavors"]}

    eventually(lambda: list(world.offered(name)) == [stays], "its owner has no workloads there")
    eventually(lambda: states().get(left) == "Leaving", "the status names it")
    assert list(world.offered(guests)) == [stays, left]
    other = world.queued(guests, script="true", **options)
    assert world.admitted(other) == stays, "no more is admitted to it"
    world.completed(other, 60)
    found = world.get(first)
    assert found is not None, "its workload runs on"
    assert found["status"]["phase"] == "Running"
    world.let_go(name)
    world.completed(job, 60)
    gone = f"{kueue.API}/resourceflavors/{left}"
    eventually(lambda: world.api.request("GET", gone)[0] == 404, "its ResourceFlavor is deleted", 60)
    assert list(world.offered(guests)) == [stays]
    removed(world, name, path)


def test_a_queue_borrows_a_flavor_up_to_the_limit_of_its_owner(world):
    number = next(world.counts)
    name, guests = f"owner-{number}", f"guests-{number}"
    lending = [{"queue": guests, "lendingLimit": {"cpu": 2}}]
    flavors = [{"name": "p", "canLendTo": lending, "poolFlavor": {"pools": ["local-site"]}}]
    path = world.master_queue(name, flavors, template={"cohort": f"cohort-{number}"})
    world.api("POST", *kueue.local_queue(guests, pools.NAMESPACE, guests))
    eventually(lambda: world.offered(guests), "the ClusterQueue of the guests exists")
    script = f"until [ -e /srv/home/{name} ]; do sleep 0.1; done"
    options = {"namespace": pools.NAMESPACE, "script": script, "tolerations": [kueue.TOLERATION]}
    jobs = [world.queued(guests, **options) for _ in range(3)]
    eventually(lambda: sum(world.told(job, "QuotaReserved") == "True" for job in jobs) == 2, "two borrow")
    time.sleep(2)
    assert sum(world.told(job, "QuotaReserved") == "True" for job in jobs) == 2, "the third waits"
    assert world.reserved(guests) == {f"{name}-p-local-site": 2}
    own = world.queued(name, **options)
    assert world.admitted(own) == f"{name}-p-local-site"
    world.let_go(name)
    for job in (*jobs, own):
        world.completed(job, 90)
    world.api.merge(path, {"spec": {"flavors": [{**flavors[0], "canLendTo": []}]}})
    eventually(lambda: not world.offered(guests), "a queue that nothing lends to is deleted", 60)
    removed(world, name, path)
