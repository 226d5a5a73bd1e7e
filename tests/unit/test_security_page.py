"""docs/security.md names the test of each row: the tests must exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"


def tables():
    """Return the rows of the tables whose last column is "test"."""
    rows, inside = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "test":
            inside = True
        elif inside and set(line) - set("|- "):
            rows.append(cells)
    return rows


def defined():
    """Return the names of all test functions."""
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
    return found


def test_each_line_names_a_test_that_exists():
    rows, known = tables(), defined()
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_[a-z0-9_]+)`", row[-1])
        assert named, f"no test holds: {row}"
        assert set(named) <= known, f"no such test: {set(named) - known}"
