"""The list of known failures of other bridges names tests that exist."""

import ast
from pathlib import Path

from tests.e2e.pools.test_defects import HERE, NUMBERS, SHOWN

TESTS = Path(__file__).parents[2]


def functions(path):
    """Return the names of all functions of a test file."""
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_number_is_shown_by_tests_that_exist():
    assert list(SHOWN) == NUMBERS
    shown = [one for tests in SHOWN.values() for one in tests]
    files = {one.partition("::")[0] for one in shown}
    assert [file for file in files if not (TESTS / file).exists()] == []
    missing = [one for one in shown if one.partition("::")[2] not in functions(one.partition("::")[0])]
    assert missing == []
    numbered = [name for name in functions(HERE.removesuffix("::")) if name.startswith(("test_nats_", "test_interl"))]
    assert [name for name in numbered if HERE + name not in shown] == []
