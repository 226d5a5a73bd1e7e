"""Reports on one object: a summary, sections of lines, fields or records, and the next step; as text, JSON or YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bridge.apps.cli.output import cell, print_document, printable, table
from bridge.clock import parse_rfc3339

_NO_SECTIONS = ("summary", "next", "requests")
"""Not printed as sections; what a pod requests is a line of another section, in units."""
Report = Mapping[str, Any]
"""``summary`` and ``next`` are texts, which may be absent; each other value is a section."""


def show(heading: str, report: Report, form: str) -> None:
    """Print a report; empty sections and fields are left out.

    A section is a list of lines, a mapping of fields, or a list of records, which is printed as a table.
    """
    if form in ("json", "yaml"):
        print_document(dict(report), form)
        return
    summary = printable(f": {report['summary']}") if report.get("summary") else ""
    click.echo(click.style(printable(heading), bold=True) + summary)
    for title, section in report.items():
        lines = [] if title in _NO_SECTIONS else _lines(section)
        if not lines:
            continue
        click.echo("\n" + click.style(title.replace("_", " ").capitalize(), bold=True))
        for line in lines:
            click.echo(f"  {line}")
    if report.get("next"):
        click.echo(f"\n{click.style('Next', bold=True)}: {printable(report['next'])}")


def _lines(section: Mapping[str, Any] | Sequence[Any]) -> list[str]:
    """Return the lines of a section as the terminal shows them."""
    if isinstance(section, Mapping):
        return list(map(printable, _fields(section)))
    if section and isinstance(section[0], Mapping):
        return table(section, [key for key in section[0] if any(cell(record, key) for record in section)]).split("\n")
    return list(map(printable, section))


def _fields(section: Mapping[str, Any]) -> list[str]:
    """Return a line for each field that has a value, with the values in one column."""
    shown = {key.replace("_", " "): text for key in section if (text := cell(section, key))}
    width = max(map(len, shown), default=0)
    return [f"{key + ':':{width + 1}} {value}" for key, value in shown.items()]


def conditions(status: Mapping[str, Any]) -> list[str]:
    """Return a line for each condition of an object: type, status, reason and message."""
    lines = []
    for each in status.get("conditions") or ():
        reason = f" {each['reason']}" if each.get("reason") else ""
        message = f": {each['message']}" if each.get("message") else ""
        lines.append(f"{each['type']}={each['status']}{reason}{message}")
    return lines


def event_text(event: Mapping[str, Any]) -> str:
    """Return the reason and the note of an Event, with the container that it is about."""
    about = re.fullmatch(r"spec\.\w+\{(.+)\}", str((event.get("regarding") or {}).get("fieldPath") or ""))
    return f"{event.get('reason')}: {f'container {about[1]}: ' if about else ''}{event.get('note')}"


def events(all_events: list[dict[str, Any]], limit: int = 8) -> list[str]:
    """Return a line for each of the last Events: the time (UTC), the reason and the note."""

    def when(event: Mapping[str, Any]) -> str:
        return str(event.get("eventTime") or event["metadata"]["creationTimestamp"])

    last = sorted(all_events, key=lambda event: parse_rfc3339(when(event)))[-limit:]
    return [f"{when(each)[:19].replace('T', ' ')} {event_text(each)}" for each in last]
