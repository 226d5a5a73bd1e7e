"""Requests that no client of interLink sends: those of pages in a browser, and those under another name of the host."""

from __future__ import annotations

from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from bridge.apps.plugin.listen import Address
from bridge.serving.http_error import AnswerError


def check(headers: Headers, *, loopback: bool, other_type: bool) -> None:
    """Raise :class:`AnswerError` for a foreign request.

    Only browsers send the header Origin. A page whose name resolves to a loopback address (DNS rebinding) sends its own
    name as Host. ``other_type``: the request has a body whose Content-Type is not JSON; a form of another site can send
    no JSON type. Go's clients may send no type.
    """
    if headers.get("Origin") is not None:
        raise AnswerError(403, "header Origin: not allowed; requests of web pages are refused")
    host = headers.get("Host", "")
    if loopback and host and not _is_loopback(host):
        raise AnswerError(421, f"header Host: {host[:100]!r} is not allowed; allowed: 127.0.0.1, [::1], localhost")
    if other_type and headers.get("Content-Type"):
        raise AnswerError(
            415, f"header Content-Type: {headers['Content-Type'][:100]!r} is not allowed; allowed: application/json"
        )


def _is_loopback(host: str) -> bool:
    try:
        return Address(host=urlsplit(f"//{host}").hostname or "").is_local
    except ValueError:  # a malformed IPv6 address
        return False
