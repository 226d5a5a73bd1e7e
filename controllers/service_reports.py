"""The Events about Services of pods at sites: what a lasting state would repeat is written once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from bridge.kube.events import EventRecorder
from bridge.workload import pods

MOST = 32
"""Texts about a pod: users and sites cause any number of them."""


class ServiceReports:
    """Writes warnings with one reason and action. For any thread."""

    def __init__(self, events: EventRecorder, reason: str, action: str) -> None:
        self._events, self._reason, self._action = events, reason, action
        self._lock = threading.Lock()
        self._texts: dict[str, set[str]] = {}

    def keep(self, present: Collection[str]) -> None:
        """Forget what was reported about other pods than those with these UIDs."""
        with self._lock:
            self._texts = {uid: texts for uid, texts in self._texts.items() if uid in present}

    def once(self, pod: Mapping[str, Any], text: str) -> None:
        """Write an Event, unless there was an equal one about the pod, or too many."""
        with self._lock:
            texts = self._texts.setdefault(pods.uid(pod), set())
            if text in texts or len(texts) >= MOST:
                return
            texts.add(text)
        self.event(pod, text)

    def event(self, pod: Mapping[str, Any], text: str) -> None:
        """Write an Event."""
        self._events.event(pod, self._reason, text, warning=True, action=self._action)
