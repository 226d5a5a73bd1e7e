"""``podbridge check`` with pools."""

import json
import os
import subprocess

import pytest

from cluster.polling import eventually

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
    added = {"permissions", "webhook", "policies", "Kueue", "clocks", "certificates"}
    assert added <= by_what.keys()
    # not of all findings: a slow API server is a warning
    assert {finding["result"] for finding in findings if finding["what"] in added} == {"ok"}


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
    assert "podbridge admission" in failed["webhook"]  # the API server cannot call it
    assert all(finding["fix"] for finding in findings if finding["result"] != "ok")


def test_a_pool_is_explained(pools_world):
    env = {**os.environ, **pools_world.cluster.env}

    def read(*args):
        command = ["podbridge", *args, "-o", "json"]
        return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout)

    name = next(iter(pools_world.cluster.sites))
    facts = read("explain", "pool", name)
    assert facts["pool"]["ready"] == "True"
    assert facts["offers"]["cpu"]
    assert facts["summary"] == "Ready"
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "100000"}}}
    lost = pools_world.create_pod({"containers": [{"name": "main", "image": "busybox"}]}, f"{name}e", "typo")
    report = eventually(lambda: (one := pools_world.explained("pod", "typo", "remote"))["next"] and one, "a next step")
    assert report["next"].startswith(f"no pool is named {name}e; did you mean {name}?"), report
    pools_world.delete(lost)
    pod = pools_world.create_pod({"containers": [container]}, name, "too-large")
    try:
        report = eventually(lambda: read("explain", "pool", name)["waiting_pods"] or None, "the waiting pod")
        assert report[0].startswith("remote/too-large: ")
        assert "cpu" in report[0]
    finally:
        pools_world.delete(pod, grace=0)
