"""Authorization: a request is mapped to sub-resources of its node, as in a kubelet, and the API server reviews it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.kube import access_review
from bridge.kube.kube_client import KubeClient
from bridge.serving.http_error import AnswerError
from controllers.kubelet.authentication import User

REMEMBER_YES = 300.0
"""Seconds for which a permission is cached: the default of the kubelet."""
REMEMBER_NO = 30.0
"""Seconds for which a refusal is cached: the default of the kubelet."""
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCES = {"stats": "stats", "metrics": "metrics", "logs": "log", "spec": "spec", "checkpoint": "checkpoint"}
_OR_PROXY = {"pods": "pods", "runningpods": "pods", "healthz": "healthz", "configz": "configz"}

Ask = Callable[[User, str, str, str], bool]
"""``ask(user, verb, subresource, node)`` returns whether the user may; an empty node is any node. Raises ``Kube*``."""


def subresources(path: str) -> tuple[str, ...]:
    """Return the sub-resources of ``nodes`` for a request to ``path``. Permission for one of them is sufficient."""
    first = path.strip("/").split("/", 1)[0]
    if first in _SUBRESOURCES:
        return (_SUBRESOURCES[first],)
    return (_OR_PROXY[first], "proxy") if first in _OR_PROXY else ("proxy",)


def ask_api_server(client: KubeClient) -> Ask:
    """Return a function that sends a SubjectAccessReview."""

    def ask(user: User, verb: str, subresource: str, node: str) -> bool:
        return access_review.allowed(
            client, user.info, verb=verb, group="", resource="nodes", subresource=subresource, namespace="", name=node
        )

    return ask


class KubeletAuthorizer:
    """Reviews requests, with a cache. Raises ``Kube*`` errors if the API server does not answer."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._permissions: SingleFlightCache[bool] = SingleFlightCache(clock)

    def nodes(self, user: User, method: str, path: str, nodes: Iterable[str]) -> set[str]:
        """Return the nodes to which the user may send the request.

        A user with permission for all nodes needs one review, whatever their number. Raises :class:`AnswerError` 403 if
        the user has no permission for any of them.
        """
        requested = sorted(set(nodes))
        if self._may(user, method, path, ""):
            return set(requested)
        allowed = {node for node in requested if self._may(user, method, path, node)}
        if not allowed:
            raise AnswerError(403, refusal(user, method, path))
        return allowed

    def check(self, user: User, method: str, path: str, node: str) -> None:
        """Raise :class:`AnswerError` 403 unless the user may send the request to the node (empty: to any node)."""
        if not self._may(user, method, path, node):
            raise AnswerError(403, refusal(user, method, path))

    def _may(self, user: User, method: str, path: str, node: str) -> bool:
        return any(self._may_use(user, VERBS.get(method, ""), sub, node) for sub in subresources(path))

    def _may_use(self, user: User, verb: str, subresource: str, node: str) -> bool:
        def load() -> tuple[bool, float]:
            allowed = bool(verb) and self._ask(user, verb, subresource, node)
            return allowed, REMEMBER_YES if allowed else REMEMBER_NO

        return self._permissions.get((user.key, verb, subresource, node), load)


def refusal(user: User, method: str, path: str) -> str:
    """Return the message for a refused request, in the form of the kubelet."""
    subs = ",".join(subresources(path))
    return f"Forbidden (user={user.name}, verb={VERBS.get(method, '')}, resource=nodes, subresource(s)=[{subs}])"
