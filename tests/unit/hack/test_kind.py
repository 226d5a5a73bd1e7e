"""hack/kind.sh: options, and the check of its tools. tests/e2e/helm runs it on a cluster."""

import os
import re
import subprocess

import pytest
import yaml

from cluster import places

SCRIPT = places.CHECKOUT / "hack" / "kind.sh"


def run(*args, path):
    env = {**os.environ, "PATH": path}
    return subprocess.run(["/bin/bash", SCRIPT, *args], capture_output=True, text=True, env=env, timeout=60)


@pytest.fixture
def tools(tmp_path):
    """Return a PATH with the tools of every system, and a function that adds a program that fails or succeeds."""
    for name in ("dirname", "sha256sum", "cut", "sed", "mktemp", "rm", "cat", "wc", "grep", "paste"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")

    def add(name, code=0):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return str(tmp_path), add


def test_each_missing_tool_is_named_with_a_way_to_get_it(tools):
    path, _ = tools
    done = run("--check", path=path)
    assert done.returncode == 1
    for tool in ("kubectl: https://", "helm: https://", "kind: go install", "docker or podman: "):
        assert tool in done.stderr


def test_an_engine_whose_daemon_does_not_answer_is_missing(tools):
    path, add = tools
    for name in ("kubectl", "helm", "kind"):
        add(name)
    add("docker", 1)
    done = run("--check", path=path)
    assert done.returncode == 1 and "docker or podman: " in done.stderr and "kubectl:" not in done.stderr
    add("docker")
    assert run("--check", path=path).returncode == 0


def test_an_existing_cluster_needs_neither_kind_nor_an_engine(tools):
    path, add = tools
    for name in ("kubectl", "helm"):
        add(name)
    assert run("--existing-cluster", "--check", path=path).returncode == 0


def test_an_unknown_option_prints_the_usage(tools):
    path, _ = tools
    done = run("--nothing", path=path)
    assert done.returncode == 2 and "unknown option --nothing" in done.stderr and "--recreate" in done.stderr


def test_an_image_that_has_changed_replaces_the_pods_and_the_job_runs_again(tools, tmp_path):
    path, add = tools
    for name in ("kubectl", "helm"):
        add(name)
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n'
            f'case "$*" in *"--filename -") cat >>{tmp_path}/calls ;; *"get nodes"*) echo node-0 ;;'
            ' *scontrol*) echo "JobId=1 JobState=COMPLETED" ;; esac\n'
        )
    archives = [tmp_path / "podbridge.tar", tmp_path / "slurm.tar"]
    words = ["--existing-cluster", "--load", "true", "--image-archive", archives[0], "--slurm-archive", archives[1]]

    def annotations(*contents):
        for archive, content in zip(archives, contents, strict=True):
            archive.write_text(content)
        (tmp_path / "calls").unlink(missing_ok=True)
        done = run(*words, path=path)
        assert done.returncode == 0, done.stderr
        calls = (tmp_path / "calls").read_text()
        assert calls.index("kubectl delete job hello") < calls.index("kubectl apply --filename hack/slurm/hello.yaml")
        hub = re.search(r"podAnnotations\.podbridge/image=(\w+) ", calls)[1]
        return hub, re.search(r'annotations: \{podbridge/image: "(\w+)"\}', calls)[1]

    hub, slurm = annotations("a", "b")
    assert annotations("a", "b") == (hub, slurm)
    assert [new == old for new, old in zip(annotations("new", "b"), (hub, slurm), strict=True)] == [False, True]
    assert [new == old for new, old in zip(annotations("a", "new"), (hub, slurm), strict=True)] == [True, False]


def test_compose_builds_both_images_and_shares_what_slurms_tools_need():
    compose = yaml.safe_load((places.CHECKOUT / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        assert (places.CHECKOUT / service["build"]["dockerfile"]).exists()
        assert {"slurm:/etc/slurm", "run:/run", "work:/work"} <= set(service["volumes"])
    used = {volume.partition(":")[0] for service in services.values() for volume in service["volumes"]}
    assert {name for name in used if name.isalpha()} == set(compose["volumes"])
    assert all(port.startswith("127.0.0.1:") for port in services["slurm"]["ports"])
