"""Late binding on real systems: a pod waits at two sites and in the colocated Slurm; the first that starts runs it.

Pods that do not race go where jobs wait less.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack, contextmanager

import pytest

from cluster import Cluster
from cluster.pods import NAMESPACE, PoolWorld
from cluster.polling import eventually
from tests.chaos import marks
from tests.e2e.pools import groups

pytestmark = pytest.mark.real
SITES = ("slurm-site", "local-site")
RACE = {"bridge.vk.io/placement": "race"}
SETTINGS = {"pools": {"policy": "soonest", "race": {"enabled": True, "places": 3, "wait": 5}}}


@pytest.fixture(scope="module")
def world(state_folder):
    """A cluster whose hub and sites let pods race; the mark of each run is in the home of its site."""
    with Cluster(state_folder / "race", slurm="26.05", nodes=1, pools=list(SITES)) as cluster:
        for site in SITES:
            cluster.start_submitter(site, overrides={"limits": {"allow_race": True}})
        cluster.start_podbridge(config_overrides=SETTINGS)
        found = PoolWorld(cluster)
        for site in SITES:
            found.ready(site)
        eventually(lambda: all(allowed(found, site) for site in SITES), "the nodes say that the sites allow a race")
        marks.prepare(found)
        yield found


def allowed(world, site):
    return world.kube_node(site)["metadata"]["annotations"].get("bridge.vk.io/race") == "true"


def race(world, name, *more):
    return world.create_pod(marks.spec(name, 0), ",".join((*SITES, *more)), name, RACE)


def annotation(pod, name):
    return pod["metadata"]["annotations"].get(f"bridge.vk.io/{name}", "")


@contextmanager
def full(world, *sites):
    """Fill sites, so that nothing else starts there: Slurm with a job of another program, the other one with a pod."""
    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(slurm_full(world, site) if site == "slurm-site" else pod_full(world, site))
        yield


@contextmanager
def slurm_full(world, name):
    site = world.cluster.sites[name]
    options = (f"--nodes={site.nodes}", "--exclusive", "--output=/dev/null", "--parsable")
    job = site.run("sbatch", *options, "--wrap=sleep 3600").strip()
    try:
        eventually(lambda: site.run("squeue", "-h", "-o", "%T", "-j", job).strip() == "RUNNING", f"{name} is full")
        yield
    finally:
        site.run("scancel", job, check=False)


@contextmanager
def pod_full(world, name):
    gate = f"/srv/home/free-{time.monotonic_ns()}"  # ends the pod without podbridge
    cpus = world.kube_node(name)["status"]["allocatable"]["cpu"]
    script = f"until [ -e {gate} ]; do sleep 0.1; done"
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
    container["resources"] = {"requests": {"cpu": cpus, "memory": "16Mi"}}
    pod = world.create_pod({"containers": [container], "restartPolicy": "Never"}, name)
    try:
        world.running(pod)
        yield
    finally:
        world.cluster.sites[name].run("touch", gate)


def explained(world, pod):
    """Return the places of a pod in ``podbridge explain``, by name."""
    metadata = pod["metadata"]
    report = world.explained("pod", metadata["name"], metadata["namespace"])
    return {place["place"]: place for place in report["places"]}


def has_place(world, pod, site):
    return pod["metadata"]["uid"] in world.jobs_at(site)


def record(world, pod, site):
    """Return what the script of a job at a site has recorded; empty if it has not started."""
    path = world.job_folder(pod, site) / "state" / "pod.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_pod_that_a_full_site_would_hold_runs_at_the_other_at_once(world):
    with full(world, "slurm-site"):
        began = time.monotonic()
        pod = race(world, "overtakes")
        done = world.ended(pod)
        assert time.monotonic() - began < 20
        assert (done["status"]["phase"], done["spec"]["nodeName"]) == ("Succeeded", "local-site")
        assert annotation(done, "grant").startswith("local-site/")
        assert set(annotation(done, "places").split(",")) == set(SITES)
        states = {name: place["state"] for name, place in explained(world, done).items()}
        assert states == {"slurm-site": "withdrawn", "local-site": "won"}
        eventually(lambda: not has_place(world, pod, "slurm-site"), "the other place is withdrawn")
        assert marks.runs(world).get("overtakes") == 1


def test_a_pod_that_waits_shows_its_job_at_each_place_and_when_it_may_start(world):
    world.slurm("scontrol", "update", "partitionname=main", "state=down")
    try:
        with full(world, *SITES):
            pod = race(world, "looks", "local")
            job = world.labelled(pod)

            def complete():
                found = explained(world, pod)
                return found if all(found[site]["expected_start"] and found[site]["job"] for site in SITES) else None

            places = eventually(complete, "an expected start and a job at each site", 90)
            assert {place["state"] for place in places.values()} == {"queued"}
            assert places["local-site"]["room"] is False
            assert places["local"]["job"] == str(job)
            assert places["local"]["reason"].startswith("Partition")
            site = world.cluster.sites["slurm-site"]
            assert places["slurm-site"]["job"] in site.run("squeue", "-h", "-o", "%i").split()
            text = world.explain(pod)
            assert re.search(r"PLACE +ELIGIBLE +ROOM +JOB +STATE +EXPECTED-START +REASON", text), text
            world.delete(pod)
            world.gone(pod, 60)
    finally:
        world.slurm("scontrol", "update", "partitionname=main", "state=up")


def test_a_group_that_may_go_to_slurm_gets_no_place_at_a_pool(world):
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1", "memory": "16Mi"}}}
    template = {"metadata": {"annotations": {"bridge.vk.io/pools": "slurm-site,local"}}}
    template["spec"] = {"containers": [container], "restartPolicy": "Never"}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    metadata = {"name": "pair", "annotations": {"bridge.vk.io/gang": "true"}}
    world.slurm("scontrol", "update", "partitionname=main", "state=down")
    try:
        gang = world.api("POST", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", {"metadata": metadata, "spec": spec})
        found = eventually(lambda: world.explained("job", "pair", NAMESPACE)["places"], "the places of the group")
        places = {place["place"]: place for place in found}
        runs_groups = annotation(world.kube_node("slurm-site"), "gangs") == "true"
        why = "a group that may go to Slurm stays there" if runs_groups else "does not run groups of pods"
        assert (places["slurm-site"]["eligible"], places["slurm-site"]["reason"]) == (False, why)
        assert places["local"]["eligible"] is False, "one node is too few for the group"
        world.delete_gang(gang)
    finally:
        world.slurm("scontrol", "update", "partitionname=main", "state=up")


def start_group(world, name, pools):
    """Create a group that races; each pod marks its run by the name of the group and its rank."""
    return groups.start(world, name, pools, f"echo ran >>$HOME/marks/{name}-$PODBRIDGE_GROUP_RANK", RACE)


def check_group_ran_once(world, name, pods, site):
    """Wait until the pods of a group have ended as one job at a site, and nothing is left at the other."""
    done = [world.ended(pod, 120) for pod in pods]
    assert {(pod["status"]["phase"], pod["spec"]["nodeName"]) for pod in done} == {("Succeeded", site)}
    assert len({world.remote_job(pod) for pod in done}) == 1
    assert len({annotation(pod, "grant") for pod in done}) == 1
    assert sorted(annotation(pod, "place-in-job").split("/")[1] for pod in done) == ["0", "1", "2"]
    (other,) = {*SITES} - {site}
    eventually(lambda: not any(has_place(world, pod, other) for pod in pods), "the other places are withdrawn")
    assert [marks.runs(world).get(f"{name}-{rank}") for rank in range(groups.SIZE)] == [1] * groups.SIZE
    groups.delete(world, name)
    groups.nothing_left(world, site)


def test_a_group_runs_at_the_first_place_that_starts_its_job(world):
    if annotation(world.kube_node("slurm-site"), "gang-race") != "true":
        pytest.skip("the Slurm of the site runs no groups")
    with full(world, "slurm-site"):
        pods = start_group(world, "crowd", ",".join(SITES))
        check_group_ran_once(world, "crowd", pods, "local-site")
    with full(world, "local-site"):
        pods = start_group(world, "mass", ",".join(SITES))
        check_group_ran_once(world, "mass", pods, "slurm-site")


def test_a_pod_that_does_not_race_goes_where_jobs_wait_less(world):
    with full(world, "slurm-site"):
        queued = world.create_pod(marks.spec("queued", 0), "slurm-site")
        waits = lambda: int(annotation(world.kube_node("slurm-site"), "expected-wait") or 0)  # noqa: E731
        eventually(lambda: waits() >= 10, "the node of the full site has an expected wait", 60)
        done = world.ended(world.create_pod(marks.spec("quick", 0), ",".join(SITES)))
        assert done["spec"]["nodeName"] == "local-site"
        (event,) = world.events(done, "Scheduled")
        assert "shortest expected wait of slurm-site (" in event["note"]
        site = world.cluster.sites["slurm-site"]
        (job,) = site.run("squeue", "-h", "-o", "%i", "-t", "PENDING").split()
        site.run("scontrol", "hold", job)
        eventually(lambda: waits() == 0, "a held job does not wait its turn", 60)
        site.run("scontrol", "release", job)
    world.ended(queued)


def logged(world, message):
    """Return the lines of podbridge's log with a message."""
    lines = (world.cluster.state / "logs" / "podbridge.log").read_text().splitlines()
    return [found for line in lines if line.startswith("{") and (found := json.loads(line))["msg"] == message]


def test_many_pods_race_and_each_runs_once(world, report):
    count = 8
    pods = [race(world, f"many-{number}") for number in range(count)]
    done = [world.ended(pod, 120) for pod in pods]
    assert {pod["status"]["phase"] for pod in done} == {"Succeeded"}
    granted = {line["pod"]: line["ts"] for line in logged(world, "place granted")}
    names = {pod["metadata"]["uid"]: f"remote/{pod['metadata']['name']}" for pod in done}
    late = [
        line["ts"] - granted[names[line["uid"]]] for line in logged(world, "place withdrawn") if line["uid"] in names
    ]
    total, grants = (world.metric(f"podbridge_race_grant_seconds_{part}") for part in ("sum", "count"))
    report(
        f"{count} pods at two free sites: {total / grants:.3f} s from question to grant (mean of {grants:g}); "
        f"{len(late)} other places withdrawn, the last {max(late, default=0):.2f} s after its grant"
    )
    ran = marks.runs(world)
    assert {name: ran.get(name) for name in (f"many-{n}" for n in range(count))} == {
        f"many-{n}": 1 for n in range(count)
    }


def test_the_colocated_slurm_is_a_place(world):
    with full(world, *SITES):
        pod = race(world, "at-home", "local")
        done = world.bound(pod)  # kwok stands for the kubelet there
        assert done["spec"]["nodeName"] not in SITES
        places = explained(world, done)
        assert {place["state"] for place in places.values()} == {"withdrawn", "won"}
        assert (places["local"]["state"], places["local"]["job"]) == ("won", str(world.job_of(done)))
        eventually(lambda: not any(has_place(world, pod, site) for site in SITES), "the places are withdrawn", 60)
        world.delete(pod)


def test_a_pool_is_first_and_the_job_in_the_colocated_slurm_is_cancelled(world):
    world.slurm("scontrol", "update", "partitionname=main", "state=down")
    try:
        with full(world, "slurm-site"):
            pod = race(world, "away", "local")
            done = world.ended(pod)
            assert (done["status"]["phase"], done["spec"]["nodeName"]) == ("Succeeded", "local-site")
            eventually(lambda: not world.slurm("squeue", "-h", "-o", "%i").strip(), "the placeholder job is cancelled")
            eventually(lambda: not world.get(pod)["metadata"].get("finalizers"), "its finalizer is removed")
    finally:
        world.slurm("scontrol", "update", "partitionname=main", "state=up")


def test_a_script_without_a_hub_gives_its_place_back_and_the_pod_runs_when_the_hub_is_back(world):
    with full(world, "slurm-site"):
        with full(world, "local-site"):
            pod = race(world, "patient")
            eventually(lambda: all(has_place(world, pod, site) for site in SITES), "a place at both sites")
            world.cluster.stop_podbridge()
        # the local site has room now: the script starts, and nobody grants
        eventually(lambda: record(world, pod, "local-site").get("reason") == "NoGrant", "the place is given back", 60)
        assert "patient" not in marks.runs(world)
        world.cluster.start_podbridge(config_overrides=SETTINGS)
        assert world.ended(pod, 120)["status"]["phase"] == "Succeeded"
        assert marks.runs(world)["patient"] == 1


def test_a_pod_that_is_deleted_before_it_starts_leaves_no_place(world):
    with full(world, *SITES):
        pod = race(world, "gone")
        eventually(lambda: all(has_place(world, pod, site) for site in SITES), "a place at both sites")
        world.delete(pod)
        eventually(lambda: not any(has_place(world, pod, site) for site in SITES), "withdrawn", 60)
        assert "gone" not in marks.runs(world)


def test_a_pod_whose_places_were_all_withdrawn_runs_where_it_is_bound_later(world):
    cordon = world.cluster.kubectl
    with full(world, *SITES):
        pod = race(world, "returns")
        eventually(lambda: all(has_place(world, pod, site) for site in SITES), "a place at both sites")
        try:
            cordon("cordon", *SITES)
            eventually(lambda: annotation(world.get(pod), "places") == "", "the pod has no place")
            folders = [world.job_folder(pod, site) for site in SITES]
            withdrawn = [folder / "cancel.json" for folder in folders]
            eventually(lambda: all(path.exists() for path in withdrawn), "both jobs are withdrawn")
        finally:
            cordon("uncordon", "local-site")
    try:
        done = world.ended(pod, 120)
    finally:
        cordon("uncordon", "slurm-site")
    assert (done["status"]["phase"], done["spec"]["nodeName"]) == ("Succeeded", "local-site")
    assert (annotation(done, "grant"), marks.runs(world)["returns"]) == ("", 1)
    eventually(lambda: not has_place(world, pod, "slurm-site"), "the record of the other place is removed", 90)


def test_a_site_that_does_not_allow_it_gets_no_place(world):
    world.cluster.start_submitter("local-site", overrides={"limits": {"allow_race": False}})
    try:
        eventually(lambda: not allowed(world, "local-site"), "the node says so")
        pod = race(world, "one-place")
        assert world.ended(pod)["status"]["phase"] == "Succeeded"
        found = world.get(pod)
        assert annotation(found, "places") == ""
    finally:
        world.cluster.start_submitter("local-site", overrides={"limits": {"allow_race": True}})
        eventually(lambda: allowed(world, "local-site"), "allowed again")
