"""The picture of the layers in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from generate.marked import ROOT, between

TARGET = ROOT / "CONTRIBUTING.md"


def layers() -> list[list[str]]:
    """Return the modules of each layer of the import-linter contract, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [layer.split(" | ") for layer in found]


def row(module: str, width: int) -> str:
    """Return a line of the picture: the name in ``width`` columns, the first sentence of the docstring."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    sentence = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0].split(". ")[0].rstrip(".")
    return f"| {module:<{width}}  {sentence}".rstrip()


def picture() -> str:
    """Return the picture: each layer may import from those below it, and from nothing else."""
    width = max(len(module) for layer in layers() for module in layer)
    rule = "+" + "-" * (width + 1)
    parts = ["```"]
    for layer in layers():
        parts += [rule, *(row(module, width) for module in layer)]
    return "\n".join([*parts, rule, "```", ""])


def files() -> dict[Path, str]:
    """Return CONTRIBUTING.md with the current picture."""
    return {TARGET: between(TARGET, picture())}
