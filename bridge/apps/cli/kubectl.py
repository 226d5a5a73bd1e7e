"""The kubectl plugin: ``kubectl podbridge``, and the program that kubectl calls to complete its command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from click.shell_completion import ShellComplete

from bridge.apps.cli import process_end
from bridge.apps.cli.main import cli, main

NO_FILES = ":4"
"""Cobra's directive ShellCompDirectiveNoFileComp: the shell offers no files."""
FILES = ":0"
"""Cobra's directive ShellCompDirectiveDefault: the shell offers files if there is no other completion."""


def plugin() -> None:
    """Run ``kubectl podbridge`` and end the process."""
    process_end.run(lambda: main("kubectl podbridge"))


def complete() -> None:
    """Run ``kubectl_complete-podbridge WORD...``: the words after ``kubectl podbridge``, the last one incomplete.

    Print a completion in each line, with a tab before its description, and a directive in the last line.
    """
    process_end.run(lambda: sys.stdout.writelines(f"{line}\n" for line in completions(sys.argv[1:])))


def completions(words: Sequence[str]) -> list[str]:
    """Return the lines of the answer to kubectl."""
    *before, incomplete = words or [""]
    shell = ShellComplete(cli, {}, "kubectl podbridge", "_PODBRIDGE_COMPLETE")
    lines, directive = [], NO_FILES
    for item in shell.get_completions(list(before), incomplete):
        if item.type in ("file", "dir"):
            directive = FILES
        else:
            lines.append(f"{item.value}\t{item.help}" if item.help else str(item.value))
    return [*lines, directive]
