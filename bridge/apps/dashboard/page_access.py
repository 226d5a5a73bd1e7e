"""Who sees the page: the user of the kubeconfig with the token of the URL, or users with tokens of the API server."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bridge import names
from bridge.apps.dashboard.cookie_seal import CookieSeal
from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.kube import access_review
from bridge.kube.kube_client import KubeClient
from bridge.kube.user_client import UserClients
from controllers.kubelet.authentication import LONGEST_TOKEN, TokenAuthenticator, User, bearer

REMEMBER_YES = 60.0
"""Seconds for which a permission is cached."""
REMEMBER_NO = 15.0
"""Seconds for which a refusal is cached: a new role is effective after this time."""
MOST_NAMESPACES = 100
"""Namespaces that are reviewed for a user who may not list the pods of all namespaces; others need the filter."""
LONGEST_COOKIE = 4000
"""Characters of the value of a cookie: browsers refuse cookies above 4,096 bytes."""

May = Callable[[str, str | None], bool]
"""``may(plural, namespace)`` returns whether the user may list the resource; ``None``: in all namespaces."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user of the page. ``client`` has the rights of this user; the page of a pod and logs are read with it.

    ``identity`` is another one for each token: what one has read, another may not see. ``sums`` returns whether the
    user may read the sums of Slurm.
    """

    name: str
    identity: str
    client: KubeClient
    may: May
    sums: Callable[[], bool] = lambda: False

    def namespaces(self, names: Iterable[str]) -> set[str] | None:
        """Return those of these namespaces whose pods the user may list; ``None``: all namespaces."""
        if self.may("pods", None):
            return None
        return {name for name in sorted(names)[:MOST_NAMESPACES] if self.may("pods", name)}


class LocalAccess:
    """One secret for the user who has started the command; the page has the rights of the kubeconfig.

    ``nodes``: whether this user may list nodes.
    """

    signs_in = False
    """Whether users sign in with their own tokens."""

    def __init__(self, client: KubeClient, *, nodes: bool) -> None:
        self.token = secrets.token_urlsafe(32)
        self.cookie = f"podbridge-{secrets.token_hex(4)}"  # cookies of other ports of this host have other names
        self._viewer = Viewer("", "", client, lambda plural, _: plural != "nodes" or nodes, lambda: True)

    def viewer(self, authorization: str, cookie: str) -> Viewer | None:
        """Return the user of the kubeconfig if the cookie has the token."""
        return self._viewer if self.accepts(cookie) else None

    def accepts(self, token: str) -> bool:
        """Whether this is the token of the URL."""
        # == would take the longer, the more of the token is right
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def value(self, token: str) -> str:
        """Return the token of the URL itself: it is valid for this process only."""
        return token


class ReviewedAccess:
    """Tokens of the API server: from the header ``Authorization`` of a proxy, else from the cookie of the page.

    TokenReviews say who the user is, and SubjectAccessReviews what the user may read: methods raise ``Kube*`` errors.
    The cookie is encrypted. ``sums`` are the namespace and the name of the ConfigMap with the sums of Slurm.
    """

    signs_in = True

    def __init__(
        self,
        client: KubeClient,
        users: UserClients,
        tokens: TokenAuthenticator,
        seal: CookieSeal,
        clock: Clock,
        sums: tuple[str, str] = (names.SYSTEM_NAMESPACE, names.slurm_sums(names.COMPONENT)),
    ) -> None:
        self.cookie = "podbridge-token"
        self._client, self._users, self._tokens, self._seal, self._sums = client, users, tokens, seal, sums
        self._viewers: SingleFlightCache[bool] = SingleFlightCache(clock)

    def viewer(self, authorization: str, cookie: str) -> Viewer | None:
        """Return the user of the token of a request."""
        token = bearer(authorization) or self._plain(self._seal.open(cookie) or "")
        user = self._tokens.user(token) if token else None
        if token is None or user is None:
            return None
        return Viewer(
            user.name,
            hashlib.sha256(token.encode()).hexdigest(),
            self._users.client(token),
            lambda plural, namespace: self._may(user, "list", plural, namespace or ""),
            lambda: self._may(user, "get", "configmaps", *self._sums),
        )

    def accepts(self, token: str) -> bool:
        """Whether the API server knows the user of the token."""
        plain = self._plain(token)
        return plain is not None and self._tokens.user(plain) is not None

    def value(self, token: str) -> str:
        """Return the encrypted token."""
        return self._seal.close(token)

    @staticmethod
    def _plain(token: str) -> str | None:
        return bearer(f"Bearer {token}") if token and len(token) < LONGEST_TOKEN - 10 else None

    def _may(self, user: User, verb: str, plural: str, namespace: str, name: str = "") -> bool:
        def ask() -> tuple[bool, float]:
            allowed = access_review.allowed(
                self._client, user.info, verb=verb, group="", resource=plural, namespace=namespace, name=name
            )
            return allowed, REMEMBER_YES if allowed else REMEMBER_NO

        # not the token: two tokens of one user have the same permissions
        key = hashlib.sha256(repr((user.key, verb, plural, namespace, name)).encode()).digest()
        return self._viewers.get(key, ask)


PageAccess = LocalAccess | ReviewedAccess
"""Finds the user of a request; ``cookie`` is the name of the cookie."""
