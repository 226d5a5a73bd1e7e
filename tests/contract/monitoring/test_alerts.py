"""promtool evaluates the alert rules: each fires on the series of its fault, and none on those of normal operation."""

import subprocess

import pytest
import yaml

from cluster.systems import prometheus

pytestmark = pytest.mark.real

NORMAL = {
    'podbridge_build_info{version="1"}': "1x75",
    'podbridge_leader{name="podbridge-scheduler", instance="a"}': "1x75",
    'podbridge_leader{name="podbridge-scheduler", instance="b"}': "0x75",
    'podbridge_leader{name="podbridge-controllers", instance="a"}': "1x75",
    'podbridge_kube_requests_total{method="GET", code="200"}': "0+600x75",
    'podbridge_watch_restarts_total{kind="pods", reason="ended"}': "0+100x75",
    'podbridge_scheduler_actions_total{action="submit", result="ok"}': "0+60x75",
    "podbridge_events_dropped_total": "0x75",
    'podbridge_isolated_errors_total{part="scheduler"}': "3x75",
    "podbridge_stranded_pods": "0x75",
    "podbridge_guarded_nodes": "2x75",
    'podbridge_slurm_nodes{state="idle"}': "2x75",
    'podbridge_slurm_snapshot_age_seconds{instance="a"}': "1x75",
    'podbridge_slurm_token_expiry_timestamp_seconds{instance="a"}': "7776000x75",
    'podbridge_slurm_token_expiry_timestamp_seconds{instance="b"}': "0x75",
    'podbridge_slurm_requests_total{endpoint="jobs", code="304"}': "0+600x75",
    'podbridge_scheduler_actions_total{action="submit", result="refused"}': "0+6x75",
    'podbridge_scheduler_pods{waiting_for="submit"}': "5x75",
    'podbridge_scheduler_pods{waiting_for="retry"}': "3x75",
    'podbridge_scheduler_pods{waiting_for="node"}': "0x75",
    'podbridge_start_to_bind_seconds_bucket{le="0.5"}': "0+60x75",
    'podbridge_start_to_bind_seconds_bucket{le="+Inf"}': "0+60x75",
    'podbridge_brake_engaged{brake="slurm"}': "0x75",
    "podbridge_slurm_id_resets_total": "0x75",
    "podbridge_slurm_cancels_refused_total": "0x75",
    "podbridge_nodes_taken_by_others": "0x75",
    'podbridge_external_nodes{state="refused"}': "0x75",
    'podbridge_slurm_hints_total{result="refused"}': "3x75",
    'podbridge_certificate_expiry_timestamp_seconds{instance="a"}': "7776000x75",
    'podbridge_certificate_expiry_timestamp_seconds{instance="b"}': "0x75",
    'podbridge_admission_review_duration_seconds_bucket{le="0.5"}': "0+60x75",
    'podbridge_admission_review_duration_seconds_bucket{le="+Inf"}': "0+60x75",
    'podbridge_pool_up{pool="site"}': "1x75",
    "podbridge_nats_messages_dropped_total": "0x75",
    'podbridge_store_up{kind="nats"}': "1x75",
    'podbridge_queue_flavors{state="conflict"}': "0x75",
    'podbridge_queue_flavors{state="offered"}': "4x75",
}
"""Series of two processes of which nothing is wrong; one value a minute."""

SLOW = {"0.5": "0x75", "10": "0+60x75", "+Inf": "0+60x75"}
FAULTS = {
    "PodbridgeDown": {'podbridge_build_info{version="1"}': "_x75"},
    "PodbridgePartDown": {
        f'podbridge_certificate_expiry_timestamp_seconds{{instance="{one}"}}': "0x75" for one in "ab"
    },
    "PodbridgeNoLeader": {'podbridge_leader{name="podbridge-scheduler", instance="a"}': "0x75"},
    "PodbridgeKubeErrors": {'podbridge_kube_requests_total{method="GET", code="error"}': "0+60x75"},
    "PodbridgeWatchesInterrupted": {'podbridge_watch_restarts_total{kind="pods", reason="error"}': "0+5x75"},
    "PodbridgeActionsFail": {'podbridge_pool_actions_total{action="submit", result="error"}': "0+30x75"},
    "PodbridgeIsolatedErrors": {'podbridge_isolated_errors_total{part="scheduler"}': "0+1x75"},
    "PodbridgeEventsDropped": {"podbridge_events_dropped_total": "0+1x75"},
    "PodbridgeNodesUnguarded": {"podbridge_guarded_nodes": "0x75"},
    "PodbridgeSlurmSilent": {'podbridge_slurm_snapshot_age_seconds{instance="a"}': "0+60x75"},
    "PodbridgeSlurmErrors": {'podbridge_slurm_requests_total{endpoint="jobs", code="500"}': "0+200x75"},
    "PodbridgeSlurmTokenExpires": {'podbridge_slurm_token_expiry_timestamp_seconds{instance="a"}': "200000x75"},
    "PodbridgeSubmissionsStall": {
        'podbridge_scheduler_actions_total{action="submit", result="ok"}': "7x75",
        'podbridge_scheduler_actions_total{action="submit", result="refused"}': "0+60x75",
    },
    "PodbridgeBindSlow": {f'podbridge_start_to_bind_seconds_bucket{{le="{le}"}}': v for le, v in SLOW.items()},
    "PodbridgePodsWaitForNode": {'podbridge_scheduler_pods{waiting_for="node"}': "2x75"},
    "PodbridgeBrakeEngaged": {'podbridge_brake_engaged{brake="slurm"}': "1x75"},
    "PodbridgeJobIdsReused": {"podbridge_slurm_id_resets_total": "0+1x75"},
    "PodbridgeStrandedPods": {"podbridge_stranded_pods": "2x75"},
    "PodbridgeNodesTaken": {"podbridge_nodes_taken_by_others": "3x75"},
    "PodbridgeExternalNodesRefused": {'podbridge_external_nodes{state="refused"}': "1x75"},
    "PodbridgeHintsRefused": {'podbridge_slurm_hints_total{result="refused"}': "0+1x75"},
    "PodbridgeCertificateExpires": {'podbridge_certificate_expiry_timestamp_seconds{instance="a"}': "500000x75"},
    "PodbridgeAdmissionSlow": {
        f'podbridge_admission_review_duration_seconds_bucket{{le="{le}"}}': v for le, v in SLOW.items()
    },
    "PodbridgePoolDown": {'podbridge_pool_up{pool="site"}': "0x75"},
    "PodbridgePoolMessagesDropped": {"podbridge_nats_messages_dropped_total": "0+1x75"},
    "PodbridgeStoreDown": {'podbridge_store_up{kind="nats"}': "0x75"},
    "PodbridgeQueueConflict": {'podbridge_queue_flavors{state="conflict"}': "1x75"},
}
"""The series of each fault; they replace those of normal operation."""


@pytest.fixture(scope="module", autouse=True)
def _promtool():
    prometheus.ensure()


def rules():
    """Return each rule by the name of its alert."""
    groups = yaml.safe_load(prometheus.RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def firing(tmp_path, series):
    """Return the alerts that fire after 70 minutes of ``series``, as promtool reports those that it does not expect.

    promtool prints the alerts that fire against an expectation of none.
    """
    names = sorted(rules())
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "70m", "alertname": name, "exp_alerts": []} for name in names],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(prometheus.RULES)], "tests": [test]}))
    try:
        prometheus.promtool("test", "rules", str(file))
    except subprocess.CalledProcessError as error:
        output = error.stdout + error.stderr
        return {name for name in names if f"alertname: {name}," in output}, output
    return set(), ""


def test_the_rules_are_valid():
    assert f"{len(rules())} rules found" in prometheus.promtool("check", "rules", str(prometheus.RULES))


def test_no_alert_fires_in_normal_operation(tmp_path):
    found, output = firing(tmp_path, NORMAL)
    assert found == set(), output


def test_each_alert_has_a_fault():
    assert FAULTS.keys() == rules().keys()


MISSING = {
    "admission": ("PodbridgePartDown", "podbridge_certificate_expiry_timestamp_seconds"),
    "scheduler": ("PodbridgePartDown", 'podbridge_leader{name="podbridge-scheduler"'),
    "controllers": ("PodbridgePartDown", 'podbridge_leader{name="podbridge-controllers"'),
    "no submission ever": ("PodbridgeSubmissionsStall", "podbridge_scheduler_actions_total"),
}
"""Alerts that fire because series are missing: their alert, and the beginning of these series."""


@pytest.mark.parametrize("fault", MISSING)
def test_an_alert_fires_alone_on_series_that_do_not_exist(tmp_path, fault):
    name, beginning = MISSING[fault]
    left = {series: values for series, values in NORMAL.items() if not series.startswith(beginning)}
    assert len(left) < len(NORMAL)
    found, output = firing(tmp_path, left)
    assert found == {name}, output
    assert fault == "no submission ever" or f"the part {fault} " in output


@pytest.mark.parametrize("name", FAULTS)
def test_an_alert_fires_alone_on_its_fault(tmp_path, name):
    found, output = firing(tmp_path, NORMAL | FAULTS[name])
    assert found == {name}, output
    assert "%!" not in output  # a template that failed
    assert "error calling" not in output
