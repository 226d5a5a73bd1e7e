"""A pod ends when its job has ended, and a job when its pod has ended: cases found in a review."""

import json
import shutil
import signal
import subprocess
import time
from collections import Counter

import pytest

from cluster.polling import eventually
from cluster.systems import kube
from cluster.world import LABEL, NODE
from tests.e2e.test_commands import podbridge

pytestmark = [pytest.mark.real, pytest.mark.parametrize("world", ["26.05"], indirect=True)]

SLURM_NODE = "bridge.vk.io/slurm-node"


def test_a_pod_without_grace_keeps_its_job_until_its_containers_have_ended(clean):
    """The grace period is 0 in the pod, or the pod is deleted by force."""
    world = clean
    own = world.create(terminationGracePeriodSeconds=0)
    forced = world.create()
    jobs = [world.labelled(world.running(pod)) for pod in (own, forced)]
    world.cluster.kill("kwok", signal.SIGSTOP)
    try:
        world.delete(own)
        world.delete(forced, grace=0)
        for pod in (own, forced):
            world.seen(pod, "marked", lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 0)
        world.polled()
        assert [world.queue().get(job) for job in jobs] == ["RUNNING", "RUNNING"]
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)
    for pod in (own, forced):
        world.gone(pod)
    eventually(lambda: not set(jobs) & world.queue().keys(), "the jobs gone", 10)


def test_a_grace_period_of_a_year_ends_soon_after_the_job(clean):
    """The long grace period is in the pod, or in a deletion before the end of the job."""
    world, year = clean, 31536000
    running, deleted = world.create(terminationGracePeriodSeconds=year), world.create()
    jobs = [world.labelled(world.running(pod)) for pod in (running, deleted)]
    world.cluster.kill("kwok", signal.SIGSTOP)  # containers that ignore SIGTERM
    try:
        world.delete(deleted, grace=year)
        world.polled()
        assert world.get(deleted)["metadata"]["deletionGracePeriodSeconds"] == year, "its job runs"
        world.slurm("scancel", *map(str, jobs))
        for pod in (running, deleted):
            found = world.seen(pod, "shortened", lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 300)
            assert found["status"]["reason"] == "Cancelled"
            assert world.events(pod, "Cancelled")
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)
    for pod in (running, deleted):
        world.gone(pod)


def test_a_pod_outlives_the_label_and_the_node_object_of_its_node(clean):
    world = clean
    api, node = world.api, "renamed-3"
    labels = {"slinky.slurm.net/slurm-nodename": "node-3"}
    made = kube.node_object(node, world.cluster.options.size)
    labelled = {**made, "metadata": {**made["metadata"], "labels": {**made["metadata"]["labels"], **labels}}}
    api("DELETE", "/api/v1/nodes/node-3")
    api("POST", "/api/v1/nodes", labelled)
    try:
        pod = world.create(nodeSelector={"kubernetes.io/hostname": node})
        found = world.running(pod)
        assert (found["metadata"]["annotations"][NODE], found["metadata"]["annotations"][SLURM_NODE]) == (
            node,
            "node-3",
        )
        path = f"/api/v1/nodes/{node}"
        api.merge(path, {"metadata": {"labels": dict.fromkeys(labels)}})
        world.polled()
        api("DELETE", path)
        world.polled()
        api("POST", "/api/v1/nodes", made)
        world.polled()
        found = world.get(pod)
        assert found["status"]["phase"] == "Running"
        assert not found["metadata"].get("deletionTimestamp")
        assert world.queue()[world.job_of(found)] == "RUNNING"
        world.clear()
    finally:
        api.request("DELETE", f"/api/v1/nodes/{node}")
        api.ensure("/api/v1/nodes", kube.node_object("node-3", world.cluster.options.size))
        eventually(lambda: kube.is_ready(world.kube_node("node-3")), "the node ready")


def test_a_second_job_that_appears_after_the_bind_is_cancelled(clean):
    world = clean
    pod = world.running(world.create())
    first = world.labelled(pod)
    link = json.loads(world.job_comment(first))
    second = int(world.slurm("sbatch", "--parsable", "-H", "-n1", "--mem=1", "--wrap=sleep 600").split(";")[0])
    world.slurm("scontrol", "update", f"jobid={second}", f"admincomment={json.dumps(link, separators=(',', ':'))}")
    world.cluster.run_slurm("scontrol", "release", str(second), check=False)  # it may be cancelled already
    eventually(lambda: second not in world.queue(), "the second job cancelled", 30)
    assert world.queue()[first] == "RUNNING"
    found = world.get(pod)
    assert found["metadata"]["labels"][LABEL] == str(first)
    assert not found["metadata"].get("deletionTimestamp")


def test_binds_that_fail_are_tried_again_later_and_later(clean):
    """30 pods whose bindings are refused for eight seconds: 3 to 10 attempts each, then all run."""
    world, pods = clean, []
    name, base = "no-bindings", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false", "message": "no"}]}
    world.api("POST", f"{base}ies", {"metadata": {"name": name}, "spec": spec})
    bound_to = {"policyName": name, "validationActions": ["Deny"]}
    world.api("POST", f"{base}ybindings", {"metadata": {"name": name}, "spec": bound_to})
    try:
        eventually(lambda: _refuses_bindings(world), "refused")
        pods = [world.create() for _ in range(30)]
        uids = {pod["metadata"]["uid"] for pod in pods}
        eventually(lambda: uids <= _with_running_jobs(world), "all jobs run")
        time.sleep(8)
    finally:
        for kind in ("ybindings", "ies"):
            world.api.request("DELETE", f"{base}{kind}/{name}")
    for pod in pods:
        world.running(pod, 40)
    ours = {pod["metadata"]["name"] for pod in pods}
    objects = [event.get("objectRef") or {} for event in world.cluster.audit_events() if event["verb"] == "create"]
    tries = Counter(o["name"] for o in objects if o.get("subresource") == "binding" and o["name"] in ours)
    assert tries.keys() == ours
    assert min(tries.values()) >= 3
    assert max(tries.values()) <= 10, tries  # without a back-off there were hundreds
    lines = world.cluster.processes.log("podbridge").read_text().splitlines()
    assert sum("call failed" in line and "call=bind" in line for line in lines) <= 3


def _with_running_jobs(world):
    """Return the UIDs of the pods with a job that runs."""
    return {uid for uid, jobs in world.jobs_by_uid().items() if jobs[0][1] == "RUNNING"}


def _refuses_bindings(world):
    """Return whether the policy is in force: it refuses a binding before the API server looks for the pod and the node.

    The node must not be one that podbridge guards: the API server reports only one of several refusals.
    """
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    body = {"metadata": {"name": "nobody"}, "target": target}
    return "no-bindings" in str(world.api.request("POST", f"{world.path('nobody')}/binding", body)[1])


def test_a_slurmctld_without_its_state_ends_no_pod_until_confirmed(clean):
    """A slurmctld without state: the brake holds 13 pods. The state is restored, then lost again and confirmed."""
    world, cluster = clean, clean.cluster
    pods = [world.create() for _ in range(13)]
    jobs = {pod["metadata"]["name"]: world.labelled(world.running(pod)) for pod in pods}
    state, kept = (cluster.state / "slurm" / name for name in ("state", "state-kept"))

    def restart(before):
        cluster.stop_daemon("slurmctld")
        before()
        cluster.start_daemon("slurmctld")

    def empty():
        for file in state.iterdir():
            file.unlink() if file.is_file() else shutil.rmtree(file)

    def put_back():
        empty()
        subprocess.run(["cp", "-a", f"{kept}/.", str(state)], check=True)

    def marked(value):
        return all(world.condition(pod, "bridge.vk.io/JobMissing").get("status") == value for pod in pods)

    restart(lambda: (subprocess.run(["cp", "-a", str(state), str(kept)], check=True), empty()))
    try:
        eventually(lambda: marked("True"), "every pod says that its job is missing", 40)
        assert "slurm: engaged since" in podbridge(world, "brake", "status").stdout
        eventually(lambda: world.events(pods[0], "JobsMissing"), "an Event")
        new = world.create()
        eventually(lambda: world.condition(new, "PodScheduled").get("reason") == "SlurmJobsMissing", "told", 20)
        report = world.explained("pod", new["metadata"]["name"])
        assert report["summary"].startswith("pending: SlurmJobsMissing: ")
        assert report["next"] == "podbridge brake"
        held = world.explained("pod", pods[0]["metadata"]["name"])["conditions"]
        assert any(line.startswith("bridge.vk.io/JobMissing=True ") for line in held), held
        world.delete(new, grace=0)
        world.gone(new)
        world.polled()
        found = [world.get(pod) for pod in pods]
        assert all(pod and not pod["metadata"].get("deletionTimestamp") for pod in found)
    finally:
        restart(put_back)
    eventually(lambda: marked("False"), "every pod says that its job is there", 40)
    eventually(lambda: "No brake is engaged" in podbridge(world, "brake", "status").stdout, "no brake")
    for pod in pods:
        found = world.get(pod)
        assert not found["metadata"].get("deletionTimestamp")
        assert world.queue()[jobs[pod["metadata"]["name"]]] == "RUNNING"
    restart(empty)
    shutil.rmtree(kept)
    eventually(lambda: "slurm: engaged since" in podbridge(world, "brake", "status").stdout, "the brake", 40)
    podbridge(world, "brake", "confirm", "slurm")
    for pod in pods:
        world.gone(pod, 20)
    eventually(lambda: world.events(pods[0], "JobGone"), "an Event, which is written beside the end")
