"""Whether a pool accepts submissions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a pool accepts submissions. ``reason`` and ``message`` are empty if it does.

    Parameters
    ----------
    reason
        CamelCase, for conditions of the virtual node.
    message
        One sentence: why the pool accepts no submissions.
    transient
        The state ends without an intervention: for example, a message of the site is still on its way.
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
