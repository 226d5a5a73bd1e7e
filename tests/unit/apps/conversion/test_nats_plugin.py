from pathlib import Path

import pytest
import yaml

from bridge.apps.conversion.nats_plugin import HUB_SECRET, convert
from bridge.errors import ConfigError

INPUT = (Path(__file__).parent / "inputs" / "nats-plugin.yaml").read_text()


def test_the_values_of_a_release():
    found = convert(INPUT, "values.yaml", ["alpha", "beta"], ["research"])
    assert found.documents == (
        {
            "config": {
                "slurmRestApi": "",
                "managedNamespaces": ["research"],
                "queues": {"enabled": True},
                "pools": {"kubeletPort": 10251},
                "logging": {"level": "debug"},
            },
            "rbac": {"poolNamespaces": ["research"]},
            "nats": {
                "enabled": True,
                "pools": ["alpha", "beta"],
                "ingress": {
                    "enabled": True,
                    "className": "nginx",
                    "host": "vk.example.org",
                    "path": "/sites",
                    "tlsSecret": "podbridge-nats-ingress",
                    "annotations": {
                        "nginx.ingress.kubernetes.io/rewrite-target": "/",
                        "nginx.ingress.kubernetes.io/proxy-body-size": "0",
                        "cert-manager.io/cluster-issuer": "lets-issuer",
                    },
                },
            },
            "redis": {"enabled": True, "resources": {"limits": {"memory": "64Mi"}}},
        },
    )
    dropped = {note.field: note.text for note in found.notes if note.kind == "dropped"}
    assert dropped.keys() == {
        "nodeName",
        "serverVersion",
        "serverVerboseLogging",
        "virtualKubeletImage",
        "virtualKubeletAllocatableCpu",
        "virtualKubeletNodeLabels",
        "pluginGitRepositoryBranch",
        "pluginNatsSubject",
        "natsClusterIssuerEmail",
        "redisNodeName",
        "shubProxyMasterToken",
    }
    assert "site.toml" in dropped["virtualKubeletNodeLabels"]


def test_no_password_is_copied():
    found = convert(INPUT, "values.yaml", ["alpha"], [])
    assert "-password" not in yaml.safe_dump_all(found.documents) + "".join(map(str, found.notes))


def test_another_nats_server():
    text = "natsEnabled: false\npluginNatsServer: hub:secret@nats.example.org:4222\nkueueNatsEnabled: false\n"
    found = convert(text, "values.yaml", [], ["research"])
    (values,) = found.documents
    assert values["config"]["pools"] == {"nats": {"servers": ["nats://nats.example.org:4222"]}}
    assert values["nats"] == {"client": {"existingSecret": HUB_SECRET}}
    assert "queues" not in values["config"]
    assert "secret@" not in "".join(map(str, found.notes))


@pytest.mark.parametrize(
    ("text", "pools", "message"),
    [
        ("{}", [], "v.yaml: natsEnabled: true needs the names of the pools"),
        ("{}", ["Alpha"], "--pools: 'Alpha' is not allowed; allowed: 1 to 32"),
        ("{}", ["hub"], "--pools: 'hub' is not allowed"),
        ("natsUsers: alice", ["a"], "v.yaml: natsUsers: 'alice' is not allowed; allowed: a list"),
        ("kubeletPort: 99999", ["a"], "v.yaml: pools.kubeletPort: .*99999"),
        ("kueueNatsEnabled: maybe", ["a"], "kueueNatsEnabled: 'maybe' is not allowed; allowed: true or false"),
    ],
)
def test_a_bad_value_is_named(text, pools, message):
    with pytest.raises(ConfigError, match=message):
        convert(text, "v.yaml", pools, [])
