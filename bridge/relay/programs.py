"""Modules that run beside a job as one program, with any Python from 3.6 on."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType


def text(*modules: ModuleType) -> str:
    """Return the modules as one program, each after those that it imports; they import nothing else of podbridge."""
    return "".join(
        line
        for module in modules
        for line in Path(str(module.__file__)).read_text("utf-8").splitlines(keepends=True)
        if not line.startswith("from bridge.")
    )
