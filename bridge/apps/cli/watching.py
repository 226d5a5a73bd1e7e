"""``podbridge get --watch``: the records at first, then each record that has changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from bridge.apps.cli.output import Printer, printable
from bridge.errors import BridgeError

PERIOD = 2.0
"""Seconds between two reads."""
Record = Mapping[str, Any]


def changes(read: Callable[[], Sequence[Record]], key: Sequence[str]) -> Iterator[list[Record]]:
    """Return all records, then, for each further read, those that are new or have changed.

    ``key`` are the fields that identify a record. One that is no longer listed is returned once more, with the field
    ``deleted``.
    """
    before: dict[tuple[Any, ...], Record] = {}
    while True:
        now = {tuple(str(record[field]) for field in key): record for record in read()}
        changed = [record for name, record in now.items() if before.get(name) != record]
        gone = [{**record, "deleted": True} for name, record in before.items() if name not in now]
        yield [*changed, *gone]
        before = now


def show(
    read: Callable[[], Sequence[Record]],
    printer: Printer,
    key: Sequence[str],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Print the changes until the user interrupts.

    A read that fails is reported on standard error and repeated; the first one raises its :class:`BridgeError`.
    """
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

    for records in changes(patient, key):
        printer.add(records)
        sys.stdout.flush()
        first = False
        sleep(PERIOD)
