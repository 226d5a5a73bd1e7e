from pathlib import Path

import pytest

from bridge.apps.conversion.slurm_bridge import convert
from bridge.errors import ConfigError

INPUT = (Path(__file__).parent / "inputs" / "slurm-bridge.yaml").read_text()


def noted(converted):
    return {f"{note.kind} {note.field}" for note in converted.notes}


def test_the_values_of_a_release():
    found = convert(INPUT, "values.yaml")
    assert found.documents == (
        {
            "config": {
                "slurmRestApi": "https://slurm.example.org:6820",
                "schedulerName": "slurm-bridge-scheduler",
                "partition": "batch",
                "mcsLabel": "kubernetes",
                "managedNamespaceSelector": {"matchLabels": {"slurm": "yes"}},
                "logging": {"level": "debug"},
                "nodes": {"taint": True},
            },
            "slurm": {"jwt": {"existingSecret": "slurm-token", "key": "SLURM_JWT"}},
            "scheduler": {
                "replicas": 2,
                "imagePullPolicy": "Always",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
                "pdb": {"enabled": True, "maxUnavailable": "50%"},
            },
            "admission": {"replicas": 3, "certManager": {"enabled": False}, "tls": {"existingSecret": "webhook-tls"}},
            "controllers": {
                "replicas": 1,
                "priorityClassName": "system-cluster-critical",
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            },
        },
    )
    assert noted(found) == {
        "changed config.mcsLabel",
        "changed config.exclusive",
        "changed config.nodes.taint",
        "changed scheduler.replicaCount",
        "changed scheduler.image.pullPolicy",
        "changed scheduler.verbosity",
        "dropped admission.managedNamespaces",
        "dropped admission.tls.caBundle",
        "dropped controllers.podWorkers",
        "dropped controllers.verbosity",
        "dropped fullnameOverride",
        "dropped namespaceOverride",
        "dropped schedulerConfig.clientBurst",
        "dropped schedulerConfig.clientQPS",
        "dropped scheduler.featureGates.DynamicResourceAllocation",
        "dropped scheduler.image.repository",
        "dropped scheduler.image.tag",
        "dropped scheduler.leaderElect",
        "dropped scheduler.pdb.minAvailable",
        "dropped sharedConfig.deviceProfiles",
        "to do admission.tls.existingSecret",
        "to do config.namespacePolicies",
    }


def test_without_values_the_defaults_of_its_chart_stay():
    found = convert("sharedConfig: {}\n", "values.yaml")
    assert found.documents == (
        {"config": {"mcsLabel": "kubernetes", "partition": "slurm-bridge", "nodes": {"taint": True}}},
    )
    assert "changed admission.certManager.enabled" in noted(found)


def test_what_slurm_bridge_allows_stays_on_request():
    (values,) = convert(INPUT, "values.yaml", allow_all=True, exclusive=True).documents
    assert values["config"]["exclusive"] is True
    (policy,) = values["config"]["namespacePolicies"]
    assert policy["namespaces"] == ["*"] and policy["mayNameScheduler"] and policy["allowed"]["partition"] == ["*"]
    assert policy["max"] == {"maxNodes": 1_000_000, "exclusive": True}
    assert "user_id" not in policy["allowed"] and "userId" not in policy["allowed"]


def test_the_configuration_file_has_no_defaults_of_the_chart():
    text = "schedulerName: slurm\nmanagedNamespaces: [a, b]\nmanagedNamespaceSelector: {}\n"
    (values,) = convert(text, "config.yaml").documents
    assert values == {"config": {"schedulerName": "slurm", "managedNamespaces": ["a", "b"], "nodes": {"taint": True}}}


def test_an_unknown_key_of_the_configuration_file_is_dropped_alone():
    found = convert("schedulerName: slurm\npartition: gpu\nfooBar: 1\n", "config.yaml")
    assert found.documents == ({"config": {"schedulerName": "slurm", "partition": "gpu", "nodes": {"taint": True}}},)
    assert "dropped fooBar" in noted(found)


@pytest.mark.parametrize(
    ("secret", "key"), [("token", "auth-token"), ("{name: token}", "SLURM_JWT"), ("{name: token, key: x}", "x")]
)
def test_the_secret_of_the_token_is_a_name_or_a_mapping(secret, key):
    (values,) = convert(f"sharedConfig: {{slurmJwtSecret: {secret}}}", "values.yaml").documents
    assert values["slurm"] == {"jwt": {"existingSecret": "token", "key": key}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler: {replicas: many}", "v.yaml: scheduler.replicas: 'many' is not allowed; allowed: a whole"),
        ("scheduler: {replicas: true}", "scheduler.replicas: True is not allowed"),
        ("controllers: {replicas: -1}", "controllers.replicas: -1 is not allowed"),
        ("admission: {pdb: {minAvailable: some}}", "admission.pdb.minAvailable: 'some' is not allowed; .*percentage"),
        ("admission: {managedNamespaces: slurm}", "admission.managedNamespaces: 'slurm' is not .*allowed: a list"),
        ("scheduler: 5", "scheduler: 5 is not allowed; allowed: a mapping"),
        ("sharedConfig: {slurmRestApi: slurm}", "v.yaml: slurmRestApi: .*must begin with http://.*'slurm'"),
        ("- a", "v.yaml: not the values of a Helm chart"),
        ("a: [", "v.yaml: not YAML"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(text, message):
    with pytest.raises(ConfigError, match=message):
        convert(text, "v.yaml")
