"""The Grafana dashboards in helm/podbridge/files/dashboards, from hack/panels.

A file of hack/panels is one dashboard: rows of panels, which share the width. A panel has a title, a description,
queries, and optionally a unit and a type of Grafana. ``job: false`` omits the variable that selects podbridge's
processes. docs/admins/monitoring.md describes the dashboards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

SOURCES = Path(__file__).parents[1] / "panels"
TARGET = Path(__file__).parents[2] / "helm" / "podbridge" / "files" / "dashboards"
WIDTH, HEIGHT = 24, 8
"""Size of a dashboard and of a panel, in units of Grafana's grid; a row of single values has half of this height."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Grafana's model of rows and panels, with their positions."""
    found: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": WIDTH, "x": 0, "y": top}
        found.append({"type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []})
        top += 1
        members = row["panels"]
        height = HEIGHT // 2 if all(panel.get("type") == "stat" for panel in members) else HEIGHT
        width = WIDTH // len(members)
        for column, panel in enumerate(members):
            found.append(_panel(panel, {"h": height, "w": width, "x": column * width, "y": top}))
        top += height
    return [{"id": number, **each} for number, each in enumerate(found, 1)]


def _panel(panel: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("type", "timeseries")
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if kind == "timeseries":
        defaults["min"] = 0
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["description"],
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": q["expr"], "legendFormat": q["legend"]}
            for number, q in enumerate(panel["queries"])
        ],
    }


def variables(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables: the data source, podbridge's jobs in Prometheus, and those of the dashboard."""
    found: list[dict[str, Any]] = [{"name": "datasource", "label": "Data source", "type": "datasource"}]
    found[0] |= {"query": "prometheus", "hide": 0}
    jobs = [{"name": "job", "query": "label_values(podbridge_build_info, job)"}] if source.get("job", True) else []
    for each in (*jobs, *source.get("variables", ())):
        name = each["name"]
        if each.get("type") == "textbox":
            found.append({"name": name, "type": "textbox", "query": ".*", "current": {"text": ".*", "value": ".*"}})
            continue
        several = each.get("several", True)
        found.append(
            {
                "name": name,
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": each["query"], "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": several,
                "includeAll": several,
                **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
            }
        )
    return found


def document(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """Return Grafana's JSON model of a dashboard."""
    links = {"type": "dashboards", "title": "podbridge", "tags": ["podbridge"], "asDropdown": True, "includeVars": True}
    return {
        "uid": f"podbridge-{name}",
        "title": source["title"],
        "description": source["description"],
        "tags": ["podbridge"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {"list": variables(source)},
        "links": [links],
        "panels": panels(source["rows"]),
    }


def files() -> dict[Path, str]:
    """Return the content of each file."""
    sources = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(SOURCES.glob("*.yaml"))}
    return {
        TARGET / f"{name}.json": json.dumps(document(name, source), indent=1) + "\n" for name, source in sources.items()
    }
