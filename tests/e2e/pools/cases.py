"""The conformance set: pods, and the status that a kubelet would report. Plain data; :mod:`test_conformance` runs it.

They show what passes between Kubernetes and a site: objects of the API, states of containers, and deletion. What the
script alone does with a pod is in ``tests/contract/script``.

The container image is Debian's ``busybox-static`` on a site with a container runtime. On the other sites it has no
effect, so the commands use only what both the host and busybox have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class Run:
    """The expected outcome of a container: exit code, reason and restarts."""

    code: int = 0
    reason: str = ""
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A pod and its outcome. ``logs``: text that a container's log contains; ``not_logs``: text that it does not."""

    name: str
    spec: Object
    phase: str = "Succeeded"
    runs: Mapping[str, Run] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    not_logs: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    objects: tuple[Object, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    while_running: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60


def sh(script: str, name: str = "main", **more: Any) -> Object:
    """Return a container that runs a script."""
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **more}


def pod(*containers: Object, **spec: Any) -> Object:
    """Return the spec of a pod."""
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": list(containers), **spec}


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def mount(name: str, path: str, **more: Any) -> Object:
    return {"name": name, "mountPath": path, **more}


def volume(name: str, **source: Any) -> Object:
    return {"name": name, **source}


def env(name: str, **source: Any) -> Object:
    return {"name": name, **({"valueFrom": source} if source else {})}


def field_ref(path: str) -> Object:
    return {"fieldRef": {"fieldPath": path}}


def resource_ref(resource: str, divisor: str | None = None) -> Object:
    ref = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    return {"resourceFieldRef": ref}


def probe(script: str, **more: Any) -> Object:
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 10, **more}


RUNNING = [Case("hello", pod(sh("echo hello")), logs={"main": "hello"}, runs={"main": Run(0, "Completed")})]

ENVIRONMENT = [
    Case(
        "env-from",
        pod(
            sh(
                "echo $P_one $two",
                envFrom=[
                    {"prefix": "P_", "configMapRef": {"name": "conf-c"}},
                    {"secretRef": {"name": "conf-d"}},
                    {"secretRef": {"name": "nobody", "optional": True}},
                ],
            )
        ),
        logs={"main": "1 2"},
        objects=(config_map("conf-c", one="1"), secret("conf-d", two="2")),
    ),
    Case(
        "env-fields",
        pod(
            sh(
                "echo $NAME $NS $SA $NODE $LABEL $UID_",
                env=[
                    env("NAME", **field_ref("metadata.name")),
                    env("NS", **field_ref("metadata.namespace")),
                    env("SA", **field_ref("spec.serviceAccountName")),
                    env("NODE", **field_ref("spec.nodeName")),
                    env("LABEL", **field_ref("metadata.labels['colour']")),
                    env("UID_", **field_ref("metadata.uid")),
                ],
            )
        ),
        labels={"colour": "blue"},
        logs={"main": "{name} remote default {pool} blue {uid}"},
    ),
    Case(
        "env-host-ip",
        pod(sh("echo ip=$IP", env=[env("IP", **field_ref("status.hostIP"))])),
        logs={"main": "ip="},
        not_logs={"main": "ip=\n"},
    ),
    Case(
        "env-resources",
        pod(
            sh(
                "echo $CPU $MEM",
                resources={"limits": {"cpu": "1", "memory": "256Mi"}},
                env=[env("CPU", **resource_ref("limits.cpu")), env("MEM", **resource_ref("limits.memory", "1Mi"))],
            )
        ),
        logs={"main": "1 256"},
    ),
]

VOLUMES = [
    Case(
        "projected",
        pod(
            sh("cat /p/conf /p/sec /p/ns", volumeMounts=[mount("p", "/p")]),
            volumes=[
                volume(
                    "p",
                    projected={
                        "sources": [
                            {"configMap": {"name": "conf-i", "items": [{"key": "k", "path": "conf"}]}},
                            {"secret": {"name": "conf-j", "items": [{"key": "k", "path": "sec"}]}},
                            {
                                "downwardAPI": {
                                    "items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                                }
                            },
                        ]
                    },
                )
            ],
        ),
        objects=(config_map("conf-i", k="c-"), secret("conf-j", k="s-")),
        logs={"main": "c-s-remote"},
    ),
    Case(
        "service-account-token",
        pod(
            sh("cut -d. -f1 /var/run/t/token | head -c 5; echo", volumeMounts=[mount("t", "/var/run/t")]),
            volumes=[
                volume(
                    "t",
                    projected={
                        "sources": [
                            {"serviceAccountToken": {"path": "token", "audience": "x", "expirationSeconds": 3600}}
                        ]
                    },
                )
            ],
        ),
        logs={"main": "eyJhb"},
    ),
    Case(
        "default-service-account",
        pod(sh(f"cat {SERVICE_ACCOUNT}/token 2>/dev/null || echo none given")),
        logs={"main": "none given"},
    ),
    Case(
        "binary-config-map",
        pod(
            sh("od -An -tx1 /c/bin", volumeMounts=[mount("c", "/c")]),
            volumes=[volume("c", configMap={"name": "conf-k"})],
        ),
        objects=({**config_map("conf-k"), "binaryData": {"bin": "AP9/gA=="}},),
        logs={"main": "00 ff 7f 80"},
    ),
    Case(
        "waits-for-its-config-map",
        pod(sh("echo $A", env=[env("A", configMapKeyRef={"name": "conf-late", "key": "k"})])),
        logs={"main": "at last"},
        while_running={"create": config_map("conf-late", k="at last"), "expect_event": "BridgeWaiting"},
    ),
]

ORDER = [
    Case(
        "init-fails",
        pod(sh("echo never"), initContainers=[sh("exit 9", "first"), sh("echo never", "second")]),
        "Failed",
        {"first": Run(9, "Error")},
        not_logs={"main": "never"},
    ),
    Case(
        "sidecar-ends-with-the-pod",
        pod(
            sh("sleep 1; cat /d/x", volumeMounts=[mount("d", "/d")]),
            initContainers=[
                sh(
                    "echo side >/d/x; while :; do sleep 0.2; done",
                    "side",
                    restartPolicy="Always",
                    volumeMounts=[mount("d", "/d")],
                )
            ],
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"main": "side"},
    ),
    Case(
        "restart-on-failure",
        pod(
            sh("echo try >>/d/n; [ $(wc -l </d/n) -ge 2 ]", volumeMounts=[mount("d", "/d")]),
            restartPolicy="OnFailure",
            volumes=[volume("d", emptyDir={})],
        ),
        runs={"main": Run(0, "Completed", restarts=1)},
        timeout=90,
    ),
    Case("deadline", pod(sh("sleep 60"), activeDeadlineSeconds=3), "Failed", reason="DeadlineExceeded"),
    Case(
        "out-of-memory",
        pod(
            sh(
                "x=0123456789abcdef; while :; do x=$x$x; sleep 0.05; done",
                resources={"limits": {"cpu": "1", "memory": "64Mi"}},
            )
        ),
        "Failed",
        {"main": Run(137, "OOMKilled")},
    ),
    Case(
        "readiness",
        pod(
            sh(
                "sleep 5; touch /d/ready; sleep 8",
                volumeMounts=[mount("d", "/d")],
                readinessProbe=probe("test -e /d/ready"),
            ),
            volumes=[volume("d", emptyDir={})],
        ),
        while_running={"not_ready_first": True},
    ),
    Case(
        "termination-message",
        pod(sh("printf 'why it ended' >/dev/termination-log; exit 2")),
        "Failed",
        {"main": Run(2, "Error")},
        message="why it ended",
    ),
    Case(
        "graceful-end",
        pod(sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"), terminationGracePeriodSeconds=10),
        while_running={"delete": True, "log_has": "bye"},
    ),
]

HOSTILE = "x'\"`$(touch /tmp/podbridge-pwned);&|<>\\"
REFUSED = [
    Case("privileged", pod(sh(":", securityContext={"privileged": True})), refused="privileged"),
    Case("host-pid", pod(sh(":"), hostPID=True), refused="hostPID"),
    Case("host-ipc", pod(sh(":"), hostIPC=True), refused="hostIPC"),
    Case(
        "add-capability", pod(sh(":", securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})), refused="capabilities"
    ),
    Case(
        "volume-claim",
        pod(sh(":", volumeMounts=[mount("v", "/v")]), volumes=[volume("v", persistentVolumeClaim={"claimName": "c"})]),
        refused="persistentVolumeClaim",
    ),
    Case("nfs", pod(sh(":"), volumes=[volume("v", nfs={"server": "s", "path": "/"})]), refused="nfs"),
    Case("csi", pod(sh(":"), volumes=[volume("v", csi={"driver": "d.example.com"})]), refused="csi"),
]
FAILED = [
    Case(
        "hostile-annotation",
        pod(
            sh("cat /i/a", volumeMounts=[mount("i", "/i")]),
            volumes=[
                volume(
                    "i",
                    downwardAPI={"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['evil']"}}]},
                )
            ],
        ),
        annotations={"evil": HOSTILE},
        logs={"main": HOSTILE},
    )
]

CASES = [*RUNNING, *ENVIRONMENT, *VOLUMES, *ORDER, *REFUSED, *FAILED]
