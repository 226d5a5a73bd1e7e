"""Authentication: a client certificate, or a token that the API server reviews. Anonymous requests are refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", False)
REMEMBER_KNOWN = 60.0
"""Seconds for which the review of a valid token is cached."""
REMEMBER_UNKNOWN = 10.0
"""Seconds for which the review of an invalid token is cached."""
LONGEST_TOKEN = 16 * 2**10
_TOKENS = 2_000
"""Cached reviews, at most; beyond it the cache starts empty, so that invalid tokens cannot keep out valid ones."""
_BEARER = re.compile(r"Bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


@dataclass(frozen=True)
class User:
    """A user, as in the API server's reviews."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    @property
    def info(self) -> dict[str, Any]:
        """The user in the form of the ``userInfo`` of an admission review."""
        info = {"username": self.name, "uid": self.uid, "groups": list(self.groups), "extra": self.extra}
        return {key: value for key, value in info.items() if value}

    @property
    def key(self) -> tuple[object, ...]:
        """The part of the user that authorization depends on."""
        return (self.name, self.uid, self.groups, tuple(sorted(self.extra.items())))


def user_of_certificate(certificate: bytes, now: float) -> User | None:
    """Return the user of a verified certificate (DER): its common name; its organisations are the groups.

    Return ``None`` if it has no common name or is not valid at ``now``: a connection may last longer than its
    certificate.
    """
    try:
        cert = x509.load_der_x509_certificate(certificate)
        names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        groups = cert.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except ValueError:
        return None
    if not cert.not_valid_before_utc.timestamp() <= now <= cert.not_valid_after_utc.timestamp():
        return None
    name = _text(names[0].value) if names else ""
    return User(name, groups=tuple(_text(group.value) for group in groups)) if name else None


def bearer(authorization: str) -> str | None:
    """Return the token of an ``Authorization`` header; ``None`` if it has none."""
    match = _BEARER.fullmatch(authorization.strip()) if len(authorization) <= LONGEST_TOKEN else None
    return match[1] if match else None


class TokenAuthenticator:
    """Reviews tokens, with a cache. The cache contains hashes, no tokens.

    ``review(token)`` returns the ``status`` of a TokenReview and may raise ``Kube*`` errors.
    """

    def __init__(self, review: Callable[[str], dict[str, Any]], clock: Clock) -> None:
        self._review = review
        self._reviews: SingleFlightCache[tuple[User | None]] = SingleFlightCache(clock, _TOKENS)

    def user(self, token: str) -> User | None:
        """Return the user of a token; ``None`` if the token is invalid."""

        def load() -> tuple[tuple[User | None], float]:
            user = _reviewed(self._review(token))
            return (user,), REMEMBER_UNKNOWN if user is None else REMEMBER_KNOWN

        return self._reviews.get(hashlib.sha256(token.encode()).digest(), load)[0]


def ask_api_server(client: KubeClient) -> Callable[[str], dict[str, Any]]:
    """Return a function that sends a TokenReview."""

    def review(token: str) -> dict[str, Any]:
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview", "spec": {"token": token}}
        return client.create(TOKEN_REVIEWS.path(), body).get("status") or {}

    return review


def _reviewed(status: dict[str, Any]) -> User | None:
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    extra = {str(key): tuple(map(str, values or ())) for key, values in (user.get("extra") or {}).items()}
    return User(str(user["username"]), str(user.get("uid") or ""), tuple(map(str, user.get("groups") or ())), extra)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
