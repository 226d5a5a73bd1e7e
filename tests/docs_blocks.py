"""The blocks of commands of a page of the documentation, for the tests that run them.

A block that the tests cannot run has an HTML comment before it: ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import yaml

DOCS = Path(__file__).parents[1] / "docs"
SHELLS = ("sh", "bash", "shell", "console")

HOW_TO = ("tests/e2e/test_how_to.py",)
HELM = ("tests/e2e/helm/test_quick_start.py",)
RUN_BY = {
    "quick-start.md": HELM,
    "admins/install.md": (*HELM, *HOW_TO),
    "admins/upgrade.md": HELM,
    "admins/kueue.md": ("tests/e2e/kueue/test_multikueue.py",),
    "admins/switch/from-interlink-slurm.md": HOW_TO,
    "admins/switch/from-interlink.md": HOW_TO,
    "admins/switch/from-nats-plugin.md": HOW_TO,
    "admins/switch/from-slurm-bridge.md": HOW_TO,
    **{
        f"{page}.md": HOW_TO
        for page in (
            "admins/air-gapped",
            "admins/billing",
            "admins/external-nodes",
            "admins/nats",
            "admins/pools",
            "admins/security",
            "admins/several-schedulers",
            "admins/slurm-hints",
            "sites/plugin",
            "sites/sites",
            "users/from-sbatch",
            "users/run-pods",
        )
    },
}
"""Page -> the tests that run its blocks. ``tests/unit/docs/test_docs_blocks.py`` checks that no page of a task is
missing."""

_MARK = re.compile(r"<!-- not run: (.*) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """Commands of a page; ``reason`` says why they are not run, empty: they are."""

    page: str
    line: int
    text: str
    reason: str

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"


def blocks(page: Path, languages: Collection[str] = SHELLS) -> Iterator[Block]:
    """Yield the fenced blocks of these languages; by default commands of a shell."""
    reason, begun, language = "", 0, ""
    text: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = re.match(r" *```(\w*)", line)
        if begun and not fence:
            text.append(line)
        elif begun:
            if language in languages:
                yield Block(page.name, begun, dedent("\n".join(text)), reason)
            reason, begun, text = "", 0, []
        elif fence:
            begun, language = number, fence[1]
        elif mark := _MARK.fullmatch(line.strip()):
            reason = mark[1]
        elif line.strip():
            reason = ""


def commands(name: str) -> list[Block]:
    """Return the blocks of a page of ``docs/`` that are not marked."""
    return [block for block in blocks(DOCS / name) if not block.reason]


def command(name: str, text: str) -> Block:
    """Return the only block of a page, not marked, that contains a text."""
    (found,) = (block for block in commands(name) if text in block.text)
    return found


def manifests(name: str) -> dict[str, str]:
    """Return the text of each block of YAML of a page of ``docs/``, by the name of its last object."""
    texts = [block.text for block in blocks(DOCS / name, ("yaml",))]
    return {list(yaml.safe_load_all(text))[-1]["metadata"]["name"]: text for text in texts}


@dataclass
class Shell:
    """Runs the blocks of pages as a reader does."""

    env: Mapping[str, str]
    folder: Path
    """Working directory."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Words of the pages -> those of the local cluster."""
    timeout: float = 200.0

    def text(self, block: Block, replaced: Mapping[str, str] | None = None) -> str:
        """Return the text of a block for the local cluster."""
        text = block.text
        for old, new in {**(replaced or {}), **self.replaced}.items():
            text = text.replace(old, new)
        return text

    def run(self, block: Block, replaced: Mapping[str, str] | None = None) -> str:
        """Run a block with ``bash -euo pipefail``; return its output; fail with page and line."""
        text = self.text(block, replaced)
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=self.timeout, check=False
        )
        assert done.returncode == 0, f"{block.where}: {text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def page(self, name: str, replaced: Mapping[str, str] | None = None) -> list[str]:
        """Run all blocks of a page that are not marked; return the output of each."""
        return [self.run(block, replaced) for block in commands(name)]
