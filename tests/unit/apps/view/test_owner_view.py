"""A Job and its kin: progress, refusals, and the reasons of pods that no longer exist."""

import pytest

from bridge.apps.view import owner_view, pod_counts, pod_view
from tests.unit.apps.view.test_pod_view import pod, scheduled, terminated

JOB, JOBSET, LWS, PODGROUP, TRAINJOB, RAY = owner_view.KINDS


def job(name="train", status=None, owners=(), **spec):
    metadata = {"name": name, "namespace": "hpc", "ownerReferences": list(owners)}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def event(reason, note, kind="Job", name="train", **more):
    return {"reason": reason, "note": note, "involvedObject": {"kind": kind, "name": name}, **more}


WAITS = pod("a", conditions=[scheduled("False", "SlurmPending", "Slurm job 4 is pending")])
RUNS = pod("b", phase="Running", node="n1", conditions=[scheduled()])
FAILED = pod("c", phase="Failed", node="n1", conditions=[scheduled()], containers=[terminated(3)])


def view(manifest, pods=(), events=(), kind=JOB):
    return owner_view.of(kind, manifest, [pod_view.of(each) for each in pods], events)


def test_the_progress_counts_what_exists_and_what_the_job_remembers():
    seen = view(job(completions=8, parallelism=3, status={"succeeded": 4, "failed": 0}), [WAITS, RUNS, FAILED])
    assert seen.summary == "4 of 8 pods done, 1 running, 1 waiting, 1 failed"
    assert seen.failures == ["c: Error: container main: exit code 3"]
    assert [(reason.name, reason.count) for reason in seen.reasons] == [("SlurmPending", 1)]
    assert seen.oldest_waiting.name == "a"


def test_pods_that_were_never_created_show_why_without_the_words_around_it():
    text = 'Error creating: admission webhook "managed.validate.bridge.vk.io" denied the request: annotation x: no'
    seen = view(job(), events=[event(owner_view.REFUSED, text), event(owner_view.REFUSED, text)])
    assert seen.summary == "0 of 1 pods exist: their creation is refused"
    assert seen.refusals == ["annotation x: no"]
    quota = 'pods "train-x" is forbidden: exceeded quota'
    assert view(job(), events=[event(owner_view.REFUSED, quota)]).refusals == [quota]


def test_the_ends_of_pods_that_are_gone_are_shown_with_their_number():
    ends = event("TimeLimit", "podbridge has ended a pod: ...", action="Ending", series={"count": 12})
    once = event("NodeFail", "podbridge has ended a pod: node", action="Ending")
    other = event("SuccessfulCreate", "Created pod: x", action="")
    assert view(job(), events=[ends, once, other]).ends == [
        "podbridge has ended a pod: ... (12 times)",
        "podbridge has ended a pod: node",
    ]


@pytest.mark.parametrize(
    ("kind", "manifest", "size"),
    [
        (JOB, job(), 1),
        (JOB, job(parallelism=4), 4),
        (JOBSET, job(replicatedJobs=[{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3}}}]), 6),
        (LWS, job(replicas=2, leaderWorkerTemplate={"size": 4}), 8),
        (PODGROUP, job(minMember=5), 5),
        (PODGROUP, job(), None),
        (TRAINJOB, job(), None),
        (RAY, job(status={"desiredWorkerReplicas": 3}), 4),
        (RAY, job(), None),
    ],
)
def test_how_many_pods_an_owner_makes(kind, manifest, size):
    assert view(manifest, kind=kind).size == size


@pytest.mark.parametrize(
    ("kind", "about", "is_ours"),
    [
        (JOB, ("Job", "train"), True),
        (JOB, ("Job", "train-2"), False),
        (JOB, ("Pod", "train-x"), False),
        (JOBSET, ("JobSet", "train"), True),
        (JOBSET, ("Job", "train-workers-0"), True),
        (JOBSET, ("Job", "training-0"), False),
        (LWS, ("StatefulSet", "train-0"), True),
        (RAY, ("RayCluster", "train"), True),
    ],
)
def test_events_about_the_owner_and_about_what_creates_its_pods_count(kind, about, is_ours):
    assert owner_view.concerns(kind, "train", event("FailedCreate", "", *about)) == is_ours


def test_a_list_shows_owners_without_a_controller_of_their_own():
    child = job("train-w-0", owners=[{"kind": "JobSet", "name": "train", "controller": True}])
    labelled = {**WAITS, "metadata": {**WAITS["metadata"], "labels": {JOB.label: "train"}}}
    (record,) = owner_view.records(JOB, [job(completions=2), child], [labelled, RUNS])
    assert record == {
        "namespace": "hpc",
        "kind": "Job",
        "name": "train",
        "pods": 2,
        "done": 0,
        "running": 0,
        "waiting": 1,
        "failed": 0,
        "reason": "SlurmPending",
        "created": "",
    }


def test_the_workloads_of_the_web_page_are_what_users_made_those_that_run_first():
    def member(name, labels=None, **more):
        owner = {"controller": True, "kind": "Job", "name": "eval"}
        return pod_view.of(pod(name, labels=labels or {}, ownerReferences=[owner], **more))

    jobset = {JOBSET.label: "train"}
    views = [
        member("a", phase="Succeeded", node="n1"),
        member("b", phase="Failed", node="n1"),
        member("c", jobset, conditions=[scheduled("False", "SlurmPending", "Slurm job 4 is pending")]),
        member("d", jobset, phase="Running", node="n1"),
        pod_view.of(pod("alone")),
    ]
    train, done = pod_counts.workloads(views)
    assert (train.name, train.reason, train.message) == ("JobSet/train", "SlurmPending", "Slurm job 4 is pending")
    assert train.parts() == [("running", 0.0, 50.0), ("waiting", 50.0, 50.0)]
    assert (done.name, done.open, done.total) == ("Job/eval", False, 2)
