"""The trace of a pod in a real collector with a store, Jaeger."""

import pytest

from bridge import names
from bridge.telemetry import tracing
from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import install
from cluster.systems.jaeger import Jaeger

pytestmark = [pytest.mark.real, pytest.mark.long_only]  # the build of Jaeger takes 3 minutes, once

POOL = "slurm-site"


@pytest.fixture
def collector(tmp_path):
    """A running Jaeger."""
    install.ensure(modules=[install.JAEGER])
    running = Jaeger(tmp_path / "jaeger")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def world(state_folder, collector):
    """A cluster with one site; hub and submitter send traces to Jaeger."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    with Cluster(state_folder / "jaeger", pools=[POOL], nodes=1) as cluster:
        cluster.start_submitter(POOL, env=variables)
        cluster.start_podbridge(env=variables)
        found = PoolWorld(cluster)
        found.ready(POOL)
        yield found


@pytest.mark.timeout(1200)  # the build of Jaeger can be a part of it
def test_jaeger_has_the_whole_trace_of_a_pod_on_a_pool(world, collector):
    pod = world.run("sleep 1", POOL)
    world.ended(pod)
    text = world.seen(pod, "traced", lambda p: True)["metadata"]["annotations"][names.TRACEPARENT]
    trace = text.split("-")[1]
    spans = eventually(
        lambda: found if len(found := collector.spans(trace)) == len(tracing.SPANS) else [], "the whole trace", 30
    )
    by_id = {span["spanID"]: span["operationName"] for span in spans}
    parents = {
        span["operationName"]: next((by_id[reference["spanID"]] for reference in span["references"]), "")
        for span in spans
    }
    assert parents == {name: parent for name, (parent, _) in tracing.SPANS.items()}
    assert collector.services() >= {"podbridge", "podbridge-submitter"}
    (run,) = [span for span in spans if span["operationName"] == "run"]
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert (tags["podbridge.pool"], tags["podbridge.outcome"]) == (POOL, "Succeeded")
    assert run["duration"] >= 1_000_000, "microseconds"
