"""hack/kind.sh: options, and the check of its tools. tests/e2e/helm runs it on a cluster."""

import os
import re
import subprocess

import pytest
import yaml

from cluster import places

SCRIPT = places.CHECKOUT / "hack" / "kind.sh"


def run(*args, path, **changes):
    env = {**os.environ, "PATH": path, **changes}
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


@pytest.fixture
def called(tools, tmp_path):
    """Return a function that runs the script with stub tools and returns their calls, one a line.

    The namespace ``created`` is one that the script has created, every other one that it asks for exists. A call that
    contains ``failing`` fails; the script must then end with an error.
    """
    path, add = tools
    for name in ("kubectl", "helm", "kind", "docker"):
        add(name)
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n'
            'case "$*" in *"$FAILING"*) exit 1 ;; esac\n'
            f'case "$*" in *"--filename -") cat >>{tmp_path}/calls ;; *"get nodes"*) echo node-0 ;;'
            ' *"get namespaces --selector"*) echo "namespace/$CREATED" ;; "get namespace $CREATED") exit 1 ;;'
            ' *scontrol*) echo "JobId=1 JobState=COMPLETED" ;; esac\n'
        )
    archives = [tmp_path / "podbridge.tar", tmp_path / "slurm.tar"]

    def call(*words, contents=("", ""), created="slurm", failing=""):
        for archive, content in zip(archives, contents, strict=True):
            archive.write_text(content)
        (tmp_path / "calls").unlink(missing_ok=True)
        files = ("--image-archive", archives[0], "--slurm-archive", archives[1])
        done = run(*files, *words, path=path, CREATED=created, FAILING=failing or "no call")
        assert done.returncode == bool(failing), done.stderr
        assert ("error: " in done.stderr) == bool(failing)
        return (tmp_path / "calls").read_text()

    return call


EXISTING = ("--existing-cluster", "--load", "true")
MANIFESTS = r"https://github\.com/kubernetes-sigs/kueue/releases/download/v[0-9.]+/manifests\.yaml"


def test_kueue_is_installed_and_ready_before_the_job_and_podbridge_follows_its_queues(called):
    calls = called(*EXISTING, "--kueue", created="kueue-system")
    assert "--set config.queues.enabled=true" in re.search(r"^helm upgrade .*$", calls, re.MULTILINE)[0]
    steps = (
        "kubectl label namespace kueue-system podbridge/created-by=kind.sh",
        f"kubectl apply --server-side --filename {MANIFESTS}",
        "kubectl rollout status --namespace kueue-system ",
        "kubectl apply --filename hack/slurm/queue.yaml",
        "kubectl wait --for condition=Ready masterqueue/slurm ",
        "kubectl label --local --filename hack/slurm/hello.yaml kueue.x-k8s.io/queue-name=slurm ",
        "kubectl wait --namespace slurm-bridge --for condition=complete job/hello ",
    )
    found = [re.search(f"^{step}", calls, re.MULTILINE).start() for step in steps]
    assert found == sorted(found)
    other = called(*EXISTING)
    assert "kueue" not in other and "queue.yaml" not in other


def test_the_manifests_of_kueue_can_be_a_file(called):
    own = ("--kueue-manifests", "own.yaml")
    calls = called(*EXISTING, "--kueue", *own)
    assert "kubectl apply --server-side --filename own.yaml\n" in calls and "https://github" not in calls
    calls = called(*EXISTING, "--delete", *own, created="kueue-system")
    assert "kubectl delete --ignore-not-found --filename own.yaml" in calls and "https://github" not in calls


def test_the_deletion_removes_all_pods_before_podbridge(called):
    calls = called(*EXISTING, "--delete", created="slurm-bridge")
    assert calls.index("kubectl delete namespace slurm-bridge") < calls.index("helm uninstall")
    assert "kubectl delete namespace slurm-bridge" not in called(*EXISTING, "--delete")
    failed = called(*EXISTING, "--delete", created="slurm-bridge", failing="delete namespace slurm-bridge")
    assert "helm uninstall" not in failed


def test_the_deletion_removes_only_a_kueue_that_the_script_has_installed(called):
    own = called(*EXISTING, "--delete", created="kueue-system")
    deleted = re.search(f"^kubectl delete .*--filename {MANIFESTS}", own, re.MULTILINE)
    objects = own.index("kubectl delete workloads.kueue.x-k8s.io,localqueues,")
    assert own.index("helm uninstall") < objects < deleted.start()
    assert own.index("kubectl delete --filename hack/slurm/queue.yaml") < own.index("helm uninstall")
    other = called(*EXISTING, "--delete")
    assert "helm uninstall" in other and "kueue" not in other and "localqueues" not in other


def test_the_deletion_goes_on_after_that_of_kueue_has_failed_and_ends_with_an_error(called):
    calls = called(*EXISTING, "--delete", created="kueue-system", failing="/manifests.yaml")
    last = "kubectl delete namespace --selector podbridge/created-by=kind.sh --wait=false\n"
    assert "/manifests.yaml" in calls and calls.endswith(last)
    assert called(*EXISTING, "--recreate", created="kueue-system", failing="/manifests.yaml") == calls


def test_podbridge_stays_away_from_the_nodes_of_slurm_if_there_are_others(called, tmp_path):
    nodes = tmp_path / "kubectl"
    one = nodes.read_text()
    assert "affinity" not in called(*EXISTING)
    nodes.write_text(one.replace("echo node-0", r'case "$*" in *--selector\ sch*) echo node-0 ;; *) seq 3 ;; esac'))
    (tmp_path / "seq").symlink_to("/usr/bin/seq")
    assert re.search(r"^helm upgrade .* --values \S+/affinity.yaml$", called(*EXISTING), re.MULTILINE)


def test_core_ends_after_the_chart(called):
    calls = called(*EXISTING, "--core")
    assert "helm upgrade" in calls and "hello" not in calls and "slurm-bridge " not in calls


def test_recreate_deletes_first_and_installs_again(called):
    calls = called(*EXISTING, "--recreate")
    waits = calls.index("kubectl wait --for delete namespace --selector podbridge/created-by=kind.sh")
    assert calls.index("helm uninstall") < waits < calls.index("helm upgrade")
    assert "kind delete" not in calls
    calls = called("--recreate")
    assert calls.index("kind delete cluster --name podbridge") < calls.index("kind create cluster --name podbridge")
    assert "helm uninstall" not in calls and "helm upgrade" in calls


def test_an_image_that_has_changed_replaces_the_pods_and_the_job_runs_again(called):
    def annotations(*contents):
        calls = called(*EXISTING, contents=contents)
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
