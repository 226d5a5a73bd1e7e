"""Events that a test reads, and workers that call at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RecordedEvents:
    """Keeps what is told about objects: ``told`` has the reason and the message of each Event.

    ``about`` has the name of the object, the field of it (a container) and whether the Event is a warning.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.about: list[tuple[str, str, bool]] = []

    def event(self, obj: Any, reason: str, message: str, *, warning: bool = False, **_: Any) -> None:
        self.told.append((reason, message))
        self.about.append((obj.get("metadata", obj).get("name", ""), obj.get("fieldPath", ""), warning))


class ImmediateWorkers:
    """Workers that carry out each call while it is submitted."""

    def submit(self, key: object, call: Callable[[], None], *_: Any, **__: Any) -> None:
        call()
