"""``podbridge get queues`` and ``explain queue``, and the completion of their names."""

import json
import re

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from bridge.apps.cli import completing, explain_objects, get, kubectl, output, queues
from bridge.apps.cli.main import cli
from bridge.apps.cli.session import CommandSession
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError
from tests import builders
from tests.fakes.kube_answers import KubeAnswers, discovery

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


def master(name="batch", reason="InStep", flavors=(), **spec):
    ready = {"type": "Ready", "status": str(reason == "InStep"), "reason": reason, "message": f"because {reason}"}
    status = {"conditions": [ready], "offered": "1 of 2", "flavors": list(flavors)} if reason else {}
    metadata = {"name": name, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": spec, "status": status}


def cluster_queue(**spec):
    def entry(name, cpu, memory):
        amounts = (("cpu", cpu), ("memory", memory))
        return {"name": name, "resources": [{"name": key, "nominalQuota": value} for key, value in amounts]}

    def used(name, cpu, memory):
        return {"name": name, "resources": [{"name": "cpu", "total": cpu}, {"name": "memory", "total": memory}]}

    groups = [{"flavors": [entry("batch-a", "8", "16Gi"), entry("batch-b", "1500m", "0")]}]
    return {
        "metadata": {"name": "batch"},
        "spec": {"resourceGroups": groups, "stopPolicy": "None", **spec},
        "status": {
            "pendingWorkloads": 2,
            "admittedWorkloads": 3,
            "flavorsReservation": [used("batch-a", "6", "4Gi"), used("batch-b", "500m", 0)],
        },
    }


def workload(name, *, priority=0, created="2026-01-01T00:00:00Z", queue="batch", reserved=False, message=""):
    condition = {"type": "QuotaReserved", "status": str(reserved), "message": message}
    metadata = {"name": name, "namespace": "team", "creationTimestamp": created}
    spec = {"queueName": queue, "priority": priority}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": [condition]}}


FLAVORS = [
    {"name": "site", "flavor": "batch-a", "pool": "a", "state": "Offered"},
    {"name": "slurm", "flavor": "batch-b", "state": "Held", "reason": "no node is ready"},
]


class Session(CommandSession):
    """A session of a command, without its connections."""

    namespace = "team"

    slurm_answers = True

    def __init__(self, kube):
        self.kube, self.config = kube, Config(slurm_rest_api="", pools={"nats": {"servers": ["nats://127.0.0.1:1"]}})


@pytest.fixture
def command(monkeypatch):
    """Run a command with the answers of an API server; return its result."""

    def run(kube, *args):
        for module in (explain_objects, get):
            monkeypatch.setattr(module, "CommandSession", lambda _: Session(kube))
        return CliRunner().invoke(cli, args)

    return run


def server(*queues_, **more):
    local = [{"metadata": {"namespace": "team", "name": "batch"}, "spec": {"clusterQueue": "batch"}}]
    return KubeAnswers(
        {
            **discovery({"vk.io/v1": ["masterqueues"], "kueue.x-k8s.io/v1beta2": ["localqueues", "workloads"]}),
            "/apis/vk.io/v1/masterqueues": {"items": list(queues_)},
            f"{KUEUE}/clusterqueues/batch": cluster_queue(),
            f"{KUEUE}/localqueues": {"items": local},
            f"{KUEUE}/workloads": {"items": []},
            "/apis/events.k8s.io/v1/events": {"items": []},
            **more,
        }
    )


def test_a_queue_shows_its_workloads_and_the_quota_in_use():
    found = queues.record(master(flavors=FLAVORS, localQueues=[{"namespace": "team"}]), cluster_queue())
    assert (found["cpu"], found["memory"]) == (
        {"used": 6.5, "total": 9.5},
        {"used": 4.0 * 2**30, "total": 16.0 * 2**30},
    )
    assert (found["pending"], found["admitted"], found["offered"]) == (2, 3, "1 of 2")
    assert found["local_queues"] == ["team/batch"]


def test_a_queue_that_nobody_has_read_has_empty_figures():
    found = queues.record(master(reason=""), {})
    assert (found["ready"], found["cpu"], found["pending"]) == ("Unknown", None, 0)
    report = queues.describe(master(reason=""), {}, [])
    assert report["next"].startswith("the controllers have not read it: set queues.enabled")


def test_pending_workloads_are_in_the_order_of_kueue():
    waiting = [
        workload("late", created="2026-01-02T00:00:00Z"),
        workload("early"),
        workload("urgent", priority=9, created="2026-01-03T00:00:00Z", message="insufficient quota for cpu"),
        workload("admitted", reserved=True),
    ]
    report = queues.describe(master(flavors=FLAVORS), cluster_queue(), waiting)
    assert [item["workload"] for item in report["pending"]] == ["team/urgent", "team/early", "team/late"]
    assert report["pending"][0]["message"] == "insufficient quota for cpu"
    assert [output.cell(flavor, "cpu") for flavor in report["flavors"]] == ["6/8", "0.5/1.5"]


@pytest.mark.parametrize(
    ("queue", "cluster", "summary", "advice"),
    [
        (master(flavors=FLAVORS), cluster_queue(), "admits workloads; 1 of 2 flavors offered", ""),
        (master(flavors=FLAVORS), cluster_queue(stopPolicy="Hold"), "stopped (Hold)", ""),
        (master(flavors=FLAVORS[1:]), cluster_queue(), "admits workloads", "no flavor is offered"),
        (master(reason="Invalid"), cluster_queue(), "not in step (Invalid)", "correct the field"),
        (master(reason="Conflict"), cluster_queue(), "not in step (Conflict)", "delete or rename"),
    ],
)
def test_the_summary_and_the_next_step_follow_the_state(queue, cluster, summary, advice):
    report = queues.describe(queue, cluster, [])
    assert report["summary"].startswith(summary)
    assert report["next"].startswith(advice)
    assert bool(report["next"]) == bool(advice)


def test_the_text_names_few_pending_workloads_unless_it_is_wide():
    report = queues.describe(master(flavors=FLAVORS), cluster_queue(), [workload(f"w{n}") for n in range(7)])
    short, wide = queues.in_lines(report, wide=False), queues.in_lines(report, wide=True)
    assert short["pending"][-1] == "and 2 more: -o wide lists them"
    assert len(short["pending"]) == queues.FEW + 1
    assert "".join(wide["pending"]).count("team/w") == 7


def test_get_has_all_forms(command):
    kube = server(master(flavors=FLAVORS))
    assert command(kube, "get", "queues").output.split()[:4] == ["QUEUE", "READY", "OFFERED", "PENDING"]
    assert "because InStep" in command(kube, "get", "queues", "-o", "wide").output
    assert json.loads(command(kube, "get", "queues", "-o", "json").output)[0]["queue"] == "batch"
    assert yaml.safe_load(command(kube, "get", "queues", "-o", "yaml").output)[0]["admitted"] == 3
    assert command(kube, "get", "queues", "-o", "name").output == "masterqueue.vk.io/batch\n"
    assert "No queues found." in command(server(), "get", "queues").output


def test_what_a_user_may_not_read_of_a_queue_is_not_said_to_be_nothing(command):
    paths = (f"{KUEUE}/clusterqueues/batch", f"{KUEUE}/localqueues")
    kube = server(master(flavors=FLAVORS), **dict.fromkeys(paths, KubeForbiddenError("you may not", status=403)))
    listed = command(kube, "get", "queues", "-o", "json")
    (found,) = json.loads(listed.stdout)
    assert (found["pending"], found["admitted"]) == (None, None)
    assert "not read: ClusterQueues: you may not" in listed.stderr
    report = json.loads(command(kube, "explain", "queue", "batch", "-o", "json").stdout)
    assert report["summary"] == "its ClusterQueue cannot be read; 1 of 2 flavors offered"
    assert report["not_read"] == ["ClusterQueues: you may not", "Workloads: you may not"]


def test_explain_has_all_forms_and_names_a_queue_that_does_not_exist(command):
    found = {f"{KUEUE}/workloads": {"items": [workload("mine"), workload("theirs", queue="other")]}}
    kube = server(master(flavors=FLAVORS), **found)
    shown = command(kube, "explain", "queue", "batch").output
    assert "team/mine" in shown
    assert "theirs" not in shown
    assert json.loads(command(kube, "explain", "queue", "batch", "-o", "json").output)["queue"]["queue"] == "batch"
    assert len(yaml.safe_load(command(kube, "explain", "queue", "batch", "-o", "yaml").output)["flavors"]) == 2
    assert "MasterQueue none does not exist" in str(command(kube, "explain", "queue", "none").exception)


def test_without_the_definition_the_command_names_it(command):
    error = command(KubeAnswers(discovery({})), "get", "queues").exception
    assert "no MasterQueues" in str(error)
    assert "config/crds.yaml" in error.hint


@pytest.mark.parametrize(("words", "typed", "found"), [(["get"], "q", "queues"), (["explain"], "q", "queue")])
def test_the_shell_completes_the_commands(words, typed, found):
    completion = ShellComplete(cli, {}, "podbridge", "_PODBRIDGE_COMPLETE")
    assert [item.value for item in completion.get_completions(words, typed)] == [found]


def test_the_shell_completes_the_forms():
    completion = ShellComplete(cli, {}, "podbridge", "_PODBRIDGE_COMPLETE")
    assert "name" in [item.value for item in completion.get_completions(["get", "queues", "-o"], "")]


def admitted_workload(name, flavor):
    found = workload(name, reserved=True)
    found["status"]["admission"] = {"podSetAssignments": [{"flavors": {"cpu": flavor, "memory": flavor}}]}
    return found


def test_explain_has_the_flavors_the_workloads_and_the_events(command):
    finished = admitted_workload("done", "batch-a")
    finished["status"]["conditions"].append({"type": "Finished", "status": "True"})
    items = [workload("mine", message="no quota"), admitted_workload("runs", "batch-a"), finished]
    queue = master(flavors=FLAVORS, localQueues=[{"namespace": "team"}])
    queue["spec"]["flavors"] = [{"name": "site", "canLendTo": [{"queue": "guests"}]}]
    event = {
        "regarding": {"uid": "u"},
        "reason": "QueueEvicted",
        "note": "one workload",
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
    }
    found = {f"{KUEUE}/workloads": {"items": items}, "/apis/events.k8s.io/v1/events": {"items": [event]}}
    kube = server(queue, **found)
    report = json.loads(command(kube, "explain", "queue", "batch", "-o", "json").output)
    assert [[output.cell(flavor, key) for key in list(flavor)[1:]] for flavor in report["flavors"]] == [
        ["batch-a", "Offered", "6/8", "4.0/16.0Gi", ""],
        ["batch-b", "Held", "0.5/1.5", "0.0/0.0Gi", "no node is ready"],
    ]
    assert [item["workload"] for item in report["pending"]] == ["team/mine"]
    assert [line.split(" (")[0] for line in report["admitted"]] == ["team/runs batch-a"]
    assert report["local_queues"] == ["team/batch"]
    assert report["cluster_queue"]["lends_to"] == "guests"
    assert report["events"][0].endswith("QueueEvicted: one workload")
    shown = command(kube, "explain", "queue", "batch").output
    assert shown.startswith("MasterQueue batch: admits workloads; 1 of 2 flavors offered")
    assert "Ready=True InStep: because InStep" in shown


def kueue_waits(owner, answer=None):
    """An API server with a suspended Job, a pod that Kueue holds, and their Workload."""
    item = workload("job-train-1", message="insufficient quota for cpu in flavor batch-a")
    item["metadata"]["ownerReferences"] = [{"uid": owner}]
    metadata = {"namespace": "team", "uid": "j", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = {"metadata": {**metadata, "name": "train"}, "spec": {"suspend": True, "completions": 4}, "status": {}}
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked by gates"}
    pod = builders.pod("p", conditions=[gated], schedulingGates=gates, schedulerName="slurm-bridge-scheduler")
    pod["metadata"] |= {**metadata, "uid": "p", "name": "alone"}
    return server(
        **{
            "/apis/batch/v1/namespaces/team/jobs/train": job,
            "/api/v1/namespaces/team/pods/alone": pod,
            "/api/v1/namespaces/team/pods": {"items": []},
            f"{KUEUE}/namespaces/team/workloads": {"items": [workload("other"), item]} if answer is None else answer,
        },
    )


@pytest.mark.parametrize(("words", "owner"), [(("job", "train"), "j"), (("pod", "alone"), "p")])
def test_what_kueue_holds_says_why_and_what_to_do(command, words, owner):
    report = json.loads(command(kueue_waits(owner), "explain", *words, "-n", "team", "-o", "json").output)
    assert report["summary"].endswith(
        "Kueue has no quota for it: queue batch: insufficient quota for cpu in flavor batch-a"
    )
    assert report["next"] == "kubectl describe workload job-train-1 -n team"


def test_a_suspended_job_without_kueue_is_resumed_by_its_owner(command):
    report = json.loads(command(kueue_waits("another"), "explain", "job", "train", "-n", "team", "-o", "json").output)
    assert report["summary"] == "0 of 4 pods done, suspended"
    assert report["next"].startswith("kubectl patch job train -n team --type=merge")
    refused = kueue_waits("j", KubeForbiddenError("GET workloads: refused", status=403))
    report = json.loads(command(refused, "explain", "job", "train", "-n", "team", "-o", "json").output)
    assert "Workloads: GET workloads: refused" in report["not_read"]


def test_explain_needs_no_permission_for_kueue_and_events(command):
    refused = (f"{KUEUE}/clusterqueues/batch", f"{KUEUE}/localqueues", "/apis/events.k8s.io/v1/events")
    queue = master(flavors=FLAVORS)
    kube = server(queue, **{path: KubeForbiddenError("no") for path in refused})
    shown = command(kube, "explain", "queue", "batch")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"batch-b +Held +no node is ready", shown.output)


def test_the_shell_completes_the_names_of_queues(monkeypatch):
    kube = server(master("batch"), master("gpus", reason="Invalid"))
    monkeypatch.setattr(completing, "_session", lambda params: Session(kube))
    assert kubectl.completions(["explain", "queue", ""]) == ["batch\tInStep", "gpus\tInvalid", ":4"]
    assert kubectl.completions(["explain", "queue", "g"]) == ["gpus\tInvalid", ":4"]
