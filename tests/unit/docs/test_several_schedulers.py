"""Several installations in one cluster: each has objects, jobs and partitions of its own."""

import re
from pathlib import Path

import pytest
import yaml

from admission.webhook_registration import MUTATE, VALIDATE, WebhookRegistration
from bridge import names
from bridge.config.hub import Config, parse
from bridge.errors import ConfigError
from bridge.kube.discovery import owner
from controllers.brakes import config_map_path

MANIFESTS = Path(__file__).parents[3] / "config"
UID = "1a2b3c4d-0000-4000-8000-000000000000"


def test_the_default_installation_keeps_its_names():
    assert parse("installation: podbridge") == Config()
    assert owner(UID, "podbridge") == UID


def test_the_objects_of_an_installation_have_its_name():
    config = parse("installation: shard-b")
    admission = config.admission
    assert (admission.service_name, admission.service_namespace) == ("shard-b-admission", "shard-b")
    assert (admission.secret_name, admission.webhook_name) == ("shard-b-webhook-tls", "shard-b")
    assert config.leader_election.namespace == "shard-b"
    assert config_map_path(config) == "/api/v1/namespaces/shard-b/configmaps/shard-b-brake"
    assert owner(UID, "shard-b") == f"{UID}-shard-b"


def test_a_name_in_the_file_wins_over_that_of_the_installation():
    config = parse("installation: b\nadmission: {webhookName: w, port: 1}\nleaderElection: {namespace: n}")
    assert (config.admission.webhook_name, config.admission.port, config.leader_election.namespace) == ("w", 1, "n")
    assert config.admission.secret_name == "b-webhook-tls"


@pytest.mark.parametrize("name", ["", "B", "1b", "b.c", "b-", "b" * 28])
def test_the_name_of_an_installation_is_short_and_plain(name):
    with pytest.raises(ConfigError, match="installation"):
        parse(f"installation: {name!r}")


@pytest.mark.parametrize("file", ["rbac.yaml", "rbac-run.yaml", "policies.yaml"])
def test_sed_makes_the_manifests_of_another_installation(file):
    """docs/admins/several-schedulers.md tells administrators to do so."""
    text = (MANIFESTS / file).read_text()
    first = {identity(each) for each in yaml.safe_load_all(text)}
    second = {identity(each) for each in yaml.safe_load_all(text.replace("podbridge", "shard-b"))}
    assert first.isdisjoint(second)
    assert not re.search("podbridge", " ".join(map(str, second)))


def identity(manifest):
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace"), metadata["name"]


def test_the_manifests_have_all_objects_that_an_installation_updates():
    config = parse("installation: shard-b")
    found = set()
    for file in ("rbac.yaml", "rbac-run.yaml", "policies.yaml"):
        found |= {
            identity(each)
            for each in yaml.safe_load_all((MANIFESTS / file).read_text().replace("podbridge", "shard-b"))
        }
    registered = WebhookRegistration(None, config).names
    assert found >= {
        ("Lease", "shard-b", names.lease("scheduler", config.installation)),
        ("Lease", "shard-b", names.lease("controllers", config.installation)),
        ("ConfigMap", "shard-b", names.brake_config_map(config.installation)),
        ("ConfigMap", "shard-b", names.guarded_nodes(config.installation)),
        ("ConfigMap", "shard-b", names.slurm_sums(config.installation)),
        ("Secret", "shard-b", config.admission.secret_name),
        ("MutatingWebhookConfiguration", None, registered[MUTATE]),
        ("ValidatingWebhookConfiguration", None, registered[VALIDATE]),
        *(("ServiceAccount", "shard-b", names.part_account(part, "shard-b")) for part in ("scheduler", "run")),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("partitions: [a, b]", "partition: '' is not in partitions; allowed: a, b"),
        ("partitions: [a]\npartition: c", "partition: 'c' is not in partitions; allowed: a"),
        (
            "partitions: [a]\npartition: a\nnamespacePolicies: [{namespaces: [n], allowed: {partition: [a, c]}}]",
            r"namespacePolicies\[0\].allowed.partition: c is not in partitions; allowed: a",
        ),
        (
            "partitions: [a]\npartition: a\nnamespacePolicies: [{namespaces: [n], default: {partition: 'a,c'}}]",
            r"namespacePolicies\[0\].default.partition: c is not in partitions; allowed: a",
        ),
    ],
)
def test_a_configuration_names_only_its_own_partitions(text, problem):
    with pytest.raises(ConfigError, match=problem):
        parse(text)


def test_a_policy_may_allow_all_partitions_of_the_installation():
    policies = "namespacePolicies: [{namespaces: [n], allowed: {partition: ['*']}}]"
    assert parse(f"partitions: [a, b]\npartition: a\n{policies}").partitions == ["a", "b"]
