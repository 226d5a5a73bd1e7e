"""Where the jobs of Slurm and their pods disagree, and the position of a pending job."""

from types import SimpleNamespace

import pytest

from bridge import names
from bridge.apps.cli import explain_objects
from bridge.apps.view import job_view, pod_view, wait_reasons
from bridge.apps.view.job_view import lines, records
from bridge.config.hub import Config
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import GroupRef, Job, JobLink, JobPart, Node, PodRef
from tests import builders

NODES = {"node-0": "node-0", "renamed": "node-1"}
LINK = JobLink("here", (PodRef("ns", "p", "u"),))


def job(*states, **fields):
    return Job(**{"job_id": 7, "states": frozenset(states), "link": LINK, "nodes": ("node-1",), **fields})


def pod(node=None, label="7", phase="Running", annotations=None, uid="u", name="p", **metadata):
    metadata = {"name": name, **metadata}
    return builders.pod(uid, job=label, node=node, phase=phase, annotations=annotations, metadata=metadata)


def problems(jobs, pods, namespace=None):
    return [record["problem"] for record in records(jobs, pods, NODES, namespace)]


@pytest.mark.parametrize(
    ("found", "listed", "problem"),
    [
        (job("RUNNING"), pod("renamed"), ""),
        (job("RUNNING"), pod("gone", annotations={names.SLURM_NODE_ANNOTATION: "node-1"}), ""),
        (job("RUNNING"), pod("node-0"), "pod ns/p is on node node-0, its job on node-1"),
        (job("RUNNING"), None, "pod ns/p does not exist"),
        (job("CANCELLED"), None, ""),
        (job("RUNNING"), pod("renamed", uid="other", label=None, phase="Succeeded"), "pod ns/p does not exist"),
        (job("RUNNING"), pod("renamed", phase="Succeeded"), "pod ns/p has ended, but its job is not released"),
        (job("CANCELLED"), pod("renamed"), "pod ns/p is bound, but its job has ended"),
        (job("CANCELLED"), pod(phase="Pending"), ""),
        (job("PENDING", nodes=()), pod(phase="Pending"), ""),
        (job("PENDING", nodes=()), pod("renamed"), "pod ns/p is bound, but its job is pending"),
        (job("RUNNING"), pod("renamed", label="8"), "pod ns/p has job 8"),
        (job("RUNNING"), pod("renamed", label=None), "pod ns/p is bound without this job"),
        (job("RUNNING"), pod(label=None, phase="Pending"), ""),
        (job("SUSPENDED"), pod("renamed"), ""),
    ],
)
def test_a_job_and_its_pod(found, listed, problem):
    assert problems([found], [listed] if listed else []) == [problem]


@pytest.mark.parametrize(
    ("slurm_node", "problem"),
    [("node-1", ""), ("node-0", "pod ns/p is on node node-0, its job on node-1"), (None, "")],
)
def test_a_node_whose_name_in_slurm_is_not_known_is_no_other_node(slurm_node, problem):
    known = {names.SLURM_NODE_ANNOTATION: slurm_node} if slurm_node else {}
    assert job_view.problem(job("RUNNING"), pod("renamed", annotations=known)) == problem


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (pod("renamed"), ["Slurm does not list job 7 of the pod"]),
        (pod("renamed", label=None), ["the pod is bound without a job"]),
        (pod("a-pool", label=None), []),
        (pod(label=None, phase="Pending"), []),
        (pod("renamed", phase="Failed"), []),
    ],
)
def test_a_pod_without_a_job(listed, expected):
    assert problems([], [listed]) == expected


def test_a_job_of_several_pods_shows_each_that_disagrees_and_a_namespace_selects():
    link = JobLink("here", (PodRef("ns", "p", "u"), PodRef("ns", "q", "v")))
    pair = job("RUNNING", link=link, nodes=("node-0", "node-1"))
    (record,) = records([pair], [pod("renamed")], NODES, "ns")
    assert (record["pods"], record["phases"]) == (["ns/p", "ns/q"], ["Running"])
    assert record["problem"] == "pod ns/q does not exist"
    assert records([pair], [], NODES, "else") == []


def test_a_job_of_a_group_shows_its_members():
    link = JobLink("here", (), GroupRef("job", "ns", "train", "o1"), 2)
    (record,) = records([job("RUNNING", link=link, nodes=("node-0",))], [], NODES)
    assert (record["pods"], record["problem"]) == (["job ns/train"], "no pod of job ns/train exists")
    member = pod("renamed")
    member["metadata"]["annotations"] |= {names.GROUP: '{"kind":"job","name":"train","uid":"o1","size":2,"minimum":2}'}
    (record,) = records([job("RUNNING", link=link, nodes=("node-1",))], [member], NODES)
    assert (record["pods"], record["phases"], record["problem"]) == (["job ns/train"], ["Running"], "")


def test_the_position_of_a_pending_job():
    def waiting(job_id, priority, partition="main", state="PENDING"):
        return Job(job_id, frozenset({state}), partition=partition, priority=priority)

    own = waiting(5, 10)
    others = [waiting(1, 11), waiting(2, 10), waiting(6, 10), waiting(3, 0), waiting(4, 99, "gpu,main")]
    others += [waiting(7, 99, "gpu"), waiting(8, 99, state="RUNNING")]
    line = job_view._position(own, [own, *others])
    assert line == "priority 10: position 4 of 5 in partition main"
    assert "held" in job_view._position(waiting(9, 0), others)


def test_ended_jobs_are_left_out_unless_they_disagree_with_a_pod():
    over = job("CANCELLED")
    other = JobLink("here", (PodRef("ns", "q", "v"),))
    wrong = Job(8, frozenset({"CANCELLED"}), other, ("node-1",))
    runs = Job(9, frozenset({"RUNNING"}), JobLink("here", (PodRef("ns", "r", "w"),)), ("node-0",))
    there = [pod("renamed", uid="v", name="q", label="8"), pod("node-0", uid="w", name="r", label="9")]
    assert [record["job"] for record in records([over, wrong, runs], there, NODES, ended=False)] == [8, 9]
    assert [record["job"] for record in records([over, wrong, runs], there, NODES)] == [7, 8, 9]


def test_explain_shows_each_component_of_a_heterogeneous_job():
    parts = (
        JobPart(13, frozenset({"RUNNING"}), ("node-0",), "a"),
        JobPart(14, frozenset({"RUNNING"}), ("node-1", "node-2"), "b", "node-[3-4]"),
    )
    whole = Job(13, frozenset({"RUNNING"}), nodes=("node-0", "node-1", "node-2"), parts=parts)
    assert lines(whole, "RUNNING", [whole], 0)[-2:] == [
        "component 13 is RUNNING on node-0",
        "component 14 is RUNNING on node-1,node-2, excluded nodes: node-3,node-4",
    ]


def test_a_report_on_a_job_whose_id_an_earlier_job_had():
    def pod(name):
        metadata = {"namespace": "hpc", "name": name, "uid": f"u-{name}", "labels": {names.JOB_ID_LABEL: "7"}}
        spec = {"nodeName": "n1", "schedulerName": Config().scheduler_name}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    link = JobLink("c1", (PodRef("hpc", "new", "u-new"),))
    jobs = [Job(7, frozenset({"RUNNING"}), link, nodes=("n1",), partition="main")]
    session = SimpleNamespace(
        config=Config(),
        cluster="c1",
        all_jobs=jobs,
        jobs=jobs,
        pods=lambda namespace, selector="": [pod("old"), pod("new")],
        nodes=lambda selector="": [],
        attempt=lambda what, read: read(),
    )
    report = explain_objects.job(session, "7")
    assert report["pods"] == ["hpc/new"] and any("hpc/old has the id of this job" in each for each in report["problem"])


def test_without_slurm_the_jobs_are_those_that_pods_name_with_what_the_hub_wrote():
    message = "Slurm job 7 is pending in partition main: Resources; it asks for 1 CPU, 1 GiB"
    waits = pod(phase="Pending", uid="w")
    condition = {"type": "PodScheduled", "status": "False", "reason": "SlurmPending", "message": message}
    waits["status"]["conditions"] = [condition]
    gone = pod("node-0", label="9", phase="Succeeded", uid="g")
    first, second = job_view.of_pods([waits, pod("node-0", label="8", uid="r", name="r"), gone])
    assert (first["job"], first["pods"], first["reason"], first["phases"]) == (7, ["ns/p"], "Resources", ["Pending"])
    assert (second["job"], second["pods"], second["pod_nodes"], second["state"]) == (8, ["ns/r"], ["node-0"], "")


def test_a_job_is_released_only_if_its_pods_are_over():
    over = job("CANCELLED")
    ended, runs = pod("node-0", phase="Succeeded"), pod("node-0")
    assert [job_view.state(over, there) for there in ([ended], [], [runs], [ended, runs])] == [
        "released",
        "released",
        "CANCELLED",
        "CANCELLED",
    ]


@pytest.mark.parametrize(
    ("told", "state", "shown"),
    [
        ("", "PENDING", "SlurmPending"),
        ("", "RUNNING", wait_reasons.BINDING),
        ("SlurmPending", "RUNNING", wait_reasons.BINDING),
        ("Racing", "RUNNING", wait_reasons.BINDING),
        ("Racing", "PENDING", "Racing"),
        ("GangFull", "RUNNING", "GangFull"),
        ("", "CANCELLED", wait_reasons.NOT_PROCESSED),
    ],
)
def test_what_the_job_shows_counts_where_the_condition_is_older(told, state, shown):
    waiting = pod(phase="Pending")
    if told:
        waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": told}]
    assert job_view.reason(pod_view.of(waiting), job(state)) == shown
    assert job_view.reason(pod_view.of(waiting), None) == (told or wait_reasons.NOT_PROCESSED)
    assert job_view.reason(pod_view.of(pod("node-0")), job(state)) == ""


@pytest.mark.parametrize(
    ("mib", "per_cpu", "expected"),
    [
        (65536, None, (True, "Slurm gives it all memory of a node")),
        (1024, None, (False, "Slurm gives it the default memory of the partition")),
        (1024, "512Mi", (False, "podbridge requests 512Mi for each CPU")),
        (65536, "512Mi", (True, "Slurm gives it all memory of a node")),
    ],
)
def test_whose_memory_a_pod_gets_that_requests_none(mib, per_cpu, expected):
    node = Node("n1", frozenset(), cpus=2, memory_mib=65536)
    is_whole, text = job_view.default_memory(Allotment(2, mib), [node], per_cpu)
    assert (is_whole, text) == (expected[0], f"the pod requests no memory, so {expected[1]}")


def test_a_year_is_no_time_limit():
    def told(minutes):
        one = Job(7, frozenset({"RUNNING"}), time_limit=minutes)
        return [line for line in lines(one, "RUNNING", [one], 0) if line.startswith("time limit")]

    assert [told(minutes) for minutes in (0, 90, 365 * 1440)] == [[], ["time limit: 01:30:00"], ["time limit: none"]]
