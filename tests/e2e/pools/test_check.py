"""``podbridge check`` with pools."""

import json
import os
import re
import subprocess

import pytest

pytestmark = pytest.mark.real


def check(world, *args):
    env = {**os.environ, **world.cluster.env}
    command = ["podbridge", "check", "-o", "json", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_it_looks_at_nats_the_pools_the_store_and_the_kubelet_port(pools_world):
    status, findings = check(pools_world)
    assert status == 0, findings
    by_what = {finding["what"]: finding for finding in findings}
    assert {"NATS", "store", "pools", "kubelet port"} <= by_what.keys()
    ready = {finding["found"] for finding in findings if finding["what"] == "pools"}
    assert {f"{name} is Ready" for name in pools_world.cluster.sites} <= ready
    assert by_what["kubelet port"]["result"] == "ok"


@pytest.mark.parametrize(
    ("setting", "value", "what", "words"),
    [
        (r"tls://127.0.0.1:\d+", "tls://127.0.0.1:1", "NATS", "pools.nats.servers"),
        (r"seedFile: .*", "seedFile: /nowhere/hub.seed", "NATS", "seedFile"),
    ],
)
def test_it_names_the_fix(pools_world, tmp_path, setting, value, what, words):
    text = (pools_world.cluster.state / "podbridge.yaml").read_text()
    config = tmp_path / "podbridge.yaml"
    config.write_text(re.sub(setting, value, text))
    status, findings = check(pools_world, "--config", str(config))
    failed = [finding for finding in findings if finding["result"] == "FAIL"]
    assert status == 1
    assert [finding["what"] for finding in failed] == [what]
    assert all(words in finding["fix"] for finding in failed)


def test_a_store_and_a_kubelet_port_that_do_not_answer(pools_world, tmp_path):
    text = (pools_world.cluster.state / "podbridge.yaml").read_text()
    config = tmp_path / "podbridge.yaml"
    config.write_text(
        text.replace("pools:\n", "pools:\n  store: {kind: redis, redis: {url: 'redis://127.0.0.1:1'}}\n", 1)
    )
    pools_world.cluster.stop_podbridge()
    try:
        _, findings = check(pools_world, "--config", str(config))
    finally:
        pools_world.cluster.start_podbridge()
    failed = {finding["what"]: finding["fix"] for finding in findings if finding["result"] == "FAIL"}
    assert "pools.store" in failed["store"]
    assert "pools.nodeAddress" in failed["kubelet port"]
