"""One line of the report of ``podbridge check``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """``ok``, ``warn`` or ``FAIL``, what was looked at, what was found, how to mend it."""

    result: str
    what: str
    found: str
    mend: str = ""
