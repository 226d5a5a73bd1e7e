"""The result of one check of ``podbridge check``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """``result`` is ``ok``, ``warn`` or ``FAIL``; ``what`` names the object; ``fix`` says how to fix the problem."""

    result: str
    what: str
    found: str
    fix: str = ""
