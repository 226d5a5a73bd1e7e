"""``podbridge explain pod`` for a member of a group: its members, and the job that they share."""

import json
from types import SimpleNamespace

import pytest

from bridge import names
from bridge.apps.cli import explain, explain_objects, get, top
from bridge.apps.cli.dashboard_command import PageSession
from bridge.apps.cli.session import CommandSession
from bridge.apps.view import pod_view, wait_reasons
from bridge.config.hub import Config
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import GroupRef, Job, JobLink, Partition, PodRef

GROUP = GroupRef("jobset", "hpc", "train", "o1", "workers")


def member(name, phase="Pending", node=None, group=GROUP, size=5):
    """Return a pod of a group; ``None``: of no group."""
    metadata = {"namespace": "hpc", "name": name, "uid": f"u-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if group is not None:
        value = {"kind": group.kind, "name": group.name, "uid": group.uid, "index": group.index}
        metadata["annotations"] = {names.GROUP: json.dumps({**value, "size": size, "minimum": 4})}
    spec = {"schedulerName": Config().scheduler_name, "containers": [{"name": "main"}]}
    return {"metadata": metadata, "spec": {**spec, "nodeName": node} if node else spec, "status": {"phase": phase}}


PODS = [
    member("waits"),
    member("runs", "Running", "n1"),
    member("ended", "Succeeded", "n2"),
    member("failed", "Failed"),
    member("alone", "Running", "n1", None),
    member("other-index", "Running", "n1", GroupRef("jobset", "hpc", "train", "o1", "drivers")),
    member("created-again", "Running", "n1", GroupRef("jobset", "hpc", "train", "o2", "workers")),
]
COUNTS = (4, 1, 2)
"""The pods of ``GROUP`` that exist, are bound and have not ended, and have ended."""


class Session(CommandSession):
    """The session of a command in a cluster with these pods and jobs."""

    cluster = "c"

    slurm_answers = True

    def __init__(self, pods, jobs=()):
        def get(path, params=None):
            return {"items": pods if path == "/api/v1/namespaces/hpc/pods" else []}

        self.config, self.kube = Config(), SimpleNamespace(get=get)
        self.slurm = SimpleNamespace(jobs=lambda **_: list(jobs), nodes=list)


def page(pods):
    """Return the session of the web page."""
    viewer = SimpleNamespace(client=None, identity="ann")
    return PageSession(Config(), viewer, [], [pod_view.of(pod) for pod in pods], None)


@pytest.mark.parametrize("session", [Session, page])
def test_the_members_of_a_group_are_counted(session):
    assert session(PODS).group_counts(PODS[0]) == COUNTS


def test_the_pods_of_a_namespace_are_listed_once_for_all_groups():
    session, paths = Session(PODS), []
    get = session.kube.get
    session.kube = SimpleNamespace(get=lambda path, params=None: paths.append(path) or get(path, params))
    for pod in PODS:
        session.group_counts(pod)
        session.waiting_members(pod)
    assert paths == ["/api/v1/namespaces/hpc/pods"]


@pytest.mark.parametrize(
    ("size", "group", "text"),
    [
        (5, GROUP, "jobset train[workers], a group of 5 (at least 4)"),
        (4, GroupRef("job", "hpc", "mpi", "o3"), "job mpi, a group of 4"),
    ],
)
def test_a_member_shows_its_group_and_how_many_members_exist(size, group, text):
    pods = [member("a", group=group, size=size), member("b", "Running", "n1", group=group, size=size)]
    lines = explain.describe(Session(pods), pods[0])["kubernetes"]
    assert lines[-1] == f"member of {text}: 2 pods exist, 1 are bound, 0 have ended"


def test_a_pod_alone_shows_no_group():
    alone = member("alone", group=None)
    lines = explain.describe(Session([alone]), alone)["kubernetes"]
    assert not any("group" in line for line in lines)


def test_each_member_shows_the_position_the_reason_and_the_start_of_the_job_of_its_group():
    def job(job_id, uid="o1", **fields):
        link = JobLink("c", (), GroupRef("jobset", "hpc", "train", uid, "workers"), 5)
        defaults = {"partition": "main", "priority": 10, "states": frozenset({"PENDING"})}
        return Job(**{"job_id": job_id, "link": link, **defaults, **fields})

    own = job(9, reason="Resources", start_time=1_767_225_600)
    jobs = [job(7, states=frozenset({"CANCELLED"})), job(8, "o2"), own, job(10, "o2")]
    for pod in PODS[0], member("later"):
        report = explain.describe(Session([*PODS, pod], jobs), pod)
        assert report["summary"] == "its Slurm job is pending: Resources"
        assert report["slurm"] == [
            "job 9 is PENDING in partition main",
            "reason: Resources",
            "priority 10: position 2 of 3 in partition main",
            "estimated start: 2026-01-01T00:00:00Z",
        ]
        assert report["next"] == ""
        assert report["not_read"] == []


def remote(**status):
    return member("x", node="pool", group=None) | {"status": status}


def test_a_pod_that_has_failed_shows_its_reason_and_message():
    """The Event that has them is deleted after an hour."""
    why = {"reason": "NotPossibleAtSite", "message": "container main: runAsUser: 185 is not allowed"}
    report = explain.describe(Session([]), remote(phase="Failed", **why))
    assert report["summary"] == f"finished (Failed): {why['reason']}: {why['message']}"
    assert explain.describe(Session([]), remote(phase="Succeeded"))["summary"] == "finished (Succeeded)"


def test_a_container_that_waits_for_its_restart_shows_how_it_ended():
    ended = {"exitCode": 128, "reason": "ErrImagePull", "message": "no such image"}
    state = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    runs = {"name": "other", "state": {"running": {}}, "lastState": {"terminated": ended}}
    found = explain.describe(Session([]), remote(phase="Running", containerStatuses=[state, runs]))["kubernetes"]
    assert [line for line in found if line.startswith("container ")] == [
        "container main waits for its restart, exit code 128: ErrImagePull: no such image"
    ]


SUSPENDED = {"type": names.JOB_SUSPENDED, "status": "True", "reason": "JobSuspended", "message": "it is suspended"}
NO_IMAGE = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
CREATING = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("status", "state", "summary", "step"),
    [
        ({"phase": "Running"}, "RUNNING", "runs on n1 with Slurm job 9", ""),
        ({"phase": "Pending"}, "RUNNING", "starts on n1 with Slurm job 9", ""),
        (
            {"phase": "Pending", "containerStatuses": [CREATING]},
            "RUNNING",
            "starts on n1 with Slurm job 9: ContainerCreating",
            "",
        ),
        (
            {"phase": "Pending", "containerStatuses": [NO_IMAGE]},
            "RUNNING",
            "starts on n1 with Slurm job 9: ImagePullBackOff: no such image",
            "kubectl describe pod x -n hpc",
        ),
        (
            {"phase": "Running", "conditions": [SUSPENDED]},
            "SUSPENDED",
            "runs on n1 with Slurm job 9: JobSuspended: it is suspended",
            "",
        ),
        (
            {"phase": "Running"},
            "TIMEOUT",
            "runs on n1 with Slurm job 9: pod hpc/x is bound, but its job has ended",
            "",
        ),
        (
            {"phase": "Running"},
            "PENDING",
            "runs on n1 with Slurm job 9: pod hpc/x is bound, but its job is pending",
            "",
        ),
    ],
)
def test_a_pod_on_a_node_shows_what_keeps_it_from_running(status, state, summary, step):
    pod = member("x", node="n1", group=None) | {"status": status}
    pod["metadata"]["annotations"] = {names.JOB_ID_ANNOTATION: "9", names.SLURM_NODE_ANNOTATION: "s1"}
    link = JobLink("c", (PodRef("hpc", "x", pod["metadata"]["uid"]),))
    report = explain.describe(Session([pod], [Job(9, frozenset({state}), link, nodes=("s1",))]), pod)
    assert (report["summary"], report["next"]) == (summary, step)


def waiting(reason, message="", annotations=None, **metadata):
    pod = member("x", group=None)
    pod["metadata"] |= {"annotations": annotations or {}, **metadata}
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod | {"status": {"phase": "Pending", "conditions": [condition]}}


@pytest.mark.parametrize(
    ("reason", "state", "summary"),
    [
        ("SlurmPending", "RUNNING", "Slurm job 9 is allocated; the binding is in progress"),
        ("Racing", "RUNNING", "Slurm job 9 is allocated; the binding is in progress"),
        ("GangFull", "RUNNING", "pending: GangFull: why"),
        ("GangIncomplete", "RUNNING", "pending: GangIncomplete: why"),
        ("GangDiffers", "PENDING", "pending: GangDiffers: why"),
        ("DevicesNotReady", "RUNNING", "pending: DevicesNotReady: why"),
        ("SlurmPending", "PENDING", "its Slurm job is pending: Resources"),
        ("SlurmUnavailable", "PENDING", "its Slurm job is pending: Resources"),
    ],
)
def test_a_condition_counts_more_than_the_job_if_the_job_does_not_say_why_the_pod_waits(reason, state, summary):
    pod = waiting(reason, "why", member("x")["metadata"]["annotations"])
    link = JobLink("c", (), GROUP, 5)
    job = Job(job_id=9, link=link, partition="main", priority=10, states=frozenset({state}), reason="Resources")
    report = explain.describe(Session([pod], [job]), pod)
    assert report["summary"] == summary
    step = wait_reasons.next_step(reason, "Resources", pod="x", namespace="hpc", job=9, message="why")
    assert report["next"] == (step if summary.startswith("pending: ") else "")


@pytest.mark.parametrize("annotations", [{}, {names.MEM_PER_NODE: "1Gi"}])
def test_a_pod_whose_annotation_requests_memory_gets_no_default(annotations):
    pod = waiting("SlurmPending", "", annotations)
    link = JobLink("c", (PodRef("hpc", "x", pod["metadata"]["uid"]),))
    job = Job(9, frozenset({"PENDING"}), link, partition="main", request=Allotment(1, 1024))
    report = explain.describe(Session([pod], [job]), pod)
    assert any("default memory of the partition" in line for line in report["slurm"]) == (not annotations)


def test_a_partition_that_does_not_exist_lists_those_that_do_and_the_command_that_mends_it():
    session = Session([])
    session.slurm.partitions = lambda: [Partition("gpu"), Partition("main")]
    report = explain.describe(session, waiting("SlurmRefused", "Invalid partition", {names.PARTITION: "mian"}))
    assert report["next"] == (
        "partition mian does not exist; there are gpu, main: "
        f"kubectl annotate pod x -n hpc --overwrite {names.PARTITION}=main"
    )
    report = explain.describe(session, waiting("SlurmRefused", "Invalid account", {names.PARTITION: "main"}))
    assert report["next"] == wait_reasons.CHANGE


def test_a_pool_with_a_typo_says_which_one_is_meant():
    pool = {"metadata": {"name": "site-a", "labels": {names.POOL_LABEL: "site-a"}}, "spec": {}, "status": {}}
    session = Session([])
    session.nodes = lambda: [pool]
    pod = waiting("Unschedulable", "none of the pools site-b has a node", {names.POOLS: "site-b"})
    pod["spec"]["tolerations"] = [{"key": names.POOL_TAINT, "operator": "Equal", "value": "site-b"}]
    report = explain.describe(session, pod)
    assert report["places"] == []
    assert report["next"].startswith("no pool is named site-b; did you mean site-a?")
    session.nodes = list
    wanted = f"this cluster has no pool: remove {names.POOLS}, or ask your administrator to add site-b"
    assert explain.describe(session, pod)["next"] == wanted


def test_a_deleted_pod_on_a_node_that_does_not_answer_says_what_releases_it():
    pod = member("x", "Running", "n1", None)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    session = Session([])
    session.nodes = lambda: [{"metadata": {"name": "n1"}, "status": {"conditions": []}}]
    report = explain.describe(session, pod)
    assert "the kubelet of n1 does not answer" in report["summary"]
    assert report["next"].endswith("kubectl delete pod x -n hpc --force")


@pytest.mark.parametrize(
    ("finalizers", "label", "summary", "step"),
    [
        ([names.FINALIZER], "9", "podbridge removes its finalizer when it has cancelled Slurm job 9", True),
        ([names.FINALIZER], "", "podbridge removes its finalizer when it knows that Slurm has no job of it", True),
        (["example.com/other"], "", "finalizers of others keep it: example.com/other", False),
        ([], "", "the API server removes it", False),
    ],
)
def test_a_deleted_pod_that_waits_says_what_keeps_it_and_not_why_it_was_pending(finalizers, label, summary, step):
    pod = waiting("Unschedulable", "no node fits", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=finalizers)
    pod["metadata"]["labels"] = {names.JOB_ID_LABEL: label}
    report = explain.describe(Session([pod]), pod)
    assert report["summary"] == f"is being deleted: {summary}"
    assert report["next"] == (wait_reasons.ADMINISTRATOR if step else "")


@pytest.mark.parametrize(("began", "step"), [("2026-01-01T00:00:00Z", "kubectl logs x -n hpc -c main"), (None, "")])
def test_a_failed_pod_names_its_container_its_exit_code_and_its_log(began, step):
    state = {"name": "main", "state": {"terminated": {"exitCode": 3, "reason": "Error", "startedAt": began}}}
    report = explain.describe(Session([]), remote(phase="Failed", containerStatuses=[state]))
    assert report["summary"] == "finished (Failed): container main: exit code 3"
    assert report["next"] == step


@pytest.mark.parametrize(
    ("started", "step"),
    [
        ([None, 7.0], "kubectl logs -n hpc p-1 --all-containers"),
        ([None, None], "podbridge explain pod p-0 -n hpc"),
        ([], ""),
    ],
)
def test_the_next_step_of_a_job_names_a_failed_pod_that_has_a_log(started, step):
    failed = [SimpleNamespace(name=f"p-{n}", times=SimpleNamespace(started=at)) for n, at in enumerate(started)]
    view = SimpleNamespace(refusals=[], oldest_waiting=None, suspended=False, failed=failed)
    assert explain_objects._owner_next(None, view, "hpc", "job", "") == step


@pytest.mark.parametrize(
    ("jobs", "chosen"),
    [
        ([(7, "RUNNING", 1), (9, "CANCELLED", 2)], 7),  # podbridge has cancelled a second job
        ([(5, "CANCELLED", 2), (67_108_863, "CANCELLED", 1)], 5),  # ids begin again after MaxJobId
        ([(7, "FAILED", 1), (9, "PENDING", 2)], 9),
    ],
)
def test_the_job_of_a_pod_is_the_one_that_lives_or_else_the_newest(jobs, chosen):
    pod = waiting("SlurmPending", "")
    link = JobLink("c", (PodRef("hpc", "x", pod["metadata"]["uid"]),))
    found = [Job(number, frozenset({state}), link, submit_time=at) for number, state, at in jobs]
    assert Session([pod], found).job_of(pod).job_id == chosen


def test_the_reason_and_the_id_of_an_ended_job_are_not_those_of_the_pod_that_waits():
    pod = waiting("NodeRefused", "why", creationTimestamp="2026-01-01T00:00:00Z")
    link = JobLink("c", (PodRef("hpc", "x", pod["metadata"]["uid"]),))
    for state, shown in (("PENDING", ("NodeRefused: Priority", 9)), ("CANCELLED", ("NodeRefused", None))):
        session = Session([pod], [Job(9, frozenset({state}), link, reason="Priority")])
        session.kube.server, session.slurm.slurm_release = "", ""
        session.pods = lambda *_: [pod]
        (record,) = get.pod_records(session, "hpc", "")
        (oldest,) = top.read(session)["oldest"]
        assert (record["reason"], oldest["job"]) == shown
