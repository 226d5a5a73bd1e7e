"""Why a pod waits: for each situation, the condition, the summary and the next step name the same true cause.

With Slurm's token, ``podbridge explain`` reads Slurm; without it, it has only what the hub has written to the pod.
"""

import html
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.polling import eventually
from cluster.systems import dashboard
from generate.manifests import template

pytestmark = pytest.mark.real

FULL = {"cpu": "128", "job": {"timelimit": "30"}}
RESERVED = ("scontrol", "create", "reservation", "reservationname=later", "users=root", "nodes=node-3", "duration=60")


@dataclass
class Situation:
    """A pod that waits: what its condition, its summary and its next step must contain.

    ``after`` is a command of Slurm that is run once its job exists; ``step`` without Slurm's token is ``alone``.
    """

    name: str
    told: tuple[str, ...]
    summary: str
    step: str
    pod: dict[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    place: dict[str, Any] = field(default_factory=dict)


EXPLAIN = "podbridge explain pod"
SITUATIONS = [
    Situation(
        "full",
        ("Resources", "it asks for 64 CPUs, 1 GiB"),
        "its Slurm job is pending: Resources; it asks for 64 CPUs, 1 GiB",
        "",
        {"cpu": "64", "job": {"priority": "1000"}},
        lines=("no room now: 0 of 128 CPUs free until ", "held: 128 CPUs, 1 GiB by slurm-bridge/fill-0"),
        place={"place": "local", "eligible": True, "room": False, "state": "queued", "reason": "Resources"},
    ),
    Situation(
        "no-memory",
        ("it asks for 1 CPU, 500 GiB",),
        "it asks for 1 CPU, 500 GiB",
        "set resources.requests.memory",
        {"memory": None},
        lines=("the pod requests no memory, so Slurm gives it all memory of a node",),
    ),
    Situation(
        "never",
        ("4 too little cpu",),
        "no node fits",
        "change the pod",
        {"cpu": "200"},
        lines=("never fits",),
        place={"eligible": False, "job": ""},
    ),
    Situation(
        "selector",
        ("nodeSelector disk=none does not match",),
        "no node fits",
        "change the pod",
        {"nodeSelector": {"disk": "none"}},
        lines=("node-0, node-1, node-2, node-3: never fits: nodeSelector disk=none",),
    ),
    Situation(
        "partition",
        ("partition",),
        "SlurmRefused",
        "kubectl annotate pod partition -n slurm-bridge --overwrite slurmjob.slinky.slurm.net/partition=main",
        {"job": {"partition": "mian"}},
        lines=("never fits: not in partition mian",),
    ),
    Situation(
        "held",
        ("JobHeld",),
        "JobHeld",
        "scontrol release",
        after=("scontrol", "hold", "{job}"),
        place={"state": "queued", "reason": "JobHeldAdmin", "expected_start": ""},
    ),
    Situation(
        "later",
        ("BeginTime",),
        "BeginTime",
        "when it may start",
        after=("scontrol", "update", "jobid={job}", "starttime=now+2hours"),
    ),
    Situation(
        "dependency",
        ("Dependency",),
        "Dependency",
        "the job that it waits for",
        after=("scontrol", "update", "jobid={job}", "dependency=afterany:{first}"),
    ),
    Situation(
        "reservation", ("Reservation",), "Reservation", "scontrol show reservation", {"job": {"reservation": "later"}}
    ),
    Situation("closed", ("Partition",), "Partition", "another", {"job": {"partition": "short"}}),
    Situation(
        "drained",
        ("1 cordoned",),
        "NoRoomNow",
        "the pod starts when one opens: kubectl get nodes; sinfo -R",
        {"nodeSelector": {"kubernetes.io/hostname": "node-2"}},
        lines=("node-2: no room now: ", "DRAIN", "in Slurm: bad fan"),
    ),
    Situation(
        "incomplete",
        ("1 of 2",),
        "GangIncomplete",
        "create the other pods of the group",
        metadata={
            "labels": {"kueue.x-k8s.io/pod-group-name": "pair"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        },
    ),
    Situation(
        "gate", (), "SchedulingGated", "a gate is removed by", {"schedulingGates": [{"name": "example.com/wait"}]}
    ),
    Situation(
        "volume",
        ("data",),
        "VolumeNotReady",
        "kubectl describe pvc",
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    ),
    Situation(
        "device",
        ("claim",),
        "ResourceClaim",
        "kubectl get resourceclaims",
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "absent"}]},
    ),
]


@pytest.fixture(scope="module")
def waiting(world):
    """All situations at once, while four pods fill the nodes."""
    if world.cluster.options.slurm != "26.05":
        pytest.skip("the messages of the other versions differ: tests/contract/slurm compares their reasons")
    world.clear()
    fill = [world.running(world.create(f"fill-{number}", **FULL)) for number in range(4)]
    later = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 7200))
    world.slurm(*RESERVED, f"starttime={later}")
    world.slurm("scontrol", "update", "partitionname=short", "state=down")
    first = world.labelled(fill[0])
    world.slurm("scontrol", "update", "nodename=node-2", "state=drain", "reason=bad fan")
    eventually(lambda: world.kube_node("node-2")["spec"].get("unschedulable"), "the cordon", 20)
    pods = {each.name: _create(world, each) for each in SITUATIONS}
    for each in SITUATIONS:
        if each.after:
            job = world.labelled(pods[each.name])
            world.slurm(*(word.format(job=job, first=first) for word in each.after))
    yield pods
    world.clear()
    world.slurm("scontrol", "update", "partitionname=short", "state=up")
    world.slurm("scontrol", "delete", "reservationname=later")
    world.slurm("scontrol", "update", "nodename=node-2", "state=resume")


def _create(world, situation):
    body = world.manifest(situation.name, **_options(situation.pod))
    for key, value in situation.metadata.items():
        body["metadata"][key] = {**body["metadata"].get(key, {}), **value}
    return world.api("POST", "/api/v1/namespaces/slurm-bridge/pods", body)


def _options(pod):
    """Return the arguments of ``World.create``; without memory, the container requests only a CPU."""
    if pod.get("memory", "") is None:
        return {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]}
    return pod


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_a_waiting_pod_says_why_and_what_to_do(world, waiting, situation):
    pod = waiting[situation.name]
    for text in situation.told:
        eventually(
            lambda t=text: t.lower() in world.condition(pod, "PodScheduled").get("message", "").lower(), text, 40
        )
    report = world.explained("pod", situation.name)
    lines = [line for section in ("kubernetes", "slurm", "volumes", "nodes") for line in report[section]]
    assert situation.summary in report["summary"], report
    assert (situation.step in report["next"]) if situation.step else (report["next"] == ""), report
    for text in situation.lines:
        assert any(text in line for line in lines), lines
    (place,) = report["places"]
    expected = situation.place | ({"job": str(job)} if (job := world.job_of(world.get(pod))) else {})
    assert {key: place[key] for key in expected} == expected, place


def test_the_place_of_a_job_is_that_of_its_pod_and_has_slurms_estimate(world, waiting):
    def estimated():
        (place,) = world.explained("pod", "full")["places"]
        return place if place["expected_start"] else None

    place = eventually(estimated, "Slurm has computed the start", 60)
    assert world.explained("job", place["job"])["places"] == [place]


@pytest.fixture(scope="module")
def page(world, waiting):
    with dashboard.served(world) as served:
        yield served


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_the_web_page_says_the_same_without_a_token_of_slurm(world, waiting, page, situation):
    def shown():
        found = html.unescape(page.get(f"pods/slurm-bridge/{situation.name}")[1])
        return found if all(told.lower() in found.lower() for told in situation.told) else None

    text = eventually(shown, f"the page says {situation.told}", 40)
    summary, step = re.findall('class="lead">(.*?)</span>|<p class="next">Next: (.*?)</p>', text, re.S), situation.step
    assert summary[0][0], text
    assert step in "".join(next_step for _, next_step in summary), (step, summary)
    assert bool(step) == (len(summary) > 1), summary


def test_without_a_token_of_slurm_the_same_cause_is_shown(world, waiting):
    token = {"SLURM_JWT_FILE": "/nonexistent", "SLURM_JWT": ""}
    for name in ("full", "held", "partition", "volume", "gate"):
        situation = next(each for each in SITUATIONS if each.name == name)
        report = world.explained("pod", name, **token)
        assert report["not_read"], "Slurm cannot be read"
        assert all(text in report["summary"] for text in situation.told), report["summary"]
        assert situation.step in report["next"], report


def test_an_ordinary_user_needs_no_configuration_file(world, waiting, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"config": yaml.safe_load(Path(world.cluster.env["PODBRIDGE_CONFIG"]).read_text())}))
    published = template(f"--values={values}", "--show-only=templates/public-config.yaml")
    edit = ("rolebinding", "ada-edits", "-n", "slurm-bridge")
    world.cluster.kubectl("apply", "-f", "-", input=published)
    world.cluster.kubectl("create", *edit, "--clusterrole=edit", "--user=ada")
    kubeconfig = str(world.cluster.user_kubeconfig("ada"))
    env = {"PODBRIDGE_CONFIG": "", "KUBECONFIG": kubeconfig, "SLURM_JWT": "", "SLURM_JWT_FILE": ""}
    try:

        def busy():
            lines = world.explained("pod", "full", **env)["nodes"]
            return any("no room now: 0 of 128 CPUs free" in line and "by pods of podbridge" in line for line in lines)

        eventually(busy, "the hub has published who holds the nodes", 40)
        report = world.explained("pod", "full", **env)
        assert "it asks for 64 CPUs, 1 GiB" in report["summary"]
        assert any(line.startswith("Slurm: ") for line in report["not_read"]), report["not_read"]
        others = [f"--kubeconfig={kubeconfig}", "get", "configmaps", "-n", "kube-public"]
        assert "podbridge-public" not in world.cluster.kubectl(*others, check=False)
    finally:
        world.cluster.kubectl("delete", "-f", "-", input=published)
        world.cluster.kubectl("delete", *edit)


def test_a_job_shows_its_progress_and_why_its_pods_are_refused(world, waiting):
    created = [world.create_gang("refused", 2, job={"timelimit": "soon"}), world.create_gang("waits", 2, cpu="100")]
    try:
        report = eventually(
            lambda: (found := world.explained("job", "refused"))["refused"] and found, "the refusal", 20
        )
        assert report["summary"] == "0 of 2 pods exist: their creation is refused"
        assert report["refused"][0].startswith("annotation slurmjob.slinky.slurm.net/timelimit: 'soon' is not allowed")
        report = eventually(lambda: (one := world.explained("job", "waits"))["waiting"] and one, "its pods", 20)
        assert report["summary"] == "0 of 2 pods done, 2 waiting"
        assert report["next"].startswith(f"{EXPLAIN} waits-")
    finally:
        for gang in created:
            world.delete_gang(gang)


def test_the_creation_of_a_job_warns_of_what_will_be_refused_in_its_pods(world):
    container = {"name": "main", "image": "none"}
    template = {"metadata": {"annotations": {"slurmjob.slinky.slurm.net/timelimit": "soon"}}, "spec": {}}
    template["spec"] = {"restartPolicy": "Never", "containers": [container]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bad", "namespace": "slurm-bridge"}}
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "-f", "-"],
        input=json.dumps({**job, "spec": {"template": template}}),
        env={**os.environ, **world.cluster.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning: pods of Job bad will be refused: annotation slurmjob.slinky.slurm.net/timelimit" in done.stderr
    assert "Warning: pods of Job bad: spec.containers: no container requests memory" in done.stderr


def test_a_slurmrestd_that_is_down_is_the_cause(world, waiting):
    world.cluster.stop_daemon("slurmrestd")
    try:
        pod = world.create("down")
        eventually(lambda: world.condition(pod, "PodScheduled").get("reason") == "SlurmUnavailable", "told", 40)
        report = world.explained("pod", "down")
        assert report["summary"].startswith("pending: SlurmUnavailable: "), report
        assert report["next"] == "tell the administrator: podbridge check"
        assert any(line.startswith("Slurm: ") for line in report["not_read"]), report["not_read"]
    finally:
        world.cluster.start_daemon("slurmrestd")
    eventually(lambda: world.condition(pod, "PodScheduled").get("reason") == "SlurmPending", "it goes on by itself", 40)
    world.delete(pod, grace=1)
    world.gone(pod)
