"""The bodies of requests: parsed JSON in interLink's forms, or an answer 400 that names the path of the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from bridge.apps.plugin.plugin_answers import invalid
from bridge.interlink import log_options
from bridge.interlink.messages import LogStruct, PodCreateRequests, RetrievedPodData
from bridge.interlink.objects import JsonObject, Pod, StartedPod
from bridge.interlink.pod_spec import RunnablePod
from bridge.pools.interlink.references import received_containers, received_request
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from bridge.serving.http_error import AnswerError

T = TypeVar("T")

LIMIT = 64 * 2**20
"""Bytes of a body, at most: a pod with all its ConfigMaps and Secrets of 1 MiB each."""


class HopB(RetrievedPodData):
    """The body of ``/create`` from an API server."""

    pod: RunnablePod


class HopA(PodCreateRequests):
    """The body of ``/create`` from a virtual kubelet."""

    pod: RunnablePod


@dataclass(frozen=True, slots=True)
class Creation:
    """One pod to create, with the objects that came with it. ``script``: a builder's script came with it, too."""

    pod: JsonObject
    objects: Objects
    script: bool = False


_HOP_A: TypeAdapter[HopA] = TypeAdapter(HopA)
_HOP_B: TypeAdapter[HopB] = TypeAdapter(HopB)
_RUNNABLE: TypeAdapter[JsonObject] = TypeAdapter(RunnablePod)
_POD: TypeAdapter[JsonObject] = TypeAdapter(Pod)
_STARTED: TypeAdapter[StartedPod] = TypeAdapter(StartedPod)
_ALL_STARTED: TypeAdapter[list[StartedPod]] = TypeAdapter(list[StartedPod])
_LOGS: TypeAdapter[LogStruct] = TypeAdapter(LogStruct)


def creations(data: bytes) -> Creation | list[Creation]:
    """Read the body of ``/create``: an object of hop A or B, a raw pod, or a list of these."""
    body = _json(data)
    if isinstance(body, list):
        if not body:
            raise AnswerError(400, "body: an empty list is not allowed; allowed: at least one pod")
        return [_creation(each, (index,)) for index, each in enumerate(body)]
    return _creation(body, ())


def pods(data: bytes) -> list[StartedPod]:
    """Read the body of ``/status``: a list of pods, or one pod. An empty body and ``null`` are an empty list."""
    text = data.strip()
    # Go encodes an empty slice that was never set as null
    if text in (b"", b"null"):
        return []
    try:
        return [_STARTED.validate_json(text)] if text.startswith(b"{") else _ALL_STARTED.validate_json(text)
    except ValidationError as error:
        raise invalid(error) from error


def pod(data: bytes) -> JsonObject:
    """Read the body of ``/delete``."""
    return _checked(_POD, _json(data))


def log_request(data: bytes, now: float) -> tuple[LogStruct, LogOptions]:
    """Read the body of ``/getLogs``; ``now``: seconds since 1970."""
    request = _checked(_LOGS, _json(data))
    try:
        return request, log_options.received_options(request, now)
    except ValueError as error:
        raise AnswerError(400, str(error)) from error


def _creation(body: Any, path: Sequence[int]) -> Creation:
    if not isinstance(body, Mapping) or not {"pod", "metadata"}.intersection(body):
        raise AnswerError(
            400,
            f"{''.join(f'[{index}]' for index in path) or 'body'}: not allowed; allowed: an object with the keys pod "
            f"and container (from an API server), pod, configmaps, secrets and projectedvolumesmaps (from a virtual "
            f"kubelet), or a pod",
        )
    if "pod" not in body:
        return Creation(_checked(_RUNNABLE, body, path), Objects())
    if "container" in body:
        data = _checked(_HOP_B, body, path)
        pod, objects = received_containers(data.pod, data.container)
        return Creation(pod, objects, script=bool(data.job_script))
    request = _checked(_HOP_A, body, path)
    pod, objects = received_request(request)
    return Creation(pod, objects, script=bool(request.job_script_url))


def _json(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise AnswerError(400, f"body: not JSON: {error}") from error


def _checked(adapter: TypeAdapter[T], body: Any, path: Sequence[int] = ()) -> T:
    try:
        return adapter.validate_python(body)
    except ValidationError as error:
        raise invalid(error, path) from error
