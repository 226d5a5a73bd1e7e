import pytest
import yaml
from click.testing import CliRunner

from bridge import names
from bridge.cli.main import cli
from bridge.errors import ConfigError


def test_one_role_binding_for_each_namespace():
    result = CliRunner().invoke(cli, ["rbac", "pools", "research", "physics"], catch_exceptions=False)
    bindings = list(yaml.safe_load_all(result.output))
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["research", "physics"]
    for binding in bindings:
        assert binding["kind"] == "RoleBinding"
        assert binding["roleRef"]["name"] == binding["metadata"]["name"] == names.POOLS_ROLE
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "podbridge-controllers", "namespace": "podbridge"}
        ]


@pytest.mark.parametrize("namespace", ["kube-system", "podbridge", "Research", "a/b", ""])
def test_what_must_not_be_opened_is_refused(namespace):
    with pytest.raises(ConfigError, match="NAMESPACE"):
        CliRunner().invoke(cli, ["rbac", "pools", namespace], catch_exceptions=False)
