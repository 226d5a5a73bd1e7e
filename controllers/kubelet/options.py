"""The query parameters of ``/containerLogs``, validated as in a kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.clock import parse_rfc3339
from bridge.protocol.model.requests import LogOptions
from bridge.serving.http_error import AnswerError

Query = Mapping[str, Sequence[str]]
_LARGEST = 2**63 - 1


def log_options(query: Query, container: str, now: float) -> LogOptions:
    """Parse the query of a request for a log. ``sinceSeconds`` is relative to ``now``.

    Raises :class:`AnswerError`: 400 for a value that cannot be parsed, 422 for one that is not allowed.
    """
    tail = _number(query, "tailLines")
    if (tail_text := _first(query, "tail")) and tail is None:
        tail = None if tail_text == "all" else _number(query, "tail")
    limit = _number(query, "limitBytes")
    seconds = _number(query, "sinceSeconds")
    since = _time(query, "sinceTime")
    for name, value, minimum in (("tailLines", tail, 0), ("limitBytes", limit, 1), ("sinceSeconds", seconds, 1)):
        if value is not None and value < minimum:
            raise AnswerError(422, f"{name}: {value}: must be {minimum} or more")
    if seconds is not None and since is not None:
        raise AnswerError(422, "at most one of sinceTime and sinceSeconds may be given")
    stream = _first(query, "stream")
    if stream not in (None, "", "All"):
        raise AnswerError(
            400 if stream in ("Stdout", "Stderr") else 422,
            f"stream: {stream}: must be All: standard output and standard error are one log at a site",
        )
    if seconds is not None:
        since = now - seconds
    return LogOptions(
        container=container,
        follow=_flag(query, "follow"),
        tail=tail,
        since=since,
        timestamps=_flag(query, "timestamps"),
        limit_bytes=limit,
        previous=_flag(query, "previous"),
    )


def _first(query: Query, name: str) -> str | None:
    values = query.get(name)
    return values[0] if values else None


def _flag(query: Query, name: str) -> bool:
    """Parse a boolean as Kubernetes does: no value is invalid, and ``?follow`` alone is true."""
    value = _first(query, name)
    return value is not None and value.lower() not in ("false", "0")


def _number(query: Query, name: str) -> int | None:
    value = _first(query, name)
    if value is None:
        return None
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and abs(int(value)) <= _LARGEST):
        raise AnswerError(400, f"{name}: {value[:40]!r}: must be a whole number")
    return int(value)


def _time(query: Query, name: str) -> float | None:
    value = _first(query, name)
    if value in (None, "", "null"):
        return None
    try:
        if "T" not in value.upper() or not (value.upper().endswith("Z") or value[-6:-5] in ("+", "-")):
            raise ValueError("not RFC 3339")
        return parse_rfc3339(value.upper())
    except (ValueError, OverflowError) as error:
        raise AnswerError(400, f"{name}: {value[:40]!r}: must be a time such as 2026-01-31T12:00:00Z") from error
