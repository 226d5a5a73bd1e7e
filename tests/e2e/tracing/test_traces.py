"""The traces of pods on a pool over NATS and on the colocated Slurm, as a receiver of OTLP gets them."""

import json
import time
from collections import Counter

import pytest

from bridge import names
from bridge.telemetry import tracing
from bridge.workload import slurm_spans
from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from tests.e2e.pools import cases
from tests.fakes.otlp_receiver import OtlpReceiver

pytestmark = [pytest.mark.real, pytest.mark.long_only]  # a cluster of its own

POOL = "slurm-site"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
COARSE = 1.0
"""Seconds: Kubernetes stores the creation of a pod in whole seconds."""


@pytest.fixture(scope="module")
def receiver():
    """A receiver of OTLP."""
    running = OtlpReceiver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def variables(receiver):
    """The environment of each process."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret"}


@pytest.fixture(scope="module")
def world(state_folder, variables):
    """A cluster with one site and a Slurm; hub and submitter send traces."""
    with Cluster(state_folder / "tracing", pools=[POOL], nodes=2) as cluster:
        cluster.start_submitter(POOL, env=variables)
        cluster.start_podbridge(env=variables)
        found = PoolWorld(cluster)
        found.ready(POOL)
        yield found


def trace_of(receiver, pod, *spans):
    """Wait for spans of a pod, which each process sends on its own; return all its spans by name."""
    name = pod["metadata"]["name"]
    wanted = set(spans)
    eventually(lambda: wanted <= {found.name for found in receiver.of(name)}, f"spans {spans} of {name}", 30)
    found = receiver.of(name)
    # an exporter sends again what a slow receiver has not confirmed: the same span with the same times
    different = {(one.name, one.id, one.start, one.end) for one in found}
    assert max(Counter(name for name, *_ in different).values()) == 1, "a name has one span"
    return {one.name: one for one in found}


def whole_trace(receiver, pod, table=tracing.SPANS):
    """Wait for the whole trace of a pod; check names and parents of its spans; return them by name."""
    spans = trace_of(receiver, pod, *table)
    assert spans.keys() == table.keys()
    assert len({span.trace for span in spans.values()}) == 1
    by_id = {span.id: span.name for span in spans.values()}
    assert {span.name: by_id.get(span.parent, "") for span in spans.values()} == {
        name: parent for name, (parent, _) in table.items()
    }
    return spans


def test_a_pod_has_one_trace_from_admission_to_the_report_of_its_end(world, receiver):
    pod = world.run("sleep 1", POOL)
    world.ended(pod)
    spans = whole_trace(receiver, pod)
    text = world.seen(pod, "traced", lambda p: True)["metadata"]["annotations"][names.TRACEPARENT]
    assert text == f"00-{spans['admission'].trace}-{spans['admission'].id}-01"
    assert {span.service for name, span in spans.items() if name != "site.submit"} == {"podbridge"}
    assert spans["site.submit"].service == "podbridge-submitter"
    in_order = [spans[name] for name in ("admission", "submit", "site.submit", "queue", "run", "report")]
    assert [span.start for span in in_order[:3]] == sorted(span.start for span in in_order[:3])
    assert spans["submit"].end >= spans["site.submit"].end
    assert spans["queue"].end == spans["run"].start
    assert spans["run"].end == spans["report"].start
    assert spans["run"].end - spans["run"].start >= 1
    assert spans["pod"].end == spans["report"].end
    # the API server creates the pod after its admission
    assert all(span.start >= spans["pod"].start - COARSE for name, span in spans.items() if name != "admission")
    assert all(span.end <= spans["pod"].end for span in spans.values())
    assert {span.attributes["k8s.pod.uid"] for name, span in spans.items() if name != "admission"} == {
        pod["metadata"]["uid"]
    }
    assert f"{POOL}/{spans['run'].attributes['podbridge.job.id']}" == world.taken(pod)
    assert spans["run"].attributes["podbridge.outcome"] == "Succeeded"
    assert receiver.tokens == {"Bearer secret"}
    job = spans["site.submit"].attributes["podbridge.job.id"]
    comment = world.cluster.site_slurm(POOL, "squeue", "-h", "--states=all", f"--jobs={job}", "-o", "%k")
    assert comment.strip() == f"traceparent=00-{spans['submit'].trace}-{spans['submit'].id}-01"


def test_the_trace_of_a_failed_pod_has_its_error(world, receiver):
    pod = world.run("exit 3", POOL)
    world.ended(pod)
    spans = whole_trace(receiver, pod)
    assert {name for name, span in spans.items() if span.is_error} == {"run", "pod"}


def test_a_pod_joins_the_trace_of_its_user(world, receiver):
    pod = world.create_pod(cases.pod(cases.sh(":")), POOL, annotations={names.TRACEPARENT: f"00-{TRACE}-{PARENT}-01"})
    world.ended(pod)
    wanted = tracing.SPANS.keys() - {"admission"}
    spans = trace_of(receiver, pod, *wanted)
    assert spans.keys() == wanted
    assert {span.trace for span in spans.values()} == {TRACE}
    assert spans["pod"].parent == PARENT


def occupy(world, nodes):
    """Submit a job that has nodes of the Slurm for itself, and wait until it runs; return its id."""
    options = ("--exclusive", f"--nodes={nodes}", "--output=/dev/null")
    job = int(world.slurm("sbatch", "--parsable", *options, "--wrap=sleep 600"))
    eventually(lambda: world.queue().get(job) == "RUNNING", f"job {job} runs")
    return job


def test_a_pod_on_the_colocated_slurm_has_one_trace(world, receiver):
    pod = world.create(run="1", restartPolicy="Never")
    ended = world.seen(pod, "released", lambda p: p["status"].get("phase") == "Succeeded" and not held(p))
    spans = whole_trace(receiver, pod, slurm_spans.SPANS)
    job = world.job_of(ended)
    slurm = {name for name, span in spans.items() if span.attributes.get("podbridge.job.id") == str(job)}
    assert slurm == slurm_spans.SPANS.keys() - {"admission"}
    assert {span.service for span in spans.values()} == {"podbridge"}
    assert spans["queue"].end == spans["bind"].start
    assert spans["schedule"].end == spans["bind"].end
    assert spans["run"].end == spans["release"].start
    assert spans["pod"].end == spans["release"].end
    assert spans["submit"].start < spans["bind"].end <= spans["release"].start + COARSE
    assert spans["run"].end - spans["run"].start >= 1
    assert all(span.start >= spans["pod"].start - COARSE for span in spans.values())
    assert all(
        span.attributes["k8s.node.name"] == ended["spec"]["nodeName"]
        for name, span in spans.items()
        if name in ("queue", "bind", "schedule", "run", "release", "pod")
    )
    comment = json.loads(world.job_comment(job))
    assert comment["traceparent"] == f"00-{spans['pod'].trace}-{spans['pod'].id}-01"
    metadata = pod["metadata"]
    assert world.job(job)["Comment"] == f"{metadata['namespace']}/{metadata['name']}", "for people and sacct"


def held(pod):
    """Whether podbridge's finalizer is on a pod."""
    return names.FINALIZER in (pod["metadata"].get("finalizers") or ())


def test_traces_survive_a_killed_hub_and_a_killed_submitter(world, receiver, variables):
    """Both are killed while a pod runs at the site, one on the Slurm, and one waits in the queue of the Slurm.

    Their successors send the other spans of the same traces, each once.
    """
    at_site, release = world.held("true", POOL)
    world.seen(at_site, "running", lambda p: p["status"].get("phase") == "Running")
    running = world.running(world.create())
    blocker = occupy(world, 1)
    waiting = world.create(cpu="128")
    for pod, spans in ((at_site, ("submit", "site.submit")), (running, ("bind",)), (waiting, ("submit",))):
        for span in spans:
            trace_of(receiver, pod, span)
    world.cluster.kill("podbridge")
    world.cluster.kill(f"{POOL}-submitter")
    release()
    killed = time.time()
    world.cluster.start_submitter(POOL, env=variables)
    world.cluster.start_podbridge(env=variables)
    world.ended(at_site)
    whole_trace(receiver, at_site)
    world.slurm("scancel", str(blocker))
    world.running(waiting)
    for pod in (running, waiting):
        world.delete(pod)
        world.gone(pod)
        spans = whole_trace(receiver, pod, slurm_spans.SPANS)
        assert {name for name, span in spans.items() if span.is_error} == {"run", "pod"}
        assert spans["run"].end > killed - COARSE
    assert spans["queue"].start < killed < spans["queue"].end + COARSE, "the queue of the waiting pod"


def test_a_pod_that_is_deleted_in_slurms_queue_has_its_trace(world, receiver):
    blocker = occupy(world, 2)
    pod = world.create()
    trace_of(receiver, pod, "submit")
    world.delete(pod)
    world.gone(pod)
    world.slurm("scancel", str(blocker))
    wanted = {"admission", "pod", "submit", "queue", "release"}
    spans = trace_of(receiver, pod, *wanted)
    assert spans.keys() == wanted
    assert {spans[name].attributes["podbridge.reason"] for name in ("pod", "queue", "release")} == {"Deleted"}


def test_each_member_of_a_gang_has_its_own_trace(world, receiver):
    gang = world.create_gang("traced", 2, run="1")
    members = eventually(lambda: len(found := world.members(gang)) == 2 and found, "its pods")
    for pod in members:
        world.seen(pod, "released", lambda p: p["status"].get("phase") == "Succeeded" and not held(p))
    wanted = slurm_spans.SPANS.keys() - {"admission"}  # the name of a member is generated after its admission
    found = [trace_of(receiver, pod, *wanted) for pod in members]
    assert all(spans.keys() == wanted for spans in found)
    assert len({spans["run"].attributes["podbridge.job.id"] for spans in found}) == 1
    assert len({spans["pod"].trace for spans in found}) == 2


def test_an_error_of_the_collector_delays_no_pod(world, receiver):
    receiver.status = 503
    try:
        pod = world.run("true", POOL)
        world.ended(pod)
        eventually(lambda: receiver.refused, "a refused request", 30)
    finally:
        receiver.status = 200
    assert world.remote_job(world.seen(pod, "ended", lambda p: True))
