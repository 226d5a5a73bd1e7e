import pytest
import yaml
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.config.hub import Config
from bridge.config.installations import pools_binding_command
from bridge.errors import ConfigError


def test_one_role_binding_for_each_namespace():
    result = CliRunner().invoke(cli, ["rbac", "pools", "research", "physics"], catch_exceptions=False)
    bindings = list(yaml.safe_load_all(result.output))
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["research", "physics"]
    for binding in bindings:
        assert binding["kind"] == "RoleBinding"
        assert binding["roleRef"]["name"] == binding["metadata"]["name"] == "podbridge-pools"
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "podbridge-controllers", "namespace": "podbridge"}
        ]


def test_the_objects_of_another_installation_have_its_names():
    options = ["--installation", "hpc-podbridge", "--account-namespace", "hpc"]
    binding = yaml.safe_load(CliRunner().invoke(cli, ["rbac", "pools", "research", *options]).output)
    assert binding["roleRef"]["name"] == binding["metadata"]["name"] == "hpc-podbridge-pools"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "hpc-podbridge-controllers", "namespace": "hpc"}]
    options[3] = "research"
    with pytest.raises(ConfigError, match="NAMESPACE: 'research' is not allowed"):
        CliRunner().invoke(cli, ["rbac", "pools", "research", *options], catch_exceptions=False)


@pytest.mark.parametrize(
    ("installation", "namespace", "account", "options"),
    [
        ("podbridge", "podbridge", "", ""),
        ("podbridge", "podbridge", "podbridge-controllers", ""),
        ("hpc", "hpc", "hpc", " --installation hpc --account hpc"),
        ("hpc-podbridge", "hpc", "", " --installation hpc-podbridge --account-namespace hpc"),
    ],
)
def test_the_command_that_messages_recommend_binds_the_role_to_the_account(installation, namespace, account, options):
    config = Config.model_validate({"installation": installation, "leaderElection": {"namespace": namespace}})
    command = pools_binding_command(config, "research", account)
    assert command == f"podbridge rbac pools research{options} | kubectl apply -f -"
    words = command.removeprefix("podbridge ").removesuffix(" | kubectl apply -f -").split()
    (subject,) = yaml.safe_load(CliRunner().invoke(cli, words).output)["subjects"]
    assert (subject["name"], subject["namespace"]) == (account or f"{installation}-controllers", namespace)


@pytest.mark.parametrize("namespace", ["kube-system", "podbridge", "Research", "a/b", ""])
def test_what_must_not_be_opened_is_refused(namespace):
    with pytest.raises(ConfigError, match="NAMESPACE"):
        CliRunner().invoke(cli, ["rbac", "pools", namespace], catch_exceptions=False)
