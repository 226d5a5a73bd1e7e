"""Sends the spans of :mod:`bridge.telemetry.tracing` by the SDK of OpenTelemetry, of the extra ``otel``."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from bridge.errors import ConfigError
from bridge.logs import kv
from bridge.telemetry import tracing
from bridge.telemetry.tracing import ADMISSION, SITE_SUBMIT, SUBMIT, Context, Span, Tracer

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SCHEDULE_DELAY = "1000"
"""Milliseconds for which the SDK collects spans, unless ``OTEL_BSP_SCHEDULE_DELAY`` is set. SIGKILL loses them."""
FLUSH_SECONDS = 2.0


def setup(service: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send the spans of this process if a standard variable names an endpoint.

    Raises ModuleNotFoundError without the extra ``otel``, and ConfigError for a wrong sample ratio.
    """
    if not any(environ.get(name) for name in ENDPOINTS) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    ratio = sample_ratio(environ)
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", SCHEDULE_DELAY)
    os.environ.setdefault("OTEL_SERVICE_NAME", service)
    # here: the packages of the extra otel are not installed everywhere
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    processor, resource = BatchSpanProcessor(OTLPSpanExporter()), Resource.create()

    def stop() -> None:
        # a daemon thread: an endpoint that does not answer must not delay the end of the process
        thread = threading.Thread(target=processor.shutdown, name="tracing-stop", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)

    def send(span: Span) -> None:
        readable = _readable(span, resource)
        # the exporter drops a whole batch if it cannot encode one span: a site may report any time and any text
        encode_spans([readable])
        processor.on_end(readable)

    tracing.tracer = Tracer(send, stop, ratio)
    log.info("tracing", extra=kv(service=os.environ["OTEL_SERVICE_NAME"], ratio=ratio))


def sample_ratio(environ: Mapping[str, str]) -> float:
    """Return the share of pods to trace, by the standard variables."""
    sampler = environ.get("OTEL_TRACES_SAMPLER", "parentbased_always_on").removeprefix("parentbased_")
    if sampler in ("always_on", "always_off"):
        return float(sampler == "always_on")
    if sampler != "traceidratio":
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER: {sampler!r} is not allowed; allowed: always_on, always_off, traceidratio"
        )
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1
    if not 0 <= ratio <= 1:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG: {text!r} is not allowed; allowed: a number from 0 to 1")
    return ratio


def _readable(span: Span, resource: Any) -> Any:
    """Return a span of the SDK."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def converted(context: Context, remote: bool) -> Any:
        return SpanContext(context.trace, context.span, remote, TraceFlags(TraceFlags.SAMPLED))

    kinds = {ADMISSION: SpanKind.SERVER, SUBMIT: SpanKind.CLIENT, SITE_SUBMIT: SpanKind.SERVER}
    return ReadableSpan(
        span.name,
        context=converted(span.context, False),
        parent=None if span.parent is None else converted(span.parent, True),
        resource=resource,
        attributes=dict(span.attributes),
        kind=kinds.get(span.name, SpanKind.INTERNAL),
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=int(span.start * 1e9),
        end_time=int(span.end * 1e9),
    )
