"""The shares of pods and namespaces in the logs that one server sends at once."""

from __future__ import annotations

import threading
from collections import Counter

import flask

from bridge.serving.answers import AnswerError
from bridge.serving.streaming import LIMIT

POD = LIMIT // 8
"""Logs of one pod, at most."""


class LogShares:
    """Counts the logs that are being sent. Each namespace may have half of what the others leave.

    So a namespace alone has 128, and there is always a place for the first log of one more namespace. The kubelet API
    does not know the user of ``kubectl logs``: its client is the API server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._namespaces: Counter[str] = Counter()
        self._pods: Counter[str] = Counter()

    def enter(self, namespace: str, pod: str) -> None:
        """Count one more log. Raises :class:`AnswerError` 429."""
        with self._lock:
            own = self._namespaces[namespace]
            others = self._namespaces.total() - own
            if own >= (LIMIT - others) / 2:
                raise AnswerError(429, f"{own} logs of the namespace {namespace!r} are being sent: end one of them")
            if self._pods[pod] >= POD:
                raise AnswerError(429, f"{POD} logs of this pod are being sent: end one of them")
            self._namespaces[namespace] += 1
            self._pods[pod] += 1

    def leave(self, namespace: str, pod: str) -> None:
        """Count one log less."""
        with self._lock:
            for counts, key in ((self._namespaces, namespace), (self._pods, pod)):
                counts[key] -= 1
                if counts[key] <= 0:
                    del counts[key]

    def until_closed(self, response: flask.Response, namespace: str, pod: str) -> flask.Response:
        """Return the response; when the server closes it, the log that was entered no longer counts."""
        response.call_on_close(lambda: self.leave(namespace, pod))
        return response
