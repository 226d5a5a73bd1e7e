"""The number of examples of a property test: fewer in a short run than in a long one.

Such a test uses the fixture ``long``, so that it belongs to a part of the long run (``tests/parts.py``).
"""

from __future__ import annotations

from hypothesis import settings

SHORT, LONG = "short", "long"
"""Profiles of hypothesis; ``tests/conftest.py`` registers and loads them."""


def examples(short: int, long: int) -> int:
    """Return the number of examples for the run in progress."""
    return long if settings.get_current_profile_name() == LONG else short
