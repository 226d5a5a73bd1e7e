"""The conformance set: pods, and the status that a kubelet would report. Plain data; :mod:`test_conformance` runs it.

The container image is Debian's ``busybox-static`` on a site with a container runtime. On the other sites it has no
effect, so the commands use only what both the host and busybox have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NASTY = {
    "EMPTY": "",
    "SPACES": "  two  spaces  ",
    "NEWLINE": "line 1\nline 2\n",
    "TAB": "a\tb",
    "DOLLAR": "$HOME ${HOME} $(id)",
    "BACKTICK": "`id`",
    "SINGLE": "it's",
    "DOUBLE": 'say "hi"',
    "BACKSLASH": "a\\b\\n",
    "SEMICOLON": "a; touch /tmp/podbridge-pwned",
    "AND": "a && b || c",
    "STAR": "* ? [a]",
    "HASH": "# no comment",
    "EQUALS": "a=b=c",
    "UNICODE": "žluťoučký кот 猫 🐈",
    "PERCENT": "%s %d %%",
    "BANG": "!! !$",
}


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


RUNNING = [
    Case("hello", pod(sh("echo hello")), logs={"main": "hello"}, runs={"main": Run(0, "Completed")}),
    Case("stderr", pod(sh("echo out; echo err >&2")), logs={"main": "err"}),
    Case("exit-3", pod(sh("exit 3")), "Failed", {"main": Run(3, "Error")}),
    Case("exit-255", pod(sh("exit 255")), "Failed", {"main": Run(255, "Error")}),
    Case("killed-by-signal", pod(sh("kill -9 $$$$")), "Failed", {"main": Run(137, "Error")}),
    Case(
        "not-found",
        pod({"name": "main", "image": "busybox", "command": ["/no/such/program"]}),
        "Failed",
        {"main": Run(127)},
    ),
    Case(
        "not-executable",
        pod({"name": "main", "image": "busybox", "command": ["/etc/passwd"]}),
        "Failed",
        {"main": Run(126)},
    ),
    Case("args", pod(sh('printf "%s|" "$@"', args=["x", "a b", "$(id)", "'q'"])), logs={"main": "a b|$(id)|'q'|"}),
    Case(
        "args-expand",
        pod(
            {
                "name": "main",
                "image": "busybox",
                "command": ["echo"],
                "args": ["$(WHO)", "$$(WHO)", "$(NOBODY)"],
                "env": [{"name": "WHO", "value": "me"}],
            }
        ),
        logs={"main": "me $(WHO) $(NOBODY)"},
    ),
    Case("working-dir", pod(sh("pwd", workingDir="/usr")), logs={"main": "/usr"}),
    Case("silent", pod(sh(":")), runs={"main": Run(0, "Completed")}),
    Case("binary-output", pod(sh(r"printf 'a\377\200b\n'; echo end")), logs={"main": "end"}),
    Case(
        "long-log",
        pod(sh("i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done")),
        logs={"main": "line-19999"},
    ),
]

ENVIRONMENT = [
    Case(
        "env-nasty",
        pod(
            sh(
                "for name in "
                + " ".join(NASTY)
                + '; do eval "value=\\$$$$name"; printf "%s=<%s>\\n" "$name" "$value"; done',
                env=[{"name": name, "value": value} for name, value in NASTY.items()],
            )
        ),
        logs={"main": "".join(f"{name}=<{value}>\n" for name, value in NASTY.items())},
    ),
    Case(
        "env-refers",
        pod(sh("echo $B", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$$(A)-$(C)"}])),
        logs={"main": "1-$(A)-$(C)"},
    ),
    Case(
        "env-config-map",
        pod(sh("echo $A", env=[env("A", configMapKeyRef={"name": "conf-a", "key": "k"})])),
        logs={"main": "from-map"},
        objects=(config_map("conf-a", k="from-map"),),
    ),
    Case(
        "env-secret",
        pod(sh("echo $A", env=[env("A", secretKeyRef={"name": "conf-b", "key": "k"})])),
        logs={"main": "s3cret"},
        objects=(secret("conf-b", k="s3cret"),),
    ),
    Case(
        "env-optional",
        pod(sh('echo "<$A>"', env=[env("A", configMapKeyRef={"name": "not-there", "key": "k", "optional": True})])),
        logs={"main": "<>"},
    ),
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
        "empty-dir-shared",
        pod(
            sh("echo shared >/data/x; sleep 2", "writer", volumeMounts=[mount("d", "/data")]),
            sh(
                "i=0; until [ -s /data/x ]; do i=$((i+1)); [ $i -lt 50 ] || exit 9; sleep 0.1; done; cat /data/x",
                "reader",
                volumeMounts=[mount("d", "/data")],
            ),
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"reader": "shared"},
    ),
    Case(
        "read-only-is-enforced",
        pod(
            sh("touch /data/x && exit 9; echo refused", volumeMounts=[mount("d", "/data", readOnly=True)]),
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"main": "refused"},
    ),
    Case(
        "config-map-files",
        pod(
            sh("cat /etc/conf-e/a /etc/conf-e/b", volumeMounts=[mount("c", "/etc/conf-e")]),
            volumes=[volume("c", configMap={"name": "conf-e"})],
        ),
        objects=(config_map("conf-e", a="first\n", b="no newline"),),
        logs={"main": "first\nno newline"},
    ),
    Case(
        "config-map-items-and-modes",
        pod(
            sh("ls /c; cat /c/deep/name; stat -c %a /c/deep/name || true", volumeMounts=[mount("c", "/c")]),
            volumes=[
                volume("c", configMap={"name": "conf-f", "items": [{"key": "a", "path": "deep/name", "mode": 0o500}]})
            ],
        ),
        objects=(config_map("conf-f", a="picked\n", b="left out"),),
        logs={"main": "picked\n500"},
        not_logs={"main": "left out"},
    ),
    Case(
        "secret-files",
        pod(
            sh("cat /s/token", volumeMounts=[mount("s", "/s", readOnly=True)]),
            volumes=[volume("s", secret={"secretName": "conf-g", "defaultMode": 0o400})],
        ),
        objects=(secret("conf-g", token="shh"),),
        logs={"main": "shh"},
    ),
    Case(
        "optional-volume",
        pod(
            sh("ls /c | wc -l", volumeMounts=[mount("c", "/c")]),
            volumes=[volume("c", configMap={"name": "not-there", "optional": True})],
        ),
        logs={"main": "0"},
    ),
    Case(
        "sub-path",
        pod(
            sh("cat /one/file", volumeMounts=[mount("c", "/one/file", subPath="a")]),
            volumes=[volume("c", configMap={"name": "conf-h"})],
        ),
        objects=(config_map("conf-h", a="by sub path", b="other"),),
        logs={"main": "by sub path"},
    ),
    Case(
        "sub-path-of-empty-dir",
        pod(
            sh("echo x >/one/f; ls /all/sub", volumeMounts=[mount("d", "/one", subPath="sub"), mount("d", "/all")]),
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"main": "f"},
    ),
    Case(
        "downward-files",
        pod(
            sh("cat /info/labels /info/name", volumeMounts=[mount("i", "/info")]),
            volumes=[
                volume(
                    "i",
                    downwardAPI={
                        "items": [
                            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                        ]
                    },
                )
            ],
        ),
        labels={"colour": "green"},
        logs={"main": 'colour="green"'},
    ),
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
        "init-in-order",
        pod(
            sh("cat /d/log; echo main", volumeMounts=[mount("d", "/d")]),
            initContainers=[
                sh("echo one >>/d/log", "one", volumeMounts=[mount("d", "/d")]),
                sh("echo two >>/d/log; echo from-two", "two", volumeMounts=[mount("d", "/d")]),
            ],
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"main": "one\ntwo\nmain", "two": "from-two"},
        runs={"one": Run(0, "Completed"), "two": Run(0, "Completed")},
    ),
    Case(
        "init-fails",
        pod(sh("echo never"), initContainers=[sh("exit 9", "first"), sh("echo never", "second")]),
        "Failed",
        {"first": Run(9, "Error")},
        not_logs={"main": "never"},
    ),
    Case("two-containers", pod(sh("echo a", "a"), sh("echo b", "b")), logs={"a": "a", "b": "b"}),
    Case(
        "one-of-two-fails",
        pod(sh("exit 0", "good"), sh("exit 4", "bad")),
        "Failed",
        {"good": Run(0, "Completed"), "bad": Run(4, "Error")},
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
    Case(
        "deadline",
        pod(sh("sleep 60"), activeDeadlineSeconds=3),
        "Failed",
        reason="DeadlineExceeded",
    ),
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
        "post-start",
        pod(
            sh(
                "until [ -s /d/x ]; do sleep 0.1; done; cat /d/x",
                volumeMounts=[mount("d", "/d")],
                lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "echo hooked >/d/x"]}}},
            ),
            volumes=[volume("d", emptyDir={})],
        ),
        logs={"main": "hooked"},
    ),
    Case(
        "liveness-restarts",
        pod(
            sh(
                "echo run >>/d/n; [ $(wc -l </d/n) -ge 2 ] && { touch /d/ok; exit 0; }; sleep 60",
                volumeMounts=[mount("d", "/d")],
                livenessProbe=probe("test -e /d/ok", failureThreshold=2),
            ),
            restartPolicy="OnFailure",
            volumes=[volume("d", emptyDir={})],
        ),
        runs={"main": Run(0, restarts=1)},
        timeout=90,
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
        "startup-fails",
        pod(sh("trap '' TERM; while :; do sleep 0.1; done", startupProbe=probe("false", failureThreshold=2))),
        "Failed",
        {"main": Run(137)},
    ),
    Case(
        "termination-message",
        pod(sh("printf 'why it ended' >/dev/termination-log; exit 2")),
        "Failed",
        {"main": Run(2, "Error")},
        message="why it ended",
    ),
    Case(
        "message-from-the-log",
        pod(sh("echo last words; exit 2", terminationMessagePolicy="FallbackToLogsOnError")),
        "Failed",
        {"main": Run(2)},
        message="last words",
    ),
    Case(
        "graceful-end",
        pod(
            sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"),
            terminationGracePeriodSeconds=10,
        ),
        while_running={"delete": True, "log_has": "bye"},
    ),
    Case(
        "killed-after-the-grace-period",
        pod(sh("trap '' TERM; while :; do sleep 0.1; done"), terminationGracePeriodSeconds=2),
        while_running={"delete": True},
    ),
    Case(
        "pre-stop",
        pod(
            sh(
                "echo up; while [ ! -e /d/stop ]; do sleep 0.1; done; echo asked by preStop",
                volumeMounts=[mount("d", "/d")],
                lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "touch /d/stop; sleep 1"]}}},
            ),
            terminationGracePeriodSeconds=10,
            volumes=[volume("d", emptyDir={})],
        ),
        while_running={"delete": True, "log_has": "asked by preStop"},
    ),
    Case(
        "children-end-with-it",
        pod(sh("sleep 300 & sleep 300 & wait"), terminationGracePeriodSeconds=1),
        while_running={"delete": True},
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
        "host-path-not-allowed",
        pod(sh(":", volumeMounts=[mount("h", "/h")]), volumes=[volume("h", hostPath={"path": "/etc"})]),
        "Failed",
        reason="NotPossibleAtSite",
    ),
    Case(
        "hostile-args",
        pod({"name": "main", "image": "busybox", "command": ["printf", "%s|"], "args": [HOSTILE, "--", "-n"]}),
        logs={"main": HOSTILE + "|--|-n|"},
    ),
    Case(
        "hostile-command",
        pod({"name": "main", "image": "busybox", "command": [HOSTILE]}),
        "Failed",
        {"main": Run(127)},
    ),
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
    ),
    Case(
        "hostile-mount-path",
        pod(
            sh("ls '/mnt/a b;$(id)'", volumeMounts=[mount("c", "/mnt/a b;$(id)")]),
            volumes=[volume("c", configMap={"name": "conf-l"})],
        ),
        objects=(config_map("conf-l", inside="x"),),
        logs={"main": "inside"},
    ),
    Case(
        "secret-is-not-in-the-log",
        pod(sh('test -n "$A" && echo ok', env=[env("A", secretKeyRef={"name": "conf-m", "key": "k"})])),
        objects=(secret("conf-m", k="very-secret-value"),),
        logs={"main": "ok"},
        not_logs={"main": "very-secret-value"},
    ),
]

CASES = [*RUNNING, *ENVIRONMENT, *VOLUMES, *ORDER, *REFUSED, *FAILED]
