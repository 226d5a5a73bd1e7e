"""promtool evaluates queries of dashboards on series of kube-state-metrics."""

import json

import pytest
import yaml

from cluster.systems import prometheus

pytestmark = pytest.mark.real

PHASES = {"new": "Pending", "runs": "Running", "over": "Succeeded", "failed": "Failed"}


@pytest.mark.parametrize("title", ["CPU", "Memory"])
def test_pods_that_have_ended_request_nothing_of_a_pool(tmp_path, title):
    prometheus.ensure()
    board = json.loads((prometheus.FILES / "dashboards" / "pools.json").read_text())
    (panel,) = [each for each in board["panels"] if each["title"] == title]
    (query,) = [each["expr"] for each in panel["targets"] if each["legendFormat"].endswith("requested")]
    series = {
        f'kube_pod_status_phase{{namespace="team", pod="{pod}", phase="{phase}"}}': f"{int(phase == now)}x5"
        for pod, now in PHASES.items()
        for phase in (*PHASES.values(), "Unknown")
    }
    for number, pod in enumerate(PHASES):
        labels = f'namespace="team", pod="{pod}", node="site", resource="{title.lower()}"'
        series[f"kube_pod_container_resource_requests{{{labels}}}"] = f"{10**number}x5"
    expected = [{"labels": '{node="site"}', "value": 11}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query.replace("$pool", ".*"), "eval_time": "3m", "exp_samples": expected}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    prometheus.promtool("test", "rules", str(file))
