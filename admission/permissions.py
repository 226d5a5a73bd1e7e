"""Permissions of users for job settings: SubjectAccessReviews with a cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge import names
from bridge.clock import Clock, SystemClock
from bridge.kube import access_review
from bridge.kube.client import KubeClient

REMEMBER_YES = 10.0
"""Seconds to cache a positive answer; a revoked permission still works for this time."""
REMEMBER_NO = 1.0
"""Seconds to cache a negative answer; a new permission works after this time."""
MOST_REMEMBERED = 10_000
_SYSTEM_CLOCK = SystemClock()

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

    def __init__(self, ask: Ask, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], tuple[bool, float]] = {}

    def missing(self, user: Mapping[str, Any], keys: Iterable[str], namespace: str) -> list[str]:
        """List the keys that the user may not use in the namespace. Raises ``Kube*`` errors."""
        return [key for key in keys if not self._allowed(user, key, namespace)]

    def _allowed(self, user: Mapping[str, Any], key: str, namespace: str) -> bool:
        who = (str(user.get("username")), str(user.get("uid")), *sorted(map(str, user.get("groups") or ())))
        question = (namespace, key, *who, repr(user.get("extra") or ""))
        now = self._clock.monotonic()
        with self._lock:
            answer, until = self._known.get(question, (False, 0.0))
        if now < until:
            return answer
        answer = self._ask(user, key, namespace)
        with self._lock:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[question] = (answer, now + (REMEMBER_YES if answer else REMEMBER_NO))
        return answer
