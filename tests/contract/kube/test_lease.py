from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import LEASES
from cluster.polling import eventually
from tests.fakes.lease_suite import LeaseSuite

pytestmark = pytest.mark.real

CANDIDATE = """
import sys, threading, time
from bridge.errors import LostLeadershipError
from bridge.kube.kube_client import KubeClient
from bridge.kube.lease import Elector
from bridge.kube.resources import LEASES
from bridge.core.threads import Supervisor

kubeconfig, namespace, name = sys.argv[1:]
client = KubeClient.load(kubeconfig)
elector = Elector(client, namespace, "leader", name, lease_duration=3, renew_deadline=2, retry_period=0.4)
supervisor = Supervisor()
supervisor.spawn("elector", lambda: elector.run(supervisor))
fenced = client.fenced(elector.check)
while not elector.held and not supervisor.wait(0.05):
    pass
while not supervisor.wait(0.01):
    try:
        fenced.patch(LEASES.path(namespace, "marks"), {"spec": {"holderIdentity": name}})
    except LostLeadershipError:
        print("stopped", flush=True)
sys.exit(supervisor.failure)
"""


class TestLeaseOnKubeApiserver(LeaseSuite):
    """The tests that the fake and the real API server share."""


def test_leader_that_is_stopped_and_continued_writes_nothing(client: KubeClient, namespace: str, cluster: Any) -> None:
    marks = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": "marks"}, "spec": {}}
    client.create(LEASES.path(namespace), marks)

    def candidate(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CANDIDATE, str(cluster.kubeconfig), namespace, name]
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    def writer() -> str:
        return client.get(LEASES.path(namespace, "marks"))["spec"].get("holderIdentity", "")

    first = candidate("first")
    eventually(lambda: writer() == "first")
    second = candidate("second")
    try:
        time.sleep(1)
        assert writer() == "first"
        first.send_signal(signal.SIGSTOP)
        eventually(lambda: writer() == "second", timeout=10)
        seen = client.get(LEASES.path(namespace, "marks"))["metadata"]["resourceVersion"]
        writers = {"first": 0, "second": 0}
        first.send_signal(signal.SIGCONT)
        watch = client.watch(
            LEASES.path(namespace),
            {"resourceVersion": seen, "timeoutSeconds": 2, "fieldSelector": "metadata.name=marks"},
            idle_timeout=10,
        )
        for event in watch:
            writers[event["object"]["spec"]["holderIdentity"]] += 1
        # a write of the same value creates no version: only a write of the first process would change it
        assert writers["first"] == 0
        assert first.wait(10) == 1
        assert "leader lease lost" in first.communicate()[1]
        assert second.poll() is None
        assert writer() == "second"
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_times_are_readable_for_others(cluster: Any, client: KubeClient, namespace: str) -> None:
    from bridge.kube.lease import Elector

    assert Elector(client, namespace, "leader", "me")._attempt()
    assert " me " in cluster.kubectl("get", "lease", "leader", "-n", namespace)
