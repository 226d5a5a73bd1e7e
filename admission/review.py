"""AdmissionReview v1: parsing of requests, creation of responses. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from admission import large_reviews
from bridge.errors import BridgeError

API_VERSION = "admission.k8s.io/v1"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
MAX_WARNING = 256
"""Characters; the API server drops longer warnings."""
MOST_WARNINGS = 15
"""The API server sends at most 4,096 characters of warnings."""

PODS = frozenset({"pods"})
NAMESPACES = frozenset({"namespaces"})
TEMPLATES = frozenset(
    {"jobs.batch", "cronjobs.batch", "jobsets.jobset.x-k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io"}
)
"""The resources whose objects have templates of pods that podbridge can preview."""

Json = dict[str, Any]


class MalformedReviewError(BridgeError):
    """The request is not a review of the expected resource; the message names the field."""

    reason = "MalformedReview"


@dataclass(frozen=True, slots=True)
class Review:
    """One request. ``object`` and ``old`` are raw objects, empty if the operation has none."""

    uid: str
    operation: str
    subresource: str
    namespace: str
    user: Mapping[str, Any]
    object: Mapping[str, Any]
    old: Mapping[str, Any]
    dry_run: bool = False

    @property
    def user_name(self) -> str:
        """Name of the user who sent the request."""
        return str(self.user.get("username") or "")

    @property
    def groups(self) -> tuple[str, ...]:
        """Kubernetes groups of the user who sent the request."""
        return tuple(map(str, self.user.get("groups") or ()))


def parse(body: bytes, reviewed: Collection[str] = PODS) -> Review:
    """Parse a review of one of ``reviewed``, as ``resource`` or ``resource.group``.

    Raises :class:`MalformedReviewError`.
    """
    if large_reviews.has_too_many_values(body):
        raise MalformedReviewError(f"more than {large_reviews.MOST_VALUES} values")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReviewError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedReviewError("not an object")
    if document.get("kind") != "AdmissionReview" or document.get("apiVersion") != API_VERSION:
        raise MalformedReviewError(f"must be kind AdmissionReview of {API_VERSION}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise MalformedReviewError("request is missing")
    uid, operation = _text(request, "uid"), _text(request, "operation")
    if not uid:
        raise MalformedReviewError("request.uid is missing")
    if operation not in OPERATIONS:
        raise MalformedReviewError(f"request.operation: {operation!r} is not one of {', '.join(OPERATIONS)}")
    resource = _mapping(request, "resource")
    resource_name = ".".join(filter(None, (_text(resource, "resource"), _text(resource, "group"))))
    if resource_name not in reviewed:
        raise MalformedReviewError(f"request.resource: must be {' or '.join(sorted(reviewed))}, not {resource_name!r}")
    parts = ("metadata",) if resource_name in NAMESPACES else ("metadata", "spec")
    review = Review(
        uid=uid,
        operation=operation,
        subresource=_text(request, "subResource"),
        namespace=_text(request, "namespace"),
        user=_mapping(request, "userInfo"),
        object=_object(request, "object", parts),
        old=_object(request, "oldObject", parts),
        dry_run=request.get("dryRun") is True,
    )
    if operation in ("CREATE", "UPDATE") and not review.object:
        raise MalformedReviewError("request.object is missing")
    if operation == "UPDATE" and not review.old:
        raise MalformedReviewError("request.oldObject is missing")
    return review


def allow(uid: str, patch: Sequence[Json] = (), warnings: Sequence[str] = ()) -> Json:
    """Return a response that allows the request, with a JSON patch and warnings."""
    response: Json = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(patch), separators=(",", ":")).encode()).decode()
    return _answer(response, warnings)


def deny(
    uid: str,
    message: str,
    *,
    code: int = 403,
    reason: str = "Forbidden",
    retry_after: int = 0,
    warnings: Sequence[str] = (),
) -> Json:
    """Return a response that denies the request; after ``retry_after`` seconds the same request may succeed."""
    status: Json = {"status": "Failure", "message": message, "code": code, "reason": reason}
    if retry_after:
        status["details"] = {"retryAfterSeconds": retry_after}
    return _answer({"uid": uid, "allowed": False, "status": status}, warnings)


def _answer(response: Json, warnings: Sequence[str]) -> Json:
    if warnings:
        shown = [w if len(w) <= MAX_WARNING else w[: MAX_WARNING - 3] + "..." for w in warnings[:MOST_WARNINGS]]
        remainder = [f"{len(warnings) - MOST_WARNINGS} more warnings"] if len(warnings) > MOST_WARNINGS else []
        response["warnings"] = shown + remainder
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key) or ""
    if not isinstance(value, str):
        raise MalformedReviewError(f"request.{key}: must be text")
    return value


def _mapping(holder: Mapping[str, Any], key: str) -> Json:
    value = holder.get(key) or {}
    if not isinstance(value, dict):
        raise MalformedReviewError(f"request.{key}: must be an object")
    return value


def _object(request: Mapping[str, Any], key: str, parts: Sequence[str]) -> Json:
    raw_object = _mapping(request, key)
    for part in parts:
        if raw_object and not isinstance(raw_object.get(part), dict):
            raise MalformedReviewError(f"request.{key}.{part}: must be an object")
    return raw_object
