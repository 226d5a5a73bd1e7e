"""hack/lint.sh is the one list of linters: the hooks of pre-commit call it."""

import subprocess
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[3]
LINT = CHECKOUT / "hack" / "lint.sh"


def lint(*words):
    return subprocess.run([LINT, *words], capture_output=True, text=True, timeout=60)


def test_each_linter_is_a_hook_of_pre_commit():
    (repository,) = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["id"]: hook["entry"] for hook in repository["hooks"]}
    assert hooks == {name: f"./hack/lint.sh {name}" for name in lint("--list").stdout.split()}


def test_an_unknown_linter_is_refused():
    done = lint("flake8")
    assert done.returncode == 2
    assert "no linter flake8; allowed: ruff-check" in done.stderr
