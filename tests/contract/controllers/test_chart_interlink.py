"""interLink's own API server with the configuration that the chart writes for it."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from cluster.pki import Authority
from cluster.polling import eventually
from cluster.ports import free_block, listening
from cluster.systems import install
from generate.manifests import template

pytestmark = pytest.mark.real

SETTINGS = (
    "plugin.enabled=true",
    "plugin.listenHost=127.0.0.1",
    "plugin.interlink.enabled=true",
    "plugin.tls.existingSecret=x",
    "nats.enabled=true",
    "nats.pools={alpha}",
)


def test_the_api_server_requires_a_client_certificate_and_calls_the_plugin(tmp_path: Path) -> None:
    install.ensure(modules=[install.HELM, install.INTERLINK])
    text = template("--show-only=templates/plugin/service.yaml", *(f"--set={each}" for each in SETTINGS))
    (found,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap")
    first = free_block(2)
    replaced = {"/etc/podbridge/plugin-tls": str(tmp_path), "/tmp/interlink": str(tmp_path / "data")}
    replaced |= {'"3000"': f'"{first}"', '"4000"': f'"{first + 1}"'}
    config = found["data"]["InterLinkConfig.yaml"]
    for one, other in replaced.items():
        assert one in config
        config = config.replace(one, other)
    (tmp_path / "InterLinkConfig.yaml").write_text(config)
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.write(tmp_path / "tls", "interlink", hosts=("127.0.0.1",))
    command = [str(install.binaries(install.INTERLINK.packages)["interlink-api"])]
    environment = {"INTERLINKCONFIGPATH": str(tmp_path / "InterLinkConfig.yaml"), "HOME": str(tmp_path)}

    def ask(context: ssl.SSLContext) -> int:
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{first}/pinglink", context=context, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
        try:
            eventually(lambda: listening(first), "interLink's API server listens", 60)
            context = ssl.create_default_context(cafile=str(authority.certificate))
            with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
                ask(context)
            context.load_cert_chain(certificate, key)
            # no plugin runs here: the answer is that of the API server
            assert ask(context) >= 500
        finally:
            process.kill()
            process.wait()
    assert f"127.0.0.1:{first + 1}" in (tmp_path / "log").read_text()
