"""The commands for users and administrators, on a running cluster."""

import json
import os
import signal
import subprocess

import pytest

from cluster.polling import eventually

pytestmark = pytest.mark.real


def podbridge(world, *args, check=True):
    env = {**os.environ, **world.cluster.env}
    done = subprocess.run(["podbridge", *args], env=env, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr + done.stdout
    return done


def test_check_finds_no_problem(world):
    findings = json.loads(podbridge(world, "check", "-o", "json").stdout)
    assert [f for f in findings if f["result"] == "FAIL"] == []
    assert {"Kubernetes API", "webhook", "scheduler", "controllers", "Slurm", "nodes"} <= {f["what"] for f in findings}


def test_check_before_an_installation_asks_for_no_object_of_podbridge(world, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"slurmRestApi: {world.cluster.slurm_rest_url}\n")
    done = podbridge(world, "check", "--before-install", "--config", str(config), "-o", "json")
    findings = json.loads(done.stdout)
    assert {f["what"] for f in findings} >= {"Kubernetes API", "Slurm token", "Slurm", "nodes", "pods"}
    assert not {f["what"] for f in findings} & {"permissions", "webhook", "policies", "scheduler", "controllers"}
    assert [f["found"] for f in findings if f["what"] == "pods"] == ["the taint of 0 nodes would evict no pod"]


def test_pods_jobs_and_nodes(world):
    pod = world.create("shown")
    world.running(pod)
    job = world.labelled(pod)
    name = {"namespace": "slurm-bridge", "name": "shown", "job": job, "slurm_state": "RUNNING", "phase": "Running"}
    pods = json.loads(podbridge(world, "get", "pods", "-n", "slurm-bridge", "-o", "json").stdout)
    (found,) = [p for p in pods if p["name"] == "shown"]
    assert name.items() <= found.items()
    jobs = json.loads(podbridge(world, "get", "jobs", "-o", "json").stdout)
    assert [j["pods"] for j in jobs if j["job"] == job] == [["slurm-bridge/shown"]]
    nodes = json.loads(podbridge(world, "get", "nodes", "-o", "json").stdout)
    assert [(n["name"], n["slurm_name"], n["managed"]) for n in nodes] == [
        (f"node-{i}", f"node-{i}", True) for i in range(4)
    ]
    table = podbridge(world, "get", "pods", "-A", "-o", "wide").stdout
    assert table.startswith("NAMESPACE")
    assert "pod/shown" in podbridge(world, "get", "pods", "-n", "slurm-bridge", "-o", "name").stdout.splitlines()
    story = podbridge(world, "explain", "pod", "shown", "-n", "slurm-bridge").stdout
    assert f"runs on {found['node']} with Slurm job {job}" in story
    world.delete(pod, grace=1)
    world.gone(pod)

    def listed(*more):
        return {record["job"] for record in json.loads(podbridge(world, "get", "jobs", "-o", "json", *more).stdout)}

    eventually(lambda: job not in listed(), "the ended job left out")
    assert job in listed("--all")


def members_of(world, gang, size):
    """Wait until the members of a gang exist; return them, sorted by name."""
    found = eventually(lambda: len(pods := world.members(gang)) == size and pods, "its members")
    return sorted(found, key=lambda pod: pod["metadata"]["name"])


@pytest.fixture
def gangs(clean):
    """A list for the gangs of a test, which are deleted at the end."""
    created = []
    yield created
    for gang in created:
        clean.delete_gang(gang)


def test_explain_shows_the_position_and_the_start_of_a_pending_job(clean, gangs):
    world = clean
    for pod in [world.create(cpu="120", job={"timelimit": "60"}) for _ in range(4)]:
        world.running(pod)
    world.labelled(world.create(cpu="64"))
    second = world.create(cpu="64")
    job = world.labelled(second)
    gangs.append(world.create_gang("waiting", 2, cpu="64"))
    member = members_of(world, gangs[0], 2)[1]
    shared = world.labelled(member)

    def told(pod):
        text = podbridge(world, "explain", "pod", pod["metadata"]["name"], "-n", "slurm-bridge").stdout
        return text if "estimated start: 20" in text else ""

    text = eventually(lambda: told(second), "an estimated start", 40)
    assert f"job {job} is PENDING in partition main" in text
    assert "position 2 of 3 in partition main" in text
    text = eventually(lambda: told(member), "an estimated start of the gang", 40)
    assert "member of job waiting, a group of 2: 2 pods exist, 0 are bound, 0 have ended" in text
    assert f"job {shared} is PENDING in partition main" in text
    assert "position 3 of 3 in partition main" in text
    assert any(f"reason: {reason}" in text for reason in ("Priority", "Resources"))
    (record,) = [
        record
        for record in json.loads(podbridge(world, "get", "jobs", "-o", "json").stdout)
        if record["pods"] == ["job slurm-bridge/waiting"]
    ]
    assert (record["job"], record["state"], record["phases"], record["problem"]) == (shared, "PENDING", ["Pending"], "")
    world.slurm("scontrol", "hold", str(job))
    text = podbridge(world, "explain", "pod", second["metadata"]["name"], "-n", "slurm-bridge").stdout
    assert "priority 0: the job is held" in text
    assert "reason: JobHeld" in text


def test_explain_top_and_version(clean):
    world = clean
    pod = world.create("described")
    world.running(pod)
    job = world.labelled(pod)

    def read(*args):
        return json.loads(podbridge(world, *args, "-o", "json").stdout)

    facts = read("explain", "pod", "described", "-n", "slurm-bridge")
    node = facts["pod"]["node"]
    assert (facts["pod"]["job"], facts["job"]["job"], facts["requests"]["cpu"]) == (job, job, "1")
    assert any(line.startswith("PodScheduled=True") for line in facts["conditions"])
    assert "slurm-bridge/described Running" in read("explain", "node", node)["pods"]
    report = read("explain", "job", str(job))
    assert report["job"]["pods"] == ["slurm-bridge/described"]
    assert report["summary"] == f"RUNNING on {node}"
    assert report["next"] == "podbridge explain pod described -n slurm-bridge"
    state = read("top")
    assert state["pods"] == {"Running": 1}
    assert {each["name"]: each["pods"] for each in state["nodes"]}[node] == 1
    assert podbridge(world, "top").stdout.startswith("podbridge ")
    versions = read("version")
    assert versions["slurm"].startswith(world.cluster.options.slurm)
    for args in (("explain", "pod", "nobody"), ("explain", "job", "999999"), ("explain", "node", "nobody")):
        done = podbridge(world, *args, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "Traceback" not in done.stderr


def test_a_watch_shows_a_new_pod_and_its_end(clean):
    world = clean
    env = {**os.environ, **world.cluster.env}
    command = ["podbridge", "get", "pods", "-n", "slurm-bridge", "--watch", "-o", "json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as watching:
        pod = world.create("watched")
        world.running(pod)
        seen = []
        for line in watching.stdout:
            seen.append(json.loads(line))
            if seen[-1]["phase"] == "Running" and seen[-1]["name"] == "watched":
                world.delete(pod, grace=0)
            if seen[-1].get("deleted"):
                break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    assert {record["name"] for record in seen} == {"watched"}


def test_the_plugin_of_kubectl(clean):
    world = clean
    world.running(world.create("plugged"))

    def kubectl(*args):
        env = {**os.environ, **world.cluster.env}
        return subprocess.run(
            ["kubectl", *args], env=env, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert kubectl("podbridge", "get", "pods", "-n", "slurm-bridge", "-o", "name").split() == ["pod/plugged"]
    offered = kubectl("__complete", "podbridge", "explain", "pod", "-n", "slurm-bridge", "pl")
    assert offered.splitlines()[0].split("\t") == ["plugged", "Running"]
