"""Permissions of users for job settings: SubjectAccessReviews with a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.kube import access_review
from bridge.kube.kube_client import KubeClient

REMEMBER_YES = 10.0
"""Seconds to cache a positive answer; a revoked permission still works for this time."""
REMEMBER_NO = 1.0
"""Seconds to cache a negative answer; a new permission works after this time."""

Ask = Callable[[Mapping[str, Any], str, str], bool]
"""``ask(user, key, namespace)``; raises ``Kube*`` errors."""


def ask_api_server(client: KubeClient) -> Ask:
    """Return a function that creates a SubjectAccessReview for ``use`` on ``slurmjobs.bridge.vk.io/<key>``."""

    def ask(user: Mapping[str, Any], key: str, namespace: str) -> bool:
        return access_review.allowed(
            client,
            dict(user),
            verb=names.PERMISSION_VERB,
            group=names.PERMISSION_GROUP,
            resource=names.PERMISSION_RESOURCE,
            subresource=key,
            namespace=namespace,
        )

    return ask


class Permissions:
    """Checks permissions with a cache. Errors of the API server are raised, not cached."""

    def __init__(self, ask: Ask, clock: Clock = SYSTEM_CLOCK) -> None:
        self._ask = ask
        self._cache: SingleFlightCache[bool] = SingleFlightCache(clock)

    def missing(self, user: Mapping[str, Any], keys: Iterable[str], namespace: str) -> list[str]:
        """List the keys that the user may not use in the namespace. Raises ``Kube*`` errors."""
        return [key for key in keys if not self._allowed(user, key, namespace)]

    def _allowed(self, user: Mapping[str, Any], key: str, namespace: str) -> bool:
        identity = (str(user.get("username")), str(user.get("uid")), *sorted(map(str, user.get("groups") or ())))
        question = (namespace, key, *identity, repr(user.get("extra") or ""))

        def load() -> tuple[bool, float]:
            allowed = self._ask(user, key, namespace)
            return allowed, REMEMBER_YES if allowed else REMEMBER_NO

        return self._cache.get(question, load)
