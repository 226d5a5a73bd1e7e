"""Spans of a pod on the colocated Slurm."""

import copy

from bridge import names
from bridge.telemetry import tracing
from bridge.workload import slurm_spans

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CREATED = 1767323045.0


def at(second):
    return f"2026-01-02T03:04:{5 + second:02}Z"


def pod(uid="u", **status):
    annotations = {names.TRACEPARENT: f"00-{TRACE}-{PARENT}-01"}
    metadata = {"namespace": "a", "name": "p", "uid": uid, "annotations": annotations, "creationTimestamp": at(0)}
    return {"metadata": metadata, "spec": {}, "status": status}


def bound(**status):
    """Return a pod that was bound two seconds after its creation, and has run until the ninth second."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(2)}]
    ends = [{"state": {"terminated": {"finishedAt": at(second)}}} for second in (8, 9)]
    found = pod(phase="Succeeded", conditions=conditions, containerStatuses=ends)
    found["status"] |= status
    found["metadata"]["annotations"] |= {names.SLURM_NODE_ANNOTATION: "n", names.JOB_ID_ANNOTATION: "14"}
    found["spec"]["nodeName"] = "k"
    return found


def times(sent):
    return {span.name: (span.start - CREATED, span.end - CREATED) for span in sent}


def test_the_spans_of_a_pod_have_the_documented_parents(sent):
    context = tracing.of(pod())
    tracing.admitted(context, "a", pod(), CREATED - 1, CREATED)
    slurm_spans.submitted([pod()], 14, CREATED + 0.5, CREATED + 0.75)
    slurm_spans.bound(pod(), 14, "k", CREATED + 1, CREATED + 2, CREATED + 2.5)
    slurm_spans.released(bound(), CREATED + 10)
    by_id = {span.context.span: span for span in sent}
    assert len(by_id) == len(sent)
    assert {s.name: by_id[s.parent.span].name if s.parent else "" for s in sent} == {
        name: parent for name, (parent, _) in slurm_spans.SPANS.items()
    }
    assert times(sent) == {
        "admission": (-1, 0),
        "submit": (0.5, 0.75),
        "queue": (1, 2),
        "bind": (2, 2.5),
        "schedule": (0, 2.5),
        "run": (2, 9),
        "release": (9, 10),
        "pod": (0, 10),
    }
    assert {key for span in sent for key in span.attributes} <= tracing.ATTRIBUTES.keys()
    assert {span.attributes["podbridge.job.id"] for span in sent if span.name != "admission"} == {"14"}


def test_each_job_of_a_pod_has_a_span_of_its_submission_and_both_processes_derive_its_id(sent):
    for job in (14, 15, 15):
        slurm_spans.submitted([pod("u"), pod("v")], job, CREATED, CREATED)
    assert len(sent) == 6
    assert len({span.context.span for span in sent}) == 4


def test_without_the_time_of_the_submission_the_queue_begins_with_the_pod(sent):
    slurm_spans.bound(pod(), 14, "k", None, CREATED + 2, CREATED + 3)
    assert times(sent)["queue"] == (0, 2)


def test_a_pod_that_joins_a_job_waits_from_its_own_creation(sent):
    slurm_spans.bound(pod(), 14, "k", CREATED - 100, CREATED - 99, CREATED + 3)
    assert (times(sent)["queue"], times(sent)["bind"]) == ((0, 0), (0, 3))


def test_a_clock_of_slurm_that_is_ahead_gives_no_negative_span(sent):
    slurm_spans.bound(pod(), 14, "k", CREATED + 50, CREATED + 60, CREATED + 3)
    slurm_spans.released(bound(), CREATED + 1)
    assert all(span.end >= span.start for span in sent)


def test_a_failed_pod_has_its_reason(sent):
    slurm_spans.released(bound(phase="Failed", reason="JobCancelled"), CREATED + 10)
    assert {span.name for span in sent if span.error == "JobCancelled"} == {"run", "pod"}
    assert {span.attributes["podbridge.outcome"] for span in sent} == {"Failed"}


def test_a_pod_whose_kubelet_is_gone_runs_until_its_release(sent):
    slurm_spans.released(bound(phase="Running", containerStatuses=[{"state": {"running": {}}}]), CREATED + 10)
    assert (times(sent)["run"], times(sent)["release"]) == ((2, 10), (10, 10))
    assert not any("podbridge.outcome" in span.attributes for span in sent)


def test_a_pod_on_a_pool_has_no_spans_of_slurm(sent):
    on_pool = bound()
    del on_pool["metadata"]["annotations"][names.SLURM_NODE_ANNOTATION]
    slurm_spans.released(on_pool, CREATED + 10)
    assert sent == []


def test_a_pod_that_was_deleted_while_it_waited(sent):
    deleted = pod()
    deleted["metadata"]["deletionTimestamp"] = at(4)
    slurm_spans.withdrawn(deleted, 14, CREATED + 1, CREATED + 5)
    slurm_spans.withdrawn(copy.deepcopy(deleted), None, None, CREATED + 5)
    assert [span.name for span in sent] == ["queue", "release", "pod", "release", "pod"]
    assert times(sent) == {"queue": (1, 4), "release": (4, 5), "pod": (0, 5)}
    assert {span.attributes["podbridge.reason"] for span in sent} == {"Deleted"}


def test_a_pod_without_a_context_has_no_span(sent):
    plain = bound()
    del plain["metadata"]["annotations"][names.TRACEPARENT]
    slurm_spans.submitted([plain], 14, CREATED, CREATED)
    slurm_spans.bound(plain, 14, "k", CREATED, CREATED, CREATED)
    slurm_spans.released(plain, CREATED)
    slurm_spans.withdrawn(plain, 14, CREATED, CREATED)
    assert sent == []
    assert slurm_spans.traceparent([plain]) == ""


def test_the_comment_of_a_job_has_the_context_of_the_first_traced_pod(sent):
    plain = pod("w")
    plain["metadata"]["annotations"] = {}
    slurm_spans.released(bound(), CREATED + 10)
    whole = next(span for span in sent if span.name == "pod")
    assert slurm_spans.traceparent([plain, pod(), pod("v")]) == whole.context.text
