"""The output of all commands: tables, JSON and YAML."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click
import yaml

from bridge.clock import parse_rfc3339

yaml_or_json = click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Format of the output.",
)


def printable(text: str) -> str:
    """Return the text in one line, without characters that control a terminal: sites and users of Slurm write it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, no_headers: bool = False) -> str:
    """Format rows as columns three spaces apart, as kubectl does; an empty cell is ``-``."""
    lines = [[printable(str(cell)) if cell not in ("", None) else "-" for cell in row] for row in rows]
    if not no_headers:
        lines.insert(0, list(headers))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def as_json(value: object) -> str:
    """Return JSON as all commands print it."""
    return json.dumps(value, indent=2)


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
    if output == "json":
        click.echo(as_json(list(records)))
    elif output == "name" and records:
        prefix, field = name
        for record in records:
            if record[field]:
                click.echo(f"{prefix}{record[field]}")
    elif output == "yaml":
        click.echo(yaml.safe_dump(list(records), sort_keys=False), nl=False)
    elif not records:
        click.echo(nothing, err=True)
    else:
        headers = [column.replace("_", "-").upper() for column in columns]
        click.echo(table(headers, [[r.get(c) for c in columns] for r in records], no_headers=no_headers))


def age(timestamp: str) -> str:
    """Return the time since a Kubernetes timestamp as kubectl prints it: ``5s``, ``12m``, ``3h``, ``2d``."""
    if not timestamp:
        return ""
    seconds = max(0, int(time.time() - parse_rfc3339(timestamp)))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
