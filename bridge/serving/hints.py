"""The web application that receives hints from Slurm over HTTPS: ``POST /hint?job=ID`` says that a job began or ended.

A hint contains no state of the job, and its body is not read: podbridge asks Slurm. So a forged, repeated or lost hint
cannot change the state of a pod. ``job`` is optional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge.telemetry.metrics import SLURM_HINTS

PATH = "/hint"
BODY_LIMIT = 1024
"""Bytes; podbridge's own hints have no body."""
_QUERY = re.compile(r"(?:job=(\d{1,10}))?", re.ASCII)

Wake = Callable[[int | None], bool]
Refusal = Callable[[Mapping[str, Any]], str | None]


def hint_app(wake: Wake, refusal: Refusal | None = None) -> Callable[..., Iterable[bytes]]:
    """Create the WSGI application.

    ``wake`` is called for each hint with the id of the job, or ``None``; it returns false if this process is a standby.
    ``refusal`` returns why a request (its WSGI environment) is refused; ``None``: all requests are accepted.
    """

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, text = _answer(environ, wake, refusal)
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text.encode())))]
        if status.startswith("401"):
            headers.append(("WWW-Authenticate", "Bearer"))
        start_response(status, headers)
        return [text.encode()]

    return app


def _answer(environ: Mapping[str, Any], wake: Wake, refusal: Refusal | None) -> tuple[str, str]:
    reason = refusal(environ) if refusal is not None else None
    if reason is not None:
        SLURM_HINTS.labels("refused").inc()
        return "401 Unauthorized", f"{reason}\n"
    if environ.get("PATH_INFO") != PATH:
        return "404 Not Found", f"hints are sent to {PATH}\n"
    if environ.get("REQUEST_METHOD") != "POST":
        return "405 Method Not Allowed", "hints are sent with POST\n"
    query = environ.get("QUERY_STRING", "")
    match = _QUERY.fullmatch(query)
    if match is None:
        return "400 Bad Request", f"the query {query[:100]!r} is not allowed; allowed: job=ID\n"
    accepted = wake(int(match[1]) if match[1] else None)
    SLURM_HINTS.labels("accepted" if accepted else "standby").inc()
    return "202 Accepted", "" if accepted else "standby\n"
