"""Dashboards and alert rules name only metrics and labels that exist, and each alert has a page."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from bridge.telemetry import metrics
from generate import dashboards

ROOT = Path(__file__).parents[3]
FILES = ROOT / "helm" / "podbridge" / "files"
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PROCESS = {name: set() for name in ("process_cpu_seconds_total", "process_resident_memory_bytes")}
KUBE_STATE_METRICS = {
    "kube_node_status_allocatable": {"node", "resource", "unit"},
    "kube_pod_container_resource_requests": {"namespace", "pod", "container", "node", "resource", "unit"},
    "kube_pod_container_status_restarts_total": {"namespace", "pod", "container"},
    "kube_pod_created": {"namespace", "pod"},
    "kube_pod_info": {"namespace", "pod", "node", "created_by_kind", "created_by_name"},
    "kube_pod_status_phase": {"namespace", "pod", "phase"},
    "kube_pod_status_ready_time": {"namespace", "pod"},
    "kube_pod_status_scheduled": {"namespace", "pod", "condition"},
    "kube_pod_status_scheduled_time": {"namespace", "pod"},
}
"""The metrics of kube-state-metrics that dashboards use, with their labels (its docs/metrics/workload/pod-metrics.md
and docs/metrics/cluster/node-metrics.md)."""
KUEUE = {
    "kueue_pending_workloads": {"cluster_queue", "status"},
    "kueue_admitted_active_workloads": {"cluster_queue"},
    "kueue_admission_wait_time_seconds_bucket": {"cluster_queue", "le"},
    "kueue_cluster_queue_status": {"cluster_queue", "status"},
}
"""The metrics of Kueue that dashboards use; tests/e2e/kueue compares them with a real Kueue."""
TARGET_LABELS = {"job", "instance", "namespace"}
KEYWORDS = {"sum", "max", "min", "count", "rate", "increase", "absent", "by", "or", "and", "time", "histogram_quantile"}
KEYWORDS |= {"label_replace", "label_values"}


def own():
    """Return the labels of each of podbridge's metrics, as they are scraped."""
    found = {}
    for collector in {id(each): each for each in REGISTRY._names_to_collectors.values()}.values():
        for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
            if family.name.startswith("podbridge_"):
                labels = set(getattr(collector, "_labelnames", ()))
                for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(
                    family.type, [""]
                ):
                    found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


KNOWN = {**own(), **PROCESS, **KUBE_STATE_METRICS, **KUEUE}


def queries():
    """Return each query of dashboards, variables and rules, by a name."""
    for path in sorted((FILES / "dashboards").glob("*.json")):
        model = json.loads(path.read_text())
        for panel in model["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']} {target['refId']}", target["expr"]
        for variable in model["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.stem}: ${variable['name']}", variable["query"]["query"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def used(expression):
    """Return the metrics of a query, and the labels of each selector and of ``by``."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    named = dict(re.findall(r"([a-z_]+)(?:\{([^}]*)\})?(?=[\[\s),]|$|\{)", re.sub(r"by \([^)]*\)", "", bare)))
    selectors = {
        name: set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
        for name, inside in named.items()
        if name not in KEYWORDS and "_" in name
    }
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", bare) for label in group.split(",")}
    return selectors, grouped


def test_the_reader_of_queries_sees_metrics_and_labels():
    found = used('sum by (le, a) (rate(podbridge_x_bucket{job=~"$job", b!="c"}[5m])) / sum(podbridge_y) > 1')
    assert found == ({"podbridge_x_bucket": {"job", "b"}, "podbridge_y": set()}, {"le", "a"})


@pytest.mark.parametrize(("where", "expression"), [pytest.param(*each, id=each[0]) for each in queries()])
def test_a_query_names_metrics_and_labels_that_exist(where, expression):
    selectors, grouped = used(expression)
    if expression.startswith("label_values("):
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", expression).groups()
        assert label in KNOWN[metric] | TARGET_LABELS
        return
    assert selectors, expression
    for metric, labels in selectors.items():
        assert metric in KNOWN, f"{where}: no metric {metric}"
        assert labels <= KNOWN[metric] | TARGET_LABELS, f"{where}: {metric} has no label {labels - KNOWN[metric]}"
    possible = set().union(*(KNOWN[metric] for metric in selectors)) | TARGET_LABELS
    assert grouped <= possible, f"{where}: no label {grouped - possible}"


def test_each_dashboard_has_a_source():
    assert {path.name for path in dashboards.TARGET.iterdir()} == {path.name for path in dashboards.files()}


def test_dashboards_have_different_ids_and_panels_do_not_overlap():
    models = [json.loads(path.read_text()) for path in dashboards.files()]
    assert len({model["uid"] for model in models}) == len(models) == 5
    for model in models:
        taken = set()
        for panel in model["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            assert place["x"] + place["w"] <= dashboards.WIDTH
            taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_texts_and_a_page(rule):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    page = ROOT / rule["annotations"]["runbook_url"]
    text = page.read_text()
    assert page.stem == rule["alert"]
    assert (
        f"Severity: {rule['labels']['severity']}, " + ("after " + rule["for"] if "for" in rule else "at once") in text
    )
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        f"# {rule['alert']}",
        "## Meaning",
        "## What to do",
    ]
    assert (
        f"[{rule['alert']}]({rule['alert']}.md) | {rule['labels']['severity']} |"
        in (page.parent / "README.md").read_text()
    )


def test_no_page_describes_an_alert_that_does_not_exist():
    pages = {path.stem for path in (ROOT / "docs/admins/runbooks").glob("*.md")} - {"README"}
    assert pages == {rule["alert"] for rule in RULES}


def test_each_defect_and_each_state_that_podbridge_does_not_leave_by_itself_has_an_alert():
    alerted = set().union(*(used(rule["expr"])[0] for rule in RULES))
    assert {"podbridge_isolated_errors_total", "podbridge_stranded_pods"} <= alerted
    symptoms = (ROOT / "docs/admins/troubleshooting.md").read_text()
    assert {name for name in own() if name in symptoms} <= alerted


BASE_UNITS = ("_seconds", "_bytes", "_info", "_total")
COUNTS = {"jobs", "commands", "connections", "ports", "nodes", "pods", "objects", "flavors", "depth", "waiting"}
STATES = {"leader", "up", "engaged", "others"}


@pytest.mark.parametrize("name", sorted(own()))
def test_the_name_of_a_metric_follows_the_conventions(name):
    """Counters end in _total, durations and sizes in base units; gauges of objects end in a plural noun."""
    assert re.fullmatch(r"podbridge_[a-z]+(_[a-z]+)*", name)
    name = re.sub(r"_(bucket|count|sum)$", "", name)
    assert name.endswith(BASE_UNITS) or name.rpartition("_")[2] in COUNTS | STATES


BOUNDED = {
    "method", "code", "endpoint", "part", "kind", "reason", "name", "state", "result", "path", "waiting_for", "action",
    "controller", "brake", "pool", "phase", "request", "route", "version", "le", "direction",
}  # fmt: skip
"""Labels whose values do not depend on the number of pods, jobs or nodes. ``pool`` and ``brake`` have a value for each
pool, ``kind`` and ``name`` one for each cache and queue, of which a pool has one."""


def test_labels_are_bounded():
    assert set().union(*own().values()) <= BOUNDED


def test_values_of_labels_are_in_snake_case():
    class BindVolumes:
        pass

    assert metrics.label_of(BindVolumes) == "bind_volumes"


def test_counters_have_no_second_series_for_their_creation():
    metrics.WATCH_RESTARTS.labels("pods", "ended").inc()
    assert not [
        sample.name
        for family in metrics.WATCH_RESTARTS.collect()
        for sample in family.samples
        if sample.name.endswith("_created")
    ]
