"""The blocks of commands of a page of the documentation, for the tests that run them.

A block that the tests cannot run has an HTML comment before it: ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

PROGRAMS = ("docker", "helm", "kubectl", "nats-server", "podbridge", "scontrol", "source", "squeue")
SHELLS = ("sh", "bash", "shell", "console")
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


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of commands: indented ones that begin with a program, and fenced ones of a shell."""
    reason, begun, language = "", 0, ""
    text: list[str] = []
    for number, line in enumerate([*page.read_text().splitlines(), ""], start=1):
        fence = re.match(r" *```(\w*)", line)
        inside = bool(begun) and (not fence if language else line.startswith("    "))
        if inside:
            text.append(line)
            continue
        if begun:
            found = dedent("\n".join(text))
            if language in SHELLS or (not language and _is_command(found)):
                yield Block(page.name, begun, found, reason)
            reason, begun, text = "", 0, []
            if language:
                language = ""
                continue
        if fence:
            begun, language = number, fence[1] or "none"
        elif line.startswith("    "):
            begun, text = number, [line]
        elif mark := _MARK.fullmatch(line.strip()):
            reason = mark[1]
        elif line.strip():
            reason = ""


def _is_command(text: str) -> bool:
    word = text.split()[0]
    return word in PROGRAMS or word.startswith("./hack/")
