"""Late binding on real systems: pods and groups wait at two sites and in the colocated Slurm; the first to start wins.

Pods that do not race go where jobs wait less.
"""

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
def slurm_down(world):
    """Let the colocated Slurm start no job."""
    world.slurm("scontrol", "update", "partitionname=main", "state=down")
    try:
        yield
    finally:
        world.slurm("scontrol", "update", "partitionname=main", "state=up")


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


def start_group(world, name, *more):
    """Create a group that races; each pod marks its run by the name of the group and its rank."""
    script = f"echo ran >>$HOME/marks/{name}-$PODBRIDGE_GROUP_RANK"
    return groups.start(world, name, ",".join((*SITES, *more)), script, RACE)


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


def test_the_first_pool_that_starts_gets_a_pod_and_a_group_and_their_other_places_are_withdrawn(world):
    with slurm_down(world), full(world, "slurm-site"):
        began = time.monotonic()
        pod = race(world, "overtakes", "local")
        done = world.ended(pod)
        assert time.monotonic() - began < 20
        assert (done["status"]["phase"], done["spec"]["nodeName"]) == ("Succeeded", "local-site")
        assert annotation(done, "grant").startswith("local-site/")
        assert set(annotation(done, "places").split(",")) == {*SITES, "local"}
        states = {name: place["state"] for name, place in explained(world, done).items()}
        assert states == {"slurm-site": "withdrawn", "local": "withdrawn", "local-site": "won"}
        eventually(lambda: not has_place(world, pod, "slurm-site"), "the other place is withdrawn")
        eventually(lambda: not world.get(pod)["metadata"].get("finalizers"), "its finalizer is removed")
        assert marks.runs(world).get("overtakes") == 1
        world.delete(pod)
        check_group_ran_once(world, "crowd", start_group(world, "crowd", "local"), "local-site")
        eventually(lambda: not world.slurm("squeue", "-h", "-o", "%i").strip(), "the placeholder jobs are cancelled")


def test_the_colocated_slurm_that_starts_first_gets_a_pod_and_a_group(world):
    """Until then, ``explain`` shows the job at each place, and when it may start."""
    runs_groups = [site for site in SITES if annotation(world.kube_node(site), "gang-race") == "true"]
    with full(world, *SITES):
        with slurm_down(world):
            pod, pods = race(world, "looks", "local"), start_group(world, "troop", "local")

            def complete():
                found = explained(world, pod)
                return found if all(found[site]["expected_start"] and found[site]["job"] for site in SITES) else None

            queued = eventually(complete, "an expected start and a job at each site", 90)
            assert {place["state"] for place in queued.values()} == {"queued"}
            assert queued["local-site"]["room"] is False
            assert queued["local"]["job"] == str(world.labelled(pod))
            assert queued["local"]["reason"].startswith("Partition")
            site = world.cluster.sites["slurm-site"]
            assert queued["slurm-site"]["job"] in site.run("squeue", "-h", "-o", "%i").split()
            text = world.explain(pod)
            assert re.search(r"PLACE +ELIGIBLE +ROOM +JOB +STATE +EXPECTED-START +REASON", text), text
            for name in runs_groups:
                eventually(lambda name=name: all(has_place(world, each, name) for each in pods), f"the group at {name}")
            (job,) = {world.labelled(each) for each in pods}
            found = {place["place"]: place for place in world.explained("job", "troop", NAMESPACE)["places"]}
            assert found["local"]["job"] == str(job)
            assert all(found[name]["state"] == "queued" for name in runs_groups)
        done = [world.bound(each) for each in (pod, *pods)]  # kwok stands for the kubelet there
        assert {*SITES}.isdisjoint(each["spec"]["nodeName"] for each in done)
        assert {world.job_of(each) for each in done[1:]} == {job}
        places = explained(world, done[0])
        assert {place["state"] for place in places.values()} == {"withdrawn", "won"}
        assert (places["local"]["state"], places["local"]["job"]) == ("won", str(world.job_of(done[0])))
        everywhere = [(each, name) for each in done for name in SITES]
        eventually(lambda: not any(has_place(world, *each) for each in everywhere), "the places are withdrawn", 60)
        groups.delete(world, "troop")
        world.delete(pod)


def test_a_group_runs_at_a_full_site_that_has_room_first(world):
    if annotation(world.kube_node("slurm-site"), "gang-race") != "true":
        pytest.skip("the Slurm of the site runs no groups")
    with full(world, "local-site"):
        check_group_ran_once(world, "mass", start_group(world, "mass"), "slurm-site")


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
