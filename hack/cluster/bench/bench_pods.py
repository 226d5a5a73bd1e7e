"""Ten kinds of pods as users write them, and the objects that they refer to."""

from __future__ import annotations

import itertools
import time
from typing import Any

from bridge.script import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects

Object = dict[str, Any]
NODE = "pool-1"


def _container(name: str = "main", **more: Any) -> Object:
    command = ["sh", "-c", "echo working; sleep 1"]
    return {"name": name, "image": "docker.io/library/busybox:1.36", "command": command, **more}


def _kinds() -> list[Object]:
    small = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    plain = [{"name": f"KEY_{number}", "value": f"value {number}"} for number in range(20)]
    own = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{name.lower()}"}}} for name in ("NAME", "UID")
    ]
    configured = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "credentials"}}]
    mounts = [{"name": name, "mountPath": f"/etc/{name}"} for name in ("settings", "credentials")]
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 5}
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo bye"]}}}
    return [
        {"containers": [_container()]},
        {"containers": [_container(resources=small)], "restartPolicy": "Never"},
        {"containers": [_container(env=[*plain, *own])]},
        {"containers": [_container(envFrom=configured)]},
        {
            "containers": [_container(volumeMounts=mounts)],
            "volumes": [
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "credentials", "secret": {"secretName": "credentials", "defaultMode": 0o400}},
            ],
        },
        {
            "containers": [_container(volumeMounts=[{"name": "all", "mountPath": "/all", "readOnly": True}])],
            "volumes": [{"name": "all", "projected": {"sources": [{"configMap": {"name": "settings"}}, token]}}],
        },
        {
            "initContainers": [_container("first"), _container("second")],
            "containers": [_container(volumeMounts=[{"name": "data", "mountPath": "/data", "subPath": "out"}])],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
        {"initContainers": [_container("side", restartPolicy="Always")], "containers": [_container()]},
        {"containers": [_container(name) for name in ("one", "two", "three", "four")], "restartPolicy": "OnFailure"},
        {
            "containers": [_container(livenessProbe=probe, readinessProbe=probe, lifecycle=hook)],
            "activeDeadlineSeconds": 3600,
            "terminationGracePeriodSeconds": 10,
        },
    ]


OBJECTS = Objects(
    configmaps={"settings": {"data": {f"key-{number}.conf": "line\n" * 20 for number in range(5)}}},
    secrets={"credentials": {"data": {"user": "YWxpY2U=", "password": "c2VjcmV0"}}},
    tokens={("all", "token"): "eyJhbGciOiJSUzI1NiJ9." + "x" * 800},
)
KINDS = _kinds()


def pods(count: int) -> list[Object]:
    """Return ``count`` pods, of the ten kinds in turn."""
    made = []
    for number, spec in zip(range(count), itertools.cycle(KINDS), strict=False):
        metadata = {"namespace": "bench", "name": f"pod-{number}", "uid": f"0000-{number:06d}", "labels": {"app": "x"}}
        made.append({"metadata": metadata, "spec": {"serviceAccountName": "default", **spec}})
    return made


def scripts_per_second(count: int) -> tuple[float, float]:
    """Build ``count`` scripts; return scripts per CPU second, and their mean length in bytes."""
    config, made = BuildConfig(), pods(count)
    build.build(made[0], config, OBJECTS, NODE)  # reads and compiles what later scripts share
    began = time.process_time()
    length = sum(len(build.build(pod, config, OBJECTS, NODE).script) for pod in made)
    return count / (time.process_time() - began), length / count
