"""The examples of a property test: values, and their number, which is lower in a short run than in the part fuzz."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

SHORT, LONG = "short", "long"
"""Profiles of hypothesis; ``tests/conftest.py`` registers and loads them."""
SHORT_TEXT = st.text(max_size=20)


def examples(short: int, long: int) -> int:
    """Return the number of examples for the run in progress."""
    return long if settings.get_current_profile_name() == LONG else short


def json_values(keys: st.SearchStrategy[str] = SHORT_TEXT, texts: st.SearchStrategy[str] = SHORT_TEXT) -> Any:
    """Return a strategy for JSON of any shape, with these keys and texts."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=8),
        max_leaves=20,
    )
