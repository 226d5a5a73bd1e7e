"""The checks of a request before its page, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from bridge.serving.http_error import AnswerError

SECURITY = {
    # no inline script, no inline style, nothing from another host
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def check_host(host: str, allowed: Collection[str]) -> None:
    """Raise :class:`AnswerError` 421 unless ``host`` is one of ``allowed``; an empty collection allows all.

    A page of another site whose name resolves to this address (DNS rebinding) sends its own name.
    """
    if allowed and host.lower() not in allowed:
        raise AnswerError(421, f"the page has the address {', '.join(sorted(allowed))}, not {host[:100]!r}")


def check_origin(origin: str, host: str) -> None:
    """Raise :class:`AnswerError` 403 for a form of another site; ``origin`` is empty for a client without one."""
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        raise AnswerError(403, "forms of other sites are not accepted")


def loopback_names(port: int) -> frozenset[str]:
    """Return the values of the header Host for a server on loopback."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
