"""The output of all commands: tables, JSON and YAML."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import yaml

from bridge.apps.view.records import Listed
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


class Table:
    """Records as columns three spaces apart, as kubectl prints them; a column is as wide as its widest cell so far."""

    def __init__(self, columns: Sequence[str], *, no_headers: bool = False) -> None:
        self._columns, self._widths = columns, [0] * len(columns)
        self._titles = [column.replace("_", "-").upper() for column in columns]
        self._header = not no_headers

    def text(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Return rows for records, the first ones below the header; an empty cell is ``-``."""
        rows = [[printable(cell(record, column)) or "-" for column in self._columns] for record in records]
        header = [self._titles] if rows and self._header else []
        self._header = self._header and not rows
        for row in (*header, *rows):
            self._widths = [max(width, len(text)) for width, text in zip(self._widths, row, strict=True)]
        rows = [row + (["deleted"] if each.get("deleted") else []) for row, each in zip(rows, records, strict=True)]
        return "\n".join(line(self._titles, row, self._widths) for row in (*header, *rows))


def table(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return records as a table."""
    return Table(columns).text(records)


def print_document(value: object, form: str) -> None:
    """Print a value as JSON or YAML (``form``)."""
    if form == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)


def cell(record: Mapping[str, Any], column: str) -> str:
    """Return a field of a record (:mod:`bridge.apps.view.records`) as people read it; empty if it has no value."""
    value = record.get(column)
    if column == "age" and value is None:
        return age(record["created"])
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
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


class Printer:
    """Prints records of a kind as a table, ``wide``, ``json``, ``yaml`` or ``name``: a line for each name."""

    def __init__(self, about: Listed, form: str, *, no_headers: bool = False) -> None:
        self._about, self._form = about, form
        self._table = Table([*about.columns, *(about.wide if form == "wide" else ())], no_headers=no_headers)

    def show(self, records: Sequence[Mapping[str, Any]], *, nothing: str) -> None:
        """Print a list; ``nothing`` if it is empty."""
        if self._form in ("json", "yaml"):
            print_document(list(records), self._form)
        elif records:
            self._print_lines(records)
        else:
            click.echo(nothing, err=True)

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Print records after those before: as JSON one document a line, as YAML one document a record."""
        if self._form == "json":
            click.echo("".join(json.dumps(record) + "\n" for record in records), nl=False)
        elif self._form == "yaml":
            click.echo("".join("---\n" + yaml.safe_dump(record, sort_keys=False) for record in records), nl=False)
        else:
            self._print_lines(records)

    def _print_lines(self, records: Sequence[Mapping[str, Any]]) -> None:
        prefix, field = self._about.prefix, self._about.field
        shown = [f"{prefix}{record[field]}\n" for record in records if record.get(field) not in ("", None)]
        text = "".join(shown) if self._form == "name" else self._table.text(records) + ("\n" if records else "")
        click.echo(text, nl=False)


def age(timestamp: str) -> str:
    """Return the time since a Kubernetes timestamp as kubectl prints it; empty without one."""
    return duration(time.time() - parse_rfc3339(timestamp)) if timestamp else ""
