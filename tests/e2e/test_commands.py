"""The commands for users and administrators, on a running cluster."""

import json
import os
import subprocess

import pytest

pytestmark = [pytest.mark.real, pytest.mark.main_version]


def podbridge(world, *args, check=True):
    env = {**os.environ, **world.cluster.env}
    done = subprocess.run(["podbridge", *args], env=env, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr + done.stdout
    return done


def test_check_finds_no_problem(world):
    findings = json.loads(podbridge(world, "check", "-o", "json").stdout)
    assert [f for f in findings if f["result"] == "FAIL"] == []
    assert {"Kubernetes API", "webhook", "scheduler", "controllers", "Slurm", "nodes"} <= {f["what"] for f in findings}


def test_check_names_the_fix(world, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("slurmRestApi: http://127.0.0.1:1\npartition: nowhere\n")
    done = podbridge(world, "check", "--config", str(config), check=False)
    assert done.returncode == 1
    assert "refused" in done.stdout


def test_pods_jobs_and_nodes(world):
    pod = world.create("shown")
    world.running(pod)
    job = world.labelled(pod)
    name = {"namespace": "slurm-bridge", "name": "shown", "job": job, "slurm_state": "RUNNING", "phase": "Running"}
    pods = json.loads(podbridge(world, "get", "pods", "-n", "slurm-bridge", "-o", "json").stdout)
    (found,) = [p for p in pods if p["name"] == "shown"]
    assert name.items() <= found.items()
    jobs = json.loads(podbridge(world, "get", "jobs", "-o", "json").stdout)
    assert [j["pods"] for j in jobs if j["job"] == job] == ["slurm-bridge/shown"]
    nodes = json.loads(podbridge(world, "get", "nodes", "-o", "json").stdout)
    assert [(n["name"], n["slurm_name"], n["managed"]) for n in nodes] == [
        (f"node-{i}", f"node-{i}", True) for i in range(4)
    ]
    table = podbridge(world, "get", "pods", "-A", "-o", "wide").stdout
    assert table.startswith("NAMESPACE")
    story = podbridge(world, "explain", "pod", "shown", "-n", "slurm-bridge").stdout
    assert f"runs on {found['node']} with Slurm job {job}" in story
    world.delete(pod, grace=1)
    world.gone(pod)


def test_a_pod_that_is_not_there(world):
    done = podbridge(world, "explain", "pod", "nobody", "-n", "slurm-bridge", check=False)
    assert done.returncode == 1
    assert "pod nobody does not exist in namespace slurm-bridge" in done.stderr
