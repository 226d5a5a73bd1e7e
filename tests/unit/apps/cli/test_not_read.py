"""Commands for users print what they know if Slurm, nodes or Events cannot be read, and say what is missing."""

import functools
import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bridge import clock
from bridge.apps.cli import explain_objects, get
from bridge.apps.cli.main import cli
from bridge.apps.cli.session import SLURM, CommandSession
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, SlurmUnavailableError
from bridge.slurm import cluster_sums
from bridge.slurm.cluster_sums import PartitionSums
from bridge.slurm.models import Job, JobLink, Node, PodRef
from tests import builders
from tests.fakes.kube_answers import KubeAnswers

SUMS = "/api/v1/namespaces/podbridge/configmaps/podbridge-slurm"
NODE = Node("n1", frozenset({"MIXED"}), cpus=8, memory_mib=1024, held_cpus=8)
NAME, UID = "/api/v1/namespaces/hpc/pods/p", "u1"
PENDING = {"type": "PodScheduled", "status": "False", "reason": "SlurmPending"}
POD = builders.pod(
    UID,
    job=7,
    conditions=[{**PENDING, "message": "Slurm job 7 is pending: Priority"}],
    metadata={"name": "p", "namespace": "hpc"},
    schedulerName="slurm-bridge-scheduler",
    containers=[{"name": "main"}],
)


ANSWERS = {NAME: POD, "/api/v1/namespaces/hpc/pods": {"items": [POD]}}
"""What the user may read; a test adds what the hub publishes."""


class Slurm:
    """Slurm with one job, or without an answer."""

    def __init__(self, *, answers):
        self.answers = answers

    def jobs(self, **_):
        if not self.answers:
            raise SlurmUnavailableError("no answer")
        return [Job(7, frozenset({"PENDING"}), JobLink("c", (PodRef("hpc", "p", UID),)), reason="Resources")]

    def nodes(self):
        return [NODE]


class Session(CommandSession):
    slurm_answers = True

    def __init__(self, slurm, cluster):
        self.config, self.slurm = Config(), slurm
        self.kube = KubeAnswers(ANSWERS, default=KubeForbiddenError("GET /: Forbidden", status=403))
        if cluster:
            self.cluster = cluster


@pytest.fixture
def run(monkeypatch):
    def call(*args, slurm=True, cluster="c"):
        for module in (explain_objects, get):
            monkeypatch.setattr(module, "CommandSession", lambda _: Session(Slurm(answers=slurm), cluster))
        result = CliRunner().invoke(cli, [*args, "-n", "hpc"])
        assert result.exit_code == 0, result.output
        return result

    return call


@pytest.mark.parametrize(("slurm", "cluster"), [(False, "c"), (True, "")], ids=["no answer", "no right to kube-system"])
def test_a_pod_is_explained_without_slurm(run, slurm, cluster):
    result = run("explain", "pod", "p", slurm=slurm, cluster=cluster)
    assert "Pod hpc/p: Slurm job 7 is pending: Priority" in result.stdout
    assert "\nNot read\n  Slurm: " in result.stdout
    assert "\n  Events: GET " in result.stdout
    assert "\nNext: " not in result.stdout, "a job that only waits its turn has no next step"
    assert "no longer lists" not in result.stdout


def test_the_text_has_the_records_of_a_pod_with_wide_only(run):
    assert "\nFinalizers\n" not in run("explain", "pod", "p").stdout
    assert "\nPod\n  namespace: " in run("explain", "pod", "p", "-o", "wide").stdout


def test_a_pod_is_explained_without_the_right_to_list_nodes(run):
    report = json.loads(run("explain", "pod", "p", "-o", "json").stdout)
    assert (report["summary"], report["job"]["state"]) == ("its Slurm job is pending: Resources", "PENDING")
    assert [line.partition(":")[0] for line in report["not_read"]] == ["nodes", "Events"]
    assert report["nodes"] == ["n1: no room now: 0 of 8 CPUs free; held: 8 CPUs by other jobs of Slurm"]


@pytest.mark.parametrize(("age", "text"), [(5, ""), (7200, ", 2h ago: does it run?")])
def test_without_slurm_the_nodes_are_as_the_hub_published(run, monkeypatch, age, text):
    at = time.time() - age
    sums = cluster_sums.of(builders.snapshot(nodes={"n1": NODE}), {}, at, 15)
    queue = PartitionSums("main", waiting={"Priority": 3}, others_waiting=40, order=(9, 7, 8))
    sums = replace(sums, partitions=(queue, replace(queue, name="long", order=(9, 8, 7))))
    monkeypatch.setitem(ANSWERS, SUMS, cluster_sums.to_config_map(sums))
    report = json.loads(run("explain", "pod", "p", "-o", "json", slurm=False).stdout)
    assert report["nodes"] == ["n1: no room now: 0 of 8 CPUs free; held: 8 CPUs by other jobs of Slurm"]
    position = "position 2 of 3 among podbridge's jobs in partition main; 40 jobs of others wait there, too"
    assert report["slurm"] == [position]
    assert report["not_read"][0] == f"Slurm: no answer; shown is what the hub wrote at {clock.rfc3339(at)}{text}"


def test_without_slurm_the_nodes_answer_to_what_the_job_asks_for_by_the_condition(run, monkeypatch):
    sums = cluster_sums.of(builders.snapshot(nodes={"n1": NODE}), {}, time.time(), 15)
    monkeypatch.setitem(ANSWERS, SUMS, cluster_sums.to_config_map(sums))
    condition = POD["status"]["conditions"][0]
    monkeypatch.setitem(condition, "message", "Slurm job 7 is pending: Priority; it asks for 9 CPUs, 1 GiB")
    report = json.loads(run("explain", "pod", "p", "-o", "json", slurm=False).stdout)
    assert report["nodes"] == ["n1: never fits: the job asks for 9 CPUs, the node has 8 CPUs"]


def test_pods_are_listed_without_slurm(run):
    result = run("get", "pods", slurm=False)
    assert "SlurmPending" in result.stdout
    assert result.stderr == "podbridge: not read: Slurm: no answer\n"
    (record,) = json.loads(run("get", "pods", "-o", "json", slurm=False).stdout)
    assert (record["job"], record["not_read"]) == (7, ["Slurm: no answer"])
    (record,) = json.loads(run("get", "pods", "-o", "json").stdout)
    assert (record["slurm_state"], record["not_read"]) == ("PENDING", [])


def test_the_facts_about_a_pod_are_those_of_kubernetes_without_slurm(run):
    report = json.loads(run("explain", "pod", "p", "-o", "json", slurm=False).stdout)
    assert report["pod"]["reason"] == "SlurmPending"
    assert (report["job"], [line.partition(":")[0] for line in report["not_read"]]) == (
        {},
        ["Slurm", "nodes", "Events"],
    )


def watch(monkeypatch, *answers):
    """Watch a pod; Slurm answers, or does not, at each read."""
    slurm, turns = Slurm(answers=answers[0]), iter(answers[1:])

    def sleep(_):
        slurm.answers = next(turns, None)
        if slurm.answers is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(get, "CommandSession", lambda _: Session(slurm, "c"))
    monkeypatch.setattr(get, "watch", functools.partial(get.watch, sleep=sleep))
    result = CliRunner().invoke(cli, ["get", "pods", "--watch", "-n", "hpc", "-o", "json"])
    assert result.exit_code == 130
    return [json.loads(line)["slurm_state"] for line in result.stdout.splitlines()], result.stderr.splitlines()


def test_a_watch_waits_for_what_could_be_read_before(monkeypatch):
    states, problems = watch(monkeypatch, True, False, True)
    assert states == ["PENDING"], "a Slurm that does not answer is no change of the pod"
    assert problems == ["podbridge: Slurm: no answer"]


def test_a_watch_that_begins_without_slurm_notices_the_next_failure_too(monkeypatch):
    states, problems = watch(monkeypatch, False, True, False)
    assert states == ["", "PENDING"]
    assert problems == ["podbridge: not read: Slurm: no answer", "podbridge: Slurm: no answer"]


def test_a_slurm_that_does_not_answer_is_asked_once():
    asked = []

    class Hangs(Session):
        @functools.cached_property
        def slurm_answers(self):
            asked.append("ping")
            raise SlurmUnavailableError("ping: no answer from slurmrestd: timed out")

    session = Hangs(Slurm(answers=True), "c")
    assert session.attempt(SLURM, lambda: session.all_jobs) is None
    assert session.attempt(SLURM, lambda: session.slurm_nodes) is None
    assert (asked, session.knows_slurm) == (["ping"], False)
    session.forget()
    assert session.attempt(SLURM, lambda: session.all_jobs) is None
    assert asked == ["ping", "ping"]
