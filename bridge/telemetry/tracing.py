"""Traces of pods by OpenTelemetry: one trace from admission to the end of the job. Does nothing unless it is set up.

The annotation ``bridge.vk.io/traceparent`` of a pod has the W3C trace context that all its spans share. No span is open
in memory: each one is sent when its end is known, with explicit times. The id of a span is a digest of the pod's UID
and the name of the span, so that a process which was restarted refers to the same spans. Only the SDK of the extra
``otel`` sends spans: its queue is bounded and drops spans when it is full, and its own thread sends them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.clock import parse_rfc3339
from bridge.logs import kv

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
Attributes = Mapping[str, str | int | bool]

ADMISSION = "admission"
POD = "pod"
SCHEDULE = "schedule"
SUBMIT = "submit"
SITE_SUBMIT = "site.submit"
QUEUE = "queue"
RUN = "run"
REPORT = "report"
BIND = "bind"
RELEASE = "release"

SPANS: Mapping[str, tuple[str, str]] = {
    ADMISSION: ("", "The review of the new pod by the mutating webhook. The first span of the trace."),
    POD: (ADMISSION, "From the creation of the pod to the report of its end."),
    SCHEDULE: (POD, "From the creation of the pod to its binding."),
    SUBMIT: (POD, "The submission of the job by the hub: the request to the site."),
    SITE_SUBMIT: (SUBMIT, "The submission of the job by the site to its batch system."),
    QUEUE: (POD, "From the acceptance of the job by the site to its start, by the times that the site reports."),
    RUN: (POD, "From the start of the job to its end, by the times that the site reports."),
    REPORT: (POD, "From the end of the job to the write of the final status of the pod."),
}
"""Parent and meaning of each span of a pod on a pool."""
ATTRIBUTES: Mapping[str, str] = {
    "k8s.namespace.name": "Namespace of the pod.",
    "k8s.pod.name": "Name of the pod. The span `admission` of a pod with a generated name has its prefix.",
    "k8s.pod.uid": "UID of the pod. The span `admission` has none.",
    "k8s.node.name": "Node of the pod, if it is on the colocated Slurm.",
    "podbridge.pool": "The pool of the pod.",
    "podbridge.job.id": "Id of the job at the site, or in the colocated Slurm.",
    "podbridge.outcome": "`Succeeded` or `Failed`.",
    "podbridge.reason": "Why the job ended.",
}
"""Meaning of each attribute."""

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Context:
    """A W3C trace context: ids of the trace and of the parent span, and whether the trace is recorded."""

    trace: int
    span: int
    sampled: bool = True

    @property
    def text(self) -> str:
        """The header ``traceparent``."""
        return f"00-{self.trace:032x}-{self.span:016x}-{int(self.sampled):02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended. Times are seconds since 1970. ``error``: why it failed; empty if it did not."""

    name: str
    context: Context
    parent: Context | None
    start: float
    end: float
    attributes: Attributes
    error: str = ""


@dataclass(frozen=True, slots=True)
class Tracer:
    """Sends spans; ``ratio`` is the share of the pods that are traced."""

    send: Callable[[Span], None]
    stop: Callable[[], None]
    ratio: float = 1.0


tracer: Tracer | None = None
"""``None``: this process sends no spans. Callers test this before they compute anything for a span."""
_current: ContextVar[str] = ContextVar("traceparent", default="")


def parse(text: object) -> Context | None:
    """Parse a ``traceparent`` of version 00; ``None`` if it is malformed."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    trace, span = int(match[1], 16), int(match[2], 16)
    return Context(trace, span, bool(int(match[3], 16) & 1)) if trace and span else None


def of(pod: Pod) -> Context | None:
    """Return the trace context of a pod; ``None`` if it has none, a malformed one, or one that is not recorded."""
    context = parse((pod["metadata"].get("annotations") or {}).get(names.TRACEPARENT))
    return context if context is not None and context.sampled else None


def derived(context: Context, uid: str, name: str) -> Context:
    """Return the context of one span of a pod. It is the same in each process."""
    digest = hashlib.sha256(f"{context.trace:032x}/{uid}/{name}".encode()).digest()
    # an id of zeros is not valid (W3C Trace Context)
    return Context(context.trace, int.from_bytes(digest[:8]) or 1)


def new_context() -> Context | None:
    """Return the context of a new pod; ``None`` if tracing is disabled, or for a pod that is not sampled."""
    if tracer is None or (tracer.ratio < 1 and secrets.randbelow(2**32) >= tracer.ratio * 2**32):
        return None
    return Context(secrets.randbits(128) or 1, secrets.randbits(64) or 1)


def current() -> str:
    """Return the ``traceparent`` for requests that this thread sends or answers; empty if there is none."""
    return _current.get()


@contextlib.contextmanager
def within(text: str) -> Iterator[None]:
    """Use this ``traceparent`` for requests of this thread."""
    token = _current.set(text)
    try:
        yield
    finally:
        _current.reset(token)


# --- spans of a pod ---------------------------------------------------------------------------------------------------
def admitted(context: Context, namespace: str, pod: Pod, start: float, end: float) -> None:
    """Send the span of a review."""
    name = pod["metadata"].get("name") or pod["metadata"].get("generateName") or ""
    _send(Span(ADMISSION, context, None, start, end, {"k8s.namespace.name": namespace, "k8s.pod.name": str(name)}))


def scheduled(pod: Pod, node: str, now: float) -> None:
    """Send the span of a pod that was bound to a pool just now."""
    if tracer is not None and (context := of(pod)) is not None:
        child(pod, context, SCHEDULE, created_at(pod, now), now, {"podbridge.pool": node})


@contextlib.contextmanager
def submitting(pod: Pod, pool: str, time: Callable[[], float]) -> Iterator[None]:
    """Send the span of a submission when it ends, unless it fails; requests of this thread have its context."""
    context = of(pod) if tracer is not None else None
    if context is None:
        yield
        return
    start = time()
    with within(derived(context, _uid(pod), SUBMIT).text):
        yield
    child(pod, context, SUBMIT, start, time(), {"podbridge.pool": pool})


def submitted_at_site(text: str, pool: str, identity: tuple[str, str, str], job: str, start: float, end: float) -> None:
    """Send the site's span of a submission; ``identity``: namespace, name and UID of the pod."""
    parent = parse(text)
    if tracer is None or parent is None or not parent.sampled:
        return
    namespace, name, uid = identity
    attributes = {**_identity(namespace, name, uid), "podbridge.pool": pool, "podbridge.job.id": job}
    _send(Span(SITE_SUBMIT, derived(parent, uid, SITE_SUBMIT), parent, start, end, attributes))


def ended(
    pod: Pod,
    now: float,
    attributes: Mapping[str, str],
    submitted_at: float | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
) -> None:
    """Send the spans of a pod whose final status was written just now, with the times that the site has reported."""
    if tracer is None or (context := of(pod)) is None:
        return
    known = {key: value for key, value in attributes.items() if value}
    # the clock of the site may be ahead
    over = min(ended_at or now, now)
    error = known.get("podbridge.reason", "Failed") if known.get("podbridge.outcome") == "Failed" else ""
    if submitted_at is not None:
        started = started_at or over
        # a site that reports whole seconds (Slurm) can report a start before the submission
        child(pod, context, QUEUE, min(submitted_at, started), started, known)
    if started_at is not None:
        child(pod, context, RUN, started_at, over, known, error)
    child(pod, context, REPORT, over, now, known)
    whole(pod, context, now, known, error)


def whole(pod: Pod, context: Context, end: float, attributes: Attributes, error: str = "") -> None:
    """Send the span ``pod``."""
    own = derived(context, _uid(pod), POD)
    _send(Span(POD, own, context, created_at(pod, end), end, {**_attributes(pod), **attributes}, error))


def child(
    pod: Pod,
    context: Context,
    name: str,
    start: float,
    end: float,
    attributes: Attributes,
    error: str = "",
    part: str = "",
) -> None:
    """Send a child of the span ``pod``; ``part`` distinguishes spans of one pod that have the same name."""
    parent = derived(context, _uid(pod), POD)
    own = derived(context, _uid(pod), f"{name}/{part}" if part else name)
    _send(Span(name, own, parent, start, max(start, end), {**_attributes(pod), **attributes}, error))


def _send(span: Span) -> None:
    if tracer is None:
        return
    try:
        tracer.send(span)
    except Exception as error:  # a span must not fail a pod
        log.debug("span not sent", extra=kv(span=span.name, error=repr(error)))


def _uid(pod: Pod) -> str:
    return str(pod["metadata"]["uid"])


def _identity(namespace: str, name: str, uid: str) -> dict[str, str]:
    return {"k8s.namespace.name": namespace, "k8s.pod.name": name, "k8s.pod.uid": uid}


def _attributes(pod: Pod) -> dict[str, str]:
    metadata = pod["metadata"]
    return _identity(metadata["namespace"], metadata["name"], metadata["uid"])


def created_at(pod: Pod, otherwise: float) -> float:
    """Return the time of the pod's creation, in whole seconds."""
    try:
        return parse_rfc3339(pod["metadata"]["creationTimestamp"])
    except (KeyError, ValueError, AttributeError):
        return otherwise


def stop() -> None:
    """Send the last spans, for two seconds at most."""
    if tracer is not None:
        tracer.stop()
