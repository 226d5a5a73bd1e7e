"""A real Prometheus scrapes podbridge, and evaluates every alert rule and every query of the dashboards."""

import json
import re

import pytest

from cluster.polling import eventually
from cluster.systems import prometheus

pytestmark = pytest.mark.real

VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$pool": ".*", "$cluster_queue": ".*", "$namespace": "remote"}
VARIABLES["$pod"] = ".*"
SCRAPES = 4
"""Number of scrapes before the queries: a rate needs two."""


@pytest.fixture(scope="module")
def server(pools_world, tmp_path_factory):
    """A Prometheus that has scraped podbridge some times."""
    prometheus.ensure()
    port = pools_world.cluster.podbridge_port("metrics")
    one = prometheus.Prometheus(tmp_path_factory.mktemp("prometheus"), {"podbridge": [port]})
    one.start()
    try:
        eventually(
            lambda: sum(float(s["value"][1]) for s in one.query("count_over_time(up[1m])")) >= SCRAPES, "scrapes", 30
        )
        yield one
    finally:
        one.stop()


def panels():
    """Return name and query of each target of each panel."""
    for path in sorted(prometheus.DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']} {target['refId']}", target["expr"]


def test_podbridge_is_scraped_in_less_than_100_ms(server):
    (up,) = server.query("up")
    assert up["value"][1] == "1"
    (took,) = server.query("min_over_time(scrape_duration_seconds[1m])")
    assert float(took["value"][1]) < 0.1


def test_every_rule_is_evaluated_without_an_error(server):
    def evaluated():
        rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = eventually(evaluated, "all rules evaluated", 30)
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert firing <= {"PodbridgeBrakeEngaged"}  # it fires at once; other tests of this cluster engage brakes
    assert len(rules) > 20


def test_every_panel_shows_what_exists(server):
    """A query whose metrics exist has a result; without the series of an error or of a feature, it may be empty."""
    existing = set(server.get("label/__name__/values"))
    assert any(name.startswith("podbridge_pool_") for name in existing)
    shown = 0
    for name, expression in panels():
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        found = server.query(expression)  # an error of PromQL is an exception
        metrics = set(re.findall(r"\b(?:podbridge|process)_\w+", expression))
        if metrics and metrics <= existing and "!=" not in expression and "!~" not in expression:
            assert found, f"{name}: no data for {expression}"
            shown += 1
    assert shown >= 30
