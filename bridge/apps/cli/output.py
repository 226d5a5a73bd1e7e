"""The output of all commands: tables, JSON and YAML."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import yaml

from bridge.clock import duration, parse_rfc3339
from bridge.slurm.job_words import memory

MIB, GIB = 2**20, 2**30


def output_option(*forms: str, explained: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--output``, by default the first of ``forms``; its help ends with ``explained``."""
    text = f"Format of the output{explained}."
    return click.option("-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help=text)


def printable(text: str) -> str:
    """Return the text in one line, without characters that control a terminal: sites and users of Slurm write it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


COLOURS = {
    "PHASE": {"Failed": "red", "Pending": "yellow", "Running": "green"},
    "READY": {"False": "red", "Unknown": "red"},
    "RESULT": {"FAIL": "red", "warn": "yellow", "ok": "green"},
}
"""The colour of a value in the column with this header. :func:`click.echo` writes colours to terminals only."""
ALARMS = ("PROBLEM", "FAILED")
"""Headers of columns in which each value but 0 is red."""


def line(titles: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row of a table, coloured by the headers of its columns; the header itself is bold."""
    shown = []
    for title, text, width in itertools.zip_longest(titles, cells, widths):
        colour = "red" if title in ALARMS and text not in ("-", "0") else COLOURS.get(title, {}).get(text)
        bold = text == title or None
        styled = click.style(text, fg=colour, bold=bold) if colour or bold else text
        shown.append(styled + " " * ((width or 0) - len(text)))
    return "   ".join(shown).rstrip()


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, no_headers: bool = False) -> str:
    """Format rows as columns three spaces apart, as kubectl does; an empty cell is ``-``."""
    lines = [[printable(str(cell)) if cell not in ("", None) else "-" for cell in row] for row in rows]
    if not no_headers:
        lines.insert(0, list(titles))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    return "\n".join(line(titles, each, widths) for each in lines)


def print_document(value: object, form: str) -> None:
    """Print a value as JSON or YAML (``form``)."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)


def headers(columns: Sequence[str]) -> list[str]:
    """Return the headers of columns: ``slurm_state`` is ``SLURM-STATE``."""
    return [column.replace("_", "-").upper() for column in columns]


def cell(record: Mapping[str, Any], column: str) -> str:
    """Return a field of a record (:mod:`bridge.apps.view.records`) as people read it; empty if it has no value."""
    if column == "age" and "age" not in record:
        return age(record["created"])
    value = record.get(column)
    if value is None:
        return ""
    if isinstance(value, Mapping):
        if value.keys() == {"used", "total"}:
            return _usage(column, value["used"], value["total"])
        return ",".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return memory(value / MIB) if column == "memory" and isinstance(value, int) else str(value)


def _usage(column: str, used: float, total: float) -> str:
    """Return the used and the offered amount of a resource: ``2/16``, of memory in bytes ``1.5/62.0Gi``."""
    if column == "memory":
        return f"{used / GIB:.1f}/{total / GIB:.1f}Gi"
    return "/".join(f"{value:.3f}".rstrip("0").rstrip(".") for value in (used, total))


def show(
    records: Sequence[Mapping[str, Any]],
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
        click.echo(table(headers(columns), [[cell(r, c) for c in columns] for r in records], no_headers=no_headers))


def age(timestamp: str) -> str:
    """Return the time since a Kubernetes timestamp as kubectl prints it; empty without one."""
    return duration(time.time() - parse_rfc3339(timestamp)) if timestamp else ""
