from __future__ import annotations

from typing import Any

import pytest

from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import EVENTS, NODES, PODS

pytestmark = pytest.mark.real


@pytest.fixture
def pod(client: KubeClient, namespace: str) -> dict[str, Any]:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody"},
    }
    return client.create(PODS.path(namespace), body)


def test_describe_shows_events_of_pods(client: KubeClient, namespace: str, cluster: Any, pod: dict[str, Any]) -> None:
    recorder = EventRecorder(client)
    recorder.event(pod, "BridgeSubmitted", "job 7", action="Submitting")
    assert recorder.flush(5)
    for _ in range(3):
        recorder.event(pod, "BridgeSubmitted", "job 7", action="Submitting")
    recorder.event(pod, "BridgeRejected", "é" * 2000, warning=True)
    recorder.event({"apiVersion": "v1", "kind": "Pod", **pod["metadata"]}, "ByReference", "ref")
    assert recorder.flush(5)
    text = cluster.kubectl("describe", "pod", "p", "-n", namespace)
    lines = {line.split()[1]: line for line in text.splitlines() if "podbridge" in line}
    assert set(lines) == {"BridgeSubmitted", "BridgeRejected", "ByReference"}
    assert "(x4 over" in lines["BridgeSubmitted"]
    assert "job 7" in lines["BridgeSubmitted"]
    assert "Warning" in lines["BridgeRejected"]


def test_series_that_is_created_as_one(client: KubeClient, namespace: str, pod: dict[str, Any]) -> None:
    recorder = EventRecorder(client)
    for _ in range(3):
        recorder.event(pod, "BridgeQueued", "Resources")
    assert recorder.flush(5)
    events = client.get(EVENTS.path(namespace))["items"]
    assert [event["series"]["count"] for event in events if event["reason"] == "BridgeQueued"] == [3]


def test_describe_shows_events_of_nodes(client: KubeClient, cluster: Any) -> None:
    node = client.get(NODES.path())["items"][0]
    node = {"apiVersion": "v1", "kind": "Node", **node}
    recorder = EventRecorder(client)
    recorder.event(node, "Drained", "drained in Slurm")
    assert recorder.flush(5)
    assert "drained in Slurm" in cluster.kubectl("describe", "node", node["metadata"]["name"])
