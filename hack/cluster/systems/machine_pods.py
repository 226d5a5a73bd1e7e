"""Processes of this machine that stand for pods in a cluster: kwok simulates the pod, whose address is on ``lo``."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.core import Cluster
from cluster.polling import eventually
from cluster.ports import free_block
from cluster.processes import run
from cluster.systems.slurm import node_names


def new_address() -> str:
    """Return an address that no other process uses and no outside system has."""
    port = free_block(1)
    return f"198.18.{port >> 8}.{port & 255}"


def remove_address(address: str) -> None:
    """Take the address from this machine."""
    run(["ip", "address", "delete", f"{address}/32", "dev", "lo"])


def add(cluster: Cluster, namespace: str, name: str, labels: Mapping[str, str], address: str, port: int) -> None:
    """Create a pod that runs at the address, and the Service of this name, which leads to its port."""
    run(["ip", "address", "replace", f"{address}/32", "dev", "lo"])
    api, base = cluster.api, f"/api/v1/namespaces/{namespace}"
    service = {"metadata": {"name": name}, "spec": {"selector": labels, "ports": [{"port": port}]}}
    containers = [{"name": "main", "image": "none"}]
    spec = {"nodeName": node_names(1)[0], "containers": containers, "automountServiceAccountToken": False}
    api("POST", f"{base}/services", service)
    api("POST", f"{base}/pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})
    pod = f"{base}/pods/{name}"
    eventually(lambda: api("GET", pod)["status"]["phase"] == "Running", f"pod {name} runs")
    api.merge(f"{pod}/status", {"status": {"podIP": address, "podIPs": [{"ip": address}]}})
