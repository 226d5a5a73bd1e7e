"""Patterns take ASCII only: int() reads other digits, but Slurm and the shell do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("bridge", "admission", "scheduler", "controllers")
SHOWN_ONLY = ROOT / "bridge/apps"
"""The commands and pages match text to show it."""


def patterns() -> Iterator[tuple[str, str, bool]]:
    """Return place, pattern and whether it has re.ASCII, of each pattern with a class of digits or of letters."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if path.is_relative_to(SHOWN_ONLY):
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            is_re = ast.unparse(call.func).startswith("re.")
            named = [keyword.value for keyword in call.keywords if keyword.arg == "pattern"]
            for argument in [*call.args, *call.keywords] if is_re else named:
                texts = [node.value for node in ast.walk(argument) if isinstance(node, ast.Constant)]
                for text in texts:
                    if isinstance(text, str) and re.search(r"\\[dw]", text):
                        place = f"{path.relative_to(ROOT)}:{call.lineno}"
                        yield place, text, is_re and "re.ASCII" in ast.unparse(call)


def test_every_pattern_is_limited_to_ascii() -> None:
    found = list(patterns())
    assert len(found) > 20
    assert [f"{place}: {text}" for place, text, is_ascii in found if not is_ascii] == []
