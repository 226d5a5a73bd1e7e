"""Whether a pool accepts submissions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a pool accepts submissions. ``reason`` and ``message`` are empty if it does.

    ``reason`` is CamelCase, for conditions of the virtual node; ``message`` is one sentence. ``transient``: the state
    ends without an intervention, for example because a message of the site is still on its way.
    """

    reason: str = ""
    message: str = ""
    transient: bool = False

    @property
    def ok(self) -> bool:
        """Whether the pool accepts submissions."""
        return not self.reason

    @property
    def problem(self) -> str:
        """The message, if somebody has to act; otherwise empty."""
        return "" if self.transient else self.message


READY = Readiness()
