"""Traces: contexts, spans of a pod, and what happens without a tracer."""

import re
import time
from pathlib import Path

import pytest

from bridge import names
from bridge.errors import ConfigError
from bridge.telemetry import trace_export, tracing
from bridge.workload import slurm_spans
from tests.fakes.web_server import Handler, serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = f"00-{TRACE}-{PARENT}-01"
UID = "6a7b1d5e-0000-4000-8000-000000000001"


def pod(traceparent=TEXT):
    annotations = {} if traceparent is None else {names.TRACEPARENT: traceparent}
    metadata = {"namespace": "a", "name": "p", "uid": UID, "annotations": annotations}
    return {"metadata": {**metadata, "creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {}}


CREATED = 1767323045.0


def test_a_context_is_read_as_it_was_written():
    context = tracing.parse(TEXT)
    assert (f"{context.trace:032x}", f"{context.span:016x}", context.sampled) == (TRACE, PARENT, True)
    assert context.text == TEXT
    assert not tracing.parse(f"00-{TRACE}-{PARENT}-00").sampled


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "x", 7, TEXT + "-00", TEXT + "\n", TEXT.upper(), f"01-{TRACE}-{PARENT}-01"),
        *(f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-1"),
    ],
)
def test_a_malformed_context_is_ignored(text, sent):
    assert tracing.parse(text) is None
    tracing.ended(pod(text), CREATED + 9, {}, CREATED)
    tracing.scheduled(pod(text), "site", CREATED)
    assert sent == []


def test_a_pod_that_is_not_recorded_has_no_span(sent):
    tracing.ended(pod(f"00-{TRACE}-{PARENT}-00"), CREATED + 9, {}, CREATED)
    assert sent == []


def test_every_process_derives_the_same_ids_and_no_two_spans_share_one():
    context = tracing.parse(TEXT)
    ids = {tracing.derived(context, uid, name).span for uid in (UID, "other") for name in tracing.SPANS}
    assert len(ids) == 2 * len(tracing.SPANS)
    assert tracing.derived(context, UID, "run") == tracing.derived(tracing.parse(TEXT), UID, "run")


def test_the_spans_of_a_pod_have_the_documented_parents_and_attributes(sent):
    tracing.admitted(tracing.parse(TEXT), "a", pod(), CREATED - 1, CREATED)
    tracing.scheduled(pod(), "site", CREATED + 1)
    with tracing.submitting(pod(), "site", lambda: CREATED + 2):
        header = tracing.current()
    tracing.submitted_at_site(header, "site", ("a", "p", UID), "14", CREATED + 3, CREATED + 4)
    attributes = {"podbridge.pool": "site", "podbridge.outcome": "Failed", "podbridge.reason": "OOMKilled"}
    tracing.ended(pod(), CREATED + 9, attributes, CREATED + 4, CREATED + 5, CREATED + 8)
    by_id = {span.context.span: span for span in sent}
    assert len(by_id) == len(sent) == len(tracing.SPANS)
    assert {s.name: by_id[s.parent.span].name if s.parent else "" for s in sent} == {
        name: parent for name, (parent, _) in tracing.SPANS.items()
    }
    assert {span.context.trace for span in sent} == {int(TRACE, 16)}
    assert {key for span in sent for key in span.attributes} == tracing.ATTRIBUTES.keys() - {"k8s.node.name"}
    times = {span.name: (span.start - CREATED, span.end - CREATED) for span in sent}
    assert times["queue"] == (4, 5)
    assert times["run"] == (5, 8)
    assert times["report"] == (8, 9)
    assert times["pod"] == (0, 9)
    assert {span.name for span in sent if span.error == "OOMKilled"} == {"run", "pod"}


def test_a_job_that_never_started_has_no_run(sent):
    tracing.ended(pod(), CREATED + 9, {"podbridge.outcome": "Failed"}, CREATED + 4, None, CREATED + 8)
    assert [span.name for span in sent] == ["queue", "report", "pod"]


def test_a_start_in_whole_seconds_before_the_submission_leaves_a_queue_without_duration(sent):
    tracing.ended(pod(), CREATED + 9, {}, CREATED + 4.2, CREATED + 4, CREATED + 8)
    times = {span.name: (span.start - CREATED, span.end - CREATED) for span in sent}
    assert times["queue"] == (4, 4)
    assert times["run"] == (4, 8)


def test_a_clock_of_a_site_that_is_ahead_gives_no_negative_span(sent):
    tracing.ended(pod(), CREATED + 9, {}, CREATED + 20, CREATED + 30, CREATED + 40)
    assert all(span.end >= span.start for span in sent)


def test_a_failed_submission_has_no_span_and_its_error_passes(sent):
    with pytest.raises(OSError, match="no"), tracing.submitting(pod(), "site", time.time):
        raise OSError("no")
    assert sent == []
    assert tracing.current() == ""


def test_an_error_of_the_exporter_fails_nothing(monkeypatch):
    def broken(_span):
        raise OSError("queue")

    monkeypatch.setattr(tracing, "tracer", tracing.Tracer(broken, lambda: None))
    tracing.ended(pod(), CREATED + 9, {}, CREATED)


def test_nothing_is_set_up_without_an_endpoint():
    trace_export.setup("x", {"OTEL_TRACES_SAMPLER": "nonsense"})
    trace_export.setup("x", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "true"})
    assert tracing.tracer is None
    assert tracing.new_context() is None


BAD_SPANS = [
    {"started_at": CREATED + 2, "submitted_at": value} for value in (-1e18, -1.0, float("nan"), float("inf"))
] + [{"started_at": 1e30}, {"ended_at": -1e18}, {"attributes": {"podbridge.reason": "\ud800"}}]
"""What a site may report of the end of a pod."""


@pytest.mark.parametrize("bad", BAD_SPANS, ids=repr)
def test_a_span_that_cannot_be_sent_loses_no_other(bad, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    bodies = []

    class Collector(Handler):
        def respond(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer()

    with serving(Collector) as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "OTEL_SERVICE_NAME": "x"}
        for key, value in {**environ, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}.items():
            monkeypatch.setenv(key, value)
        monkeypatch.setattr(tracing, "tracer", None)
        trace_export.setup("x", environ)
        tracing.ended(
            pod(),
            CREATED + 9,
            bad.get("attributes", {}),
            bad.get("submitted_at"),
            bad.get("started_at"),
            bad.get("ended_at"),
        )
        tracing.scheduled(pod(), "another-pool", CREATED + 1)
        tracing.stop()
    assert b"another-pool" in b"".join(bodies)


def test_the_sample_ratio_decides_for_new_pods_only(monkeypatch):
    monkeypatch.setattr(tracing, "tracer", tracing.Tracer(lambda _: None, lambda: None, ratio=0))
    assert tracing.new_context() is None
    assert tracing.of(pod()) is not None


@pytest.mark.parametrize(
    ("environ", "ratio"),
    [
        ({}, 1),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
    ],
)
def test_the_sample_ratio_is_that_of_the_standard_variables(environ, ratio):
    assert trace_export.sample_ratio(environ) == ratio


@pytest.mark.parametrize("text", ["2", "-1", "x", "nan"])
def test_a_wrong_sample_ratio_is_an_error(text):
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER_ARG"):
        trace_export.sample_ratio({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": text})
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
        trace_export.sample_ratio({"OTEL_TRACES_SAMPLER": "jaeger_remote"})


def test_the_page_lists_every_span_and_every_attribute():
    text = (Path(__file__).parents[3] / "docs/admins/tracing.md").read_text()
    spans, rest = text.partition("## Spans")[2].split("\nThe attributes")
    pools = {name: (parent, pool) for name, parent, pool, _ in rows(spans) if pool}
    slurms = {
        name: (parent, pool if slurm == "the same" else slurm) for name, parent, pool, slurm in rows(spans) if slurm
    }
    assert pools == dict(tracing.SPANS)
    assert slurms == dict(slurm_spans.SPANS)
    assert dict(rows(rest)) == dict(tracing.ATTRIBUTES)


def rows(text):
    """Return the cells of the rows of tables whose first cell is code; no code in cells that have nothing else."""
    lines = [line for line in text.splitlines() if line[:3] == "| `"]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [[re.sub(r"^`([^`]*)`$", r"\1", cell) for cell in row] for row in cells]
