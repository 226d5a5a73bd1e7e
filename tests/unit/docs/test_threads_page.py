"""docs/developers/threads.md has each thread of the product, where it starts, and locks that exist."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/developers/threads.md").read_text()
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("bridge", "admission", "scheduler", "controllers")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
STARTS = ("Thread", "spawn", "spawn_every", "Workers", "ThreadPoolExecutor")
"""Names of functions that start threads."""
PASS_ON = {"bridge/core/workers.py": "*-*"}
"""File -> the name that it makes of the name it was given."""


def rows():
    """Return the cells of each row of the tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| thread", "| ---"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def name_of(node):
    """Return the name of a thread with ``*`` for each part that is not constant; ``None`` if no part is."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return None


@functools.cache
def started():
    """Return file and name of each call that starts a thread or a pool of threads."""
    return list(_started())


def _started():
    for path, source in SOURCES.items():
        if not any(f"{name}(" in source for name in STARTS):
            continue
        for call in ast.walk(ast.parse(source)):
            if not isinstance(call, ast.Call):
                continue
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if function == "Thread":
                named = {keyword.arg: keyword.value for keyword in call.keywords}
                assert "name" in named, f"{path}:{call.lineno}: a thread without a name"
                yield path, name_of(named["name"])
            elif function in ("spawn", "spawn_every", "Workers"):
                yield path, name_of(call.args[0])
            elif function == "ThreadPoolExecutor":
                yield path, function


def test_the_table_has_each_thread():
    assert len(started()) > 50
    table = [(set(quoted(row[0])), set(quoted(row[1]))) for row in rows()]
    for path, name in started():
        if name is None or PASS_ON.get(path) == name:
            assert any(path in paths for _, paths in table), f"{path} starts threads"
        else:
            assert any(name in names and path in paths for names, paths in table), f"{path} starts {name}"


def test_the_table_has_no_other_thread():
    known = {name for _, name in started()}
    files = {path for path, _ in started()}
    for row in rows():
        assert set(quoted(row[1])) <= files
        if "the name of" not in row[0]:
            assert set(quoted(row[0])) <= known, row[0]


def test_each_lock_of_the_table_exists():
    files = defaultdict(list)
    for text in SOURCES.values():
        for owner in re.findall(r"(?m)^class (\w+)", text):
            files[owner].append(text)
    for row in rows():
        for owner, lock in re.findall(r"`(\w+)\.(_?\w+)`", row[3]):
            texts = files[owner]
            assert any(re.search(rf"self\.{lock}\b.*(Lock|Condition)\(", text) for text in texts), f"{owner}.{lock}"
