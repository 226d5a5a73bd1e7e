"""The output of all commands: tables, JSON and YAML."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import yaml

from bridge.clock import duration, parse_rfc3339


def output_option(*forms: str, explained: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--output``, by default the first of ``forms``; its help ends with ``explained``."""
    text = f"Format of the output{explained}."
    return click.option("-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help=text)


def printable(text: str) -> str:
    """Return the text in one line, without characters that control a terminal: sites and users of Slurm write it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, no_headers: bool = False) -> str:
    """Format rows as columns three spaces apart, as kubectl does; an empty cell is ``-``."""
    lines = [[printable(str(cell)) if cell not in ("", None) else "-" for cell in row] for row in rows]
    if not no_headers:
        lines.insert(0, list(titles))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def print_document(value: object, form: str) -> None:
    """Print a value as JSON or YAML (``form``)."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)


def headers(columns: Sequence[str]) -> list[str]:
    """Return the headers of columns: ``slurm_state`` is ``SLURM-STATE``."""
    return [column.replace("_", "-").upper() for column in columns]


def show(
    records: Sequence[dict[str, Any]],
    columns: Sequence[str],
    output: str,
    *,
    no_headers: bool,
    nothing: str,
    name: tuple[str, str] = ("", ""),
) -> None:
    """Print records: their ``columns`` as a table, or all fields as JSON or YAML; ``nothing`` if there are none.

    ``name`` is the prefix and the field of the output ``name``, a line for each record: ``pod/``, ``name``.
    """
    if output in ("json", "yaml"):
        print_document(list(records), output)
    elif output == "name" and records:
        prefix, field = name
        for record in records:
            if record[field]:
                click.echo(f"{prefix}{record[field]}")
    elif not records:
        click.echo(nothing, err=True)
    else:
        click.echo(table(headers(columns), [[r.get(c) for c in columns] for r in records], no_headers=no_headers))


def age(timestamp: str) -> str:
    """Return the time since a Kubernetes timestamp as kubectl prints it; empty without one."""
    return duration(time.time() - parse_rfc3339(timestamp)) if timestamp else ""
