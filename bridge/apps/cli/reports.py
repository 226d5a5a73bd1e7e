"""Reports on one object: a summary, sections of lines or fields, and the next step; as text, JSON or YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from bridge.apps.cli.output import cell, print_document, printable
from bridge.clock import parse_rfc3339

Report = Mapping[str, Any]
"""``summary`` and ``next`` are texts, which may be absent; each other value is a section."""


def show(heading: str, report: Report, form: str) -> None:
    """Print a report. A section is a list of lines or a mapping of fields; empty sections and fields are left out."""
    if form in ("json", "yaml"):
        print_document(dict(report), form)
        return
    summary = printable(f": {report['summary']}") if report.get("summary") else ""
    click.echo(click.style(printable(heading), bold=True) + summary)
    for title, section in report.items():
        lines = _fields(section) if isinstance(section, Mapping) else section
        if title in ("summary", "next") or not lines:
            continue
        click.echo("\n" + click.style(title.replace("_", " ").capitalize(), bold=True))
        for line in lines:
            click.echo(f"  {printable(line)}")
    if report.get("next"):
        click.echo(f"\n{click.style('Next', bold=True)}: {printable(report['next'])}")


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
