"""The trace of a pod on a pool over NATS, as a receiver of OTLP gets it."""

from collections import Counter

import pytest

from bridge import names, tracing
from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from tests.fakes.otlp_receiver import OtlpReceiver

pytestmark = pytest.mark.real

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
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret",
    }


@pytest.fixture(scope="module")
def world(state_folder, variables):
    """A cluster with one site; hub and submitter send traces."""
    with Cluster(state_folder / "tracing", slurm=None, pools=[POOL], nodes=1, kwok=False) as cluster:
        cluster.start_submitter(POOL, env=variables)
        cluster.start_podbridge(env=variables)
        found = PoolWorld(cluster)
        found.ready(POOL)
        yield found


def trace_of(receiver, pod, span="pod"):
    """Wait for a span of a pod; return all its spans by name."""
    name = pod["metadata"]["name"]
    eventually(lambda: span in {found.name for found in receiver.of(name)}, f"span {span} of {name}", 30)
    found = receiver.of(name)
    assert max(Counter(one.name for one in found).values()) == 1, "no span arrived twice"
    return {one.name: one for one in found}


def check_parents(spans):
    """Check names and parents of the spans of a whole trace."""
    assert spans.keys() == tracing.SPANS.keys()
    assert len({span.trace for span in spans.values()}) == 1
    by_id = {span.id: span.name for span in spans.values()}
    assert {span.name: by_id.get(span.parent, "") for span in spans.values()} == {
        name: parent for name, (parent, _) in tracing.SPANS.items()
    }


def test_a_pod_has_one_trace_from_admission_to_the_report_of_its_end(world, receiver):
    pod = world.run("sleep 1", POOL)
    world.ended(pod)
    spans = trace_of(receiver, pod)
    check_parents(spans)
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
    assert all(span.start >= spans["pod"].start - COARSE for span in spans.values())
    assert all(span.end <= spans["pod"].end for span in spans.values())
    assert {span.attributes["k8s.pod.uid"] for name, span in spans.items() if name != "admission"} == {
        pod["metadata"]["uid"]
    }
    assert f"{POOL}/{spans['run'].attributes['podbridge.job.id']}" == world.taken(pod)
    assert spans["run"].attributes["podbridge.outcome"] == "Succeeded"
    assert receiver.tokens == {"Bearer secret"}


def test_the_trace_of_a_failed_pod_has_its_error(world, receiver):
    pod = world.run("exit 3", POOL)
    world.ended(pod)
    spans = trace_of(receiver, pod)
    check_parents(spans)
    assert {name for name, span in spans.items() if span.is_error} == {"run", "pod"}


def test_a_trace_survives_a_killed_hub_and_a_killed_submitter(world, receiver, variables):
    """Both end while the job runs; their successors send the other spans of the same trace, each once."""
    pod, release = world.held("true", POOL)
    world.seen(pod, "running", lambda p: p["status"].get("phase") == "Running")
    trace_of(receiver, pod, "submit")
    trace_of(receiver, pod, "site.submit")
    world.cluster.kill("podbridge")
    world.cluster.kill(f"{POOL}-submitter")
    release()
    world.cluster.start_submitter(POOL, env=variables)
    world.cluster.start_podbridge(env=variables)
    world.ended(pod)
    check_parents(trace_of(receiver, pod))


def test_a_pod_joins_the_trace_of_its_user(world, receiver):
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    spec = {"containers": [container], "restartPolicy": "Never"}
    pod = world.create_pod(spec, POOL, annotations={names.TRACEPARENT: f"00-{TRACE}-{PARENT}-01"})
    world.ended(pod)
    spans = trace_of(receiver, pod)
    assert spans.keys() == tracing.SPANS.keys() - {"admission"}
    assert {span.trace for span in spans.values()} == {TRACE}
    assert spans["pod"].parent == PARENT


def test_a_malformed_context_is_replaced(world, receiver):
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    spec = {"containers": [container], "restartPolicy": "Never"}
    pod = world.create_pod(spec, POOL, annotations={names.TRACEPARENT: 'x"; drop'})
    world.ended(pod)
    check_parents(trace_of(receiver, pod))


def test_an_error_of_the_collector_delays_no_pod(world, receiver):
    receiver.status = 503
    try:
        pod = world.run("true", POOL)
        world.ended(pod)
        eventually(lambda: receiver.refused, "a refused request", 30)
    finally:
        receiver.status = 200
    assert world.remote_job(world.seen(pod, "ended", lambda p: True))
