"""``podbridge get --watch``: the records at first, then each record that has changed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import yaml

from bridge.apps.cli.output import cell, headers, line, printable
from bridge.errors import BridgeError

PERIOD = 2.0
"""Seconds between two reads."""
IDENTITIES = (("uid",), ("job", "pods"), ("pool",), ("queue",), ("name",))
"""The fields that identify a record: the first of these groups whose first field it has."""
Record = Mapping[str, Any]


def changes(read: Callable[[], Sequence[Record]]) -> Iterator[list[Record]]:
    """Return all records, then, for each further read, those that are new or have changed.

    A record that is no longer listed is returned once more, with the field ``deleted``.
    """
    before: dict[tuple[Any, ...], Record] = {}
    while True:
        now = {_identity(record): record for record in read()}
        changed = [record for key, record in now.items() if before.get(key) != record]
        gone = [{**record, "deleted": True} for key, record in before.items() if key not in now]
        yield [*changed, *gone]
        before = now


def _identity(record: Record) -> tuple[Any, ...]:
    fields = next((fields for fields in IDENTITIES if fields[0] in record), ())
    return tuple(str(record.get(field)) for field in fields)


def show(
    read: Callable[[], Sequence[Record]],
    columns: Sequence[str],
    form: str,
    *,
    no_headers: bool,
    name: tuple[str, str],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Print the changes until the user interrupts. JSON is one document a line, YAML one document a record.

    ``name`` is the prefix and the field of the output ``name``. A read that fails is reported on standard error and
    repeated; the first one raises its :class:`BridgeError`.
    """
    table = _Table(columns, no_headers=no_headers)
    first = True

    def patient() -> Sequence[Record]:
        while True:
            try:
                return read()
            except BridgeError as error:
                if first:
                    raise
                click.echo(printable(f"podbridge: {error}"), err=True)
                sleep(PERIOD)

    for records in changes(patient):
        for record in records:
            if form == "json":
                click.echo(json.dumps(record))
            elif form == "yaml":
                click.echo("---\n" + yaml.safe_dump(record, sort_keys=False), nl=False)
            elif form == "name" and record.get(name[1]) not in ("", None):
                click.echo(f"{name[0]}{record[name[1]]}")
        if form in ("table", "wide"):
            table.add(records)
        sys.stdout.flush()
        first = False
        sleep(PERIOD)


class _Table:
    """A table that grows: a column is as wide as its widest cell so far."""

    def __init__(self, columns: Sequence[str], *, no_headers: bool) -> None:
        self._columns = columns
        self._widths = [len(column) for column in columns]
        self._header = not no_headers

    def add(self, records: Sequence[Record]) -> None:
        """Print rows for records; the first ones after the header."""
        rows = [[self._cell(record, column) for column in self._columns] for record in records]
        if not rows:
            return
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        if self._header:
            self._header = False
            self._print(headers(self._columns))
        for row, record in zip(rows, records, strict=True):
            self._print(row + (["deleted"] if record.get("deleted") else []))

    @staticmethod
    def _cell(record: Record, column: str) -> str:
        return printable(cell(record, column)) or "-"

    def _print(self, cells: Sequence[str]) -> None:
        click.echo(line(headers(self._columns), cells, self._widths))
