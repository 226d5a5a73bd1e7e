"""Records have the fields of their schema, which ``podbridge get KIND -o schema`` prints."""

import json
import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import click
import jsonschema_rs
import pytest
from click.testing import CliRunner

from bridge import names
from bridge.apps.cli import get, output, queues
from bridge.apps.cli.main import cli
from bridge.apps.view import owner_view, records
from bridge.config.hub import Config
from bridge.slurm.models import Job, Node
from tests import builders

CREATED = {"name": "x", "namespace": "hpc", "creationTimestamp": builders.CREATED}
QUOTA = {"resources": [{"name": "cpu", "nominalQuota": "9"}], "name": "f"}
CLUSTER_QUEUE = {"spec": {"resourceGroups": [{"flavors": [QUOTA]}]}, "status": {"pendingWorkloads": 2}}


def session(*, slurm=True):
    """A cluster with a running pod, one that waits at a pool and one without a job, a node and a pool."""
    on = {"node": "n1", "phase": "Running", "requests": {"cpu": "2", "memory": "1Gi"}}
    labels = {names.POOL_LABEL: "site", names.VIRTUAL_TYPE_LABEL: names.VIRTUAL_TYPE, "example.com/a": "b"}
    pool = builders.node("site", labels=labels)
    for each in (pool, node := builders.node("n1")):
        each["metadata"].setdefault("creationTimestamp", builders.CREATED)
    pods = [
        builders.pod("u1", job=7, **on),
        builders.pod("u2", annotations={names.REMOTE_JOB: "site/9"}, node="site"),
        builders.pod("u3"),
    ]
    job = Job(7, frozenset({"RUNNING"}), link=builders.link("u1"), nodes=("n1",), submit_time=1e9, start_time=1e9)
    missing = [] if slurm else ["Slurm: no answer"]
    return SimpleNamespace(
        config=Config(),
        gaps=missing,
        attempt=lambda _, read: read(),
        jobs=[job] if slurm else None,
        jobs_by_uid={"u1": job} if slurm else {},
        known_nodes={"n1": Node("n1", frozenset({"MIXED"}), cpus=8, memory_mib=100)} if slurm else {},
        pods=lambda *_: pods,
        nodes=lambda *_: [node, pool],
    )


@pytest.mark.parametrize("slurm", [True, False])
@pytest.mark.parametrize("kind", records.KINDS)
def test_records_are_as_their_schema_says_and_can_be_shown(kind, slurm):
    one, workload = session(slurm=slurm), next(each for each in owner_view.LISTED if each.word == "job")
    queue = {"metadata": CREATED, "spec": {"localQueues": [{"namespace": "team"}]}}
    listed = {
        "pods": lambda: get.pod_records(one, None, ""),
        "jobs": lambda: get.job_records(one, None, ended=True),
        "workloads": lambda: owner_view.records(
            workload, [{"metadata": CREATED, "spec": {"completions": 3}}], one.pods()
        ),
        "nodes": lambda: get.node_records(one, ""),
        "pools": lambda: get.pool_records(one, ""),
        "queues": lambda: [queues.record(queue, CLUSTER_QUEUE if slurm else {})],
    }[kind]()
    assert listed
    jsonschema_rs.validate(records.schema(kind), json.loads(json.dumps(listed)))
    for record in listed:
        assert record.keys() == records.KINDS[kind].record.__annotations__.keys()
        for column in (*records.KINDS[kind].columns, *records.KINDS[kind].wide):
            assert not set("{[") & set(output.cell(record, column))


@pytest.mark.parametrize("kind", records.KINDS)
def test_the_schema_describes_each_field_without_a_cluster(kind):
    shown = json.loads(CliRunner().invoke(cli, ["get", kind, "-o", "schema"]).output)
    (about,) = (each for name, each in shown["$defs"].items() if name != "Usage")
    assert all(field["description"] for field in about["properties"].values())
    assert set(about["required"]) == about["properties"].keys()


def test_numbers_are_numbers_and_amounts_of_memory_are_read_by_people():
    (pool,) = get.pool_records(session(), "")
    (node,) = get.node_records(session(), "")
    assert (pool["pods"]["used"], pool["labels"]) == (1.0, {"example.com/a": "b"})
    assert (node["memory"], output.cell(node, "memory")) == (100 * 2**20, "100 MiB")
    pods = {pod["uid"]: pod["job"] for pod in get.pod_records(session(), None, "")}
    assert pods == {"u1": 7, "u2": "site/9", "u3": None}


def test_failures_are_red():
    shown = output.table(
        [{"name": "p", "phase": "Failed", "failed": 2}, {"name": "long-name", "phase": "Running", "failed": 0}],
        ["name", "phase", "failed"],
    )
    assert all(text in shown for text in ("\x1b[31mFailed", "\x1b[31m2"))
    assert "\x1b[31m0" not in shown
    assert "\x1b[1mNAME" in shown
    lines = ["NAME        PHASE     FAILED", "p           Failed    2", "long-name   Running   0"]
    assert click.unstyle(shown).splitlines() == lines


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_unless_the_user_wants_none(tmp_path, variables, coloured):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from bridge.apps.cli.main import main; main()", "check", "--config", "/none.yaml"]
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | variables
    kubeconfig = builders.kubeconfig(tmp_path)
    try:
        done = subprocess.run([*command, "--kubeconfig", kubeconfig], stdout=theirs, env=environment, timeout=60)
        shown = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 1
    assert "FAIL" in shown
    assert ("\x1b[" in shown) == coloured


def test_a_job_that_podbridge_ended_after_its_pod_is_released():
    one = session()
    pods = [builders.pod("u1", job=7, node="n1", phase="Succeeded")]
    one.pods, one.jobs_by_uid = lambda *_: pods, {"u1": Job(7, frozenset({"CANCELLED"}), link=builders.link("u1"))}
    (pod,) = get.pod_records(one, None, "")
    assert pod["slurm_state"] == "released"
