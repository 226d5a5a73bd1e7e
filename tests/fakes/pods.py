"""Pods for tests of pools."""

from __future__ import annotations

from typing import Any

from bridge.script.references import Objects

NO_OBJECTS = Objects()


def pod(uid: str, name: str = "pod", namespace: str = "ns", **environment: str) -> dict[str, Any]:
    """Return a pod with one container, ``main``."""
    container = {
        "name": "main",
        "image": "docker.io/library/busybox",
        "command": ["true"],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
