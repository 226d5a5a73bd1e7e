"""Draws the layers of the code into CONTRIBUTING.md, from pyproject.toml and the files. ``--check`` only compares."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- begin: hack/house.py -->\n", "<!-- end: hack/house.py -->\n"
WIDTH = 16


def layers() -> list[list[str]]:
    """Return the modules of each layer, as import-linter holds them, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [layer.split(" | ") for layer in found]


def row(module: str) -> str:
    """Return a line of the picture: name, first sentence of the docstring."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    sentence = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0].split(". ")[0].rstrip(".")
    return f"| {module:<{WIDTH}}  {sentence}".rstrip()


def picture() -> str:
    """Return the picture: each layer may import from those below it, and from nothing else."""
    rule = "+" + "-" * (WIDTH + 1)
    parts = ["```"]
    for layer in layers():
        parts += [rule, *(row(module) for module in layer)]
    return "\n".join([*parts, rule, "```", ""])


def text() -> str:
    """Return CONTRIBUTING.md with the picture of this moment."""
    before, _, rest = TARGET.read_text().partition(BEGIN)
    return before + BEGIN + picture() + END + rest.partition(END)[2]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text() else "CONTRIBUTING.md is out of date: run hack/house.py")
    TARGET.write_text(text())
