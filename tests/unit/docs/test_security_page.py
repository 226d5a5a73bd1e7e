"""docs/admins/security.md names the test of each row: the tests must exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/admins/security.md"


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
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)}


def test_each_line_names_a_test_that_exists():
    rows, known = tables(), defined()
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_[a-z0-9_]+)`", row[-1])
        assert named, f"no test holds: {row}"
        assert set(named) <= known, f"no such test: {set(named) - known}"
