"""Kinds of pods, for golden files and for speed."""

import base64
from typing import Any

from bridge.script.references import Objects
from tests.builders import api_access
from tests.pod_specs import EMPTY, mount, mounts, spec_of, volumes

UID = "8c2f7a1e-0000-4000-8000-000000000001"


def pod(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "namespace": "team", "uid": UID, "labels": {"app": "x"}, **metadata},
        "spec": spec,
    }


def shell(text: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "docker.io/library/busybox:1.36", "command": ["sh", "-c", text], **more}


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


OBJECTS = Objects(
    configmaps={
        "settings": {"data": {"app.ini": "[app]\nname = it's\n", "LEVEL": "3"}, "binaryData": {"raw": "AP8="}},
        "kube-root-ca.crt": {"data": {"ca.crt": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"}},
    },
    secrets={
        "login": {"data": {"user": _b64("me"), "password": _b64("p'a\"s$s\nword")}},
        "registry": {
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": _b64('{"auths":{"registry.example":{"username":"u","password":"p"}}}')},
        },
    },
    tokens={("kube-api-access", "token"): "header.payload.signature"},
)
_API = api_access("kube-api-access")
_API_MOUNT = mount("kube-api-access", "/var/run/secrets/kubernetes.io/serviceaccount", readOnly=True)

KINDS: dict[str, dict[str, Any]] = {
    "simple": pod({"restartPolicy": "Never", "containers": [shell("echo hello")]}),
    "variables": pod(
        spec_of(
            shell(
                "echo $$VALUE $(VALUE) $(NOT_SET)",
                args=["$(IP)", "it's"],
                env=[
                    {"name": "VALUE", "value": "a'b\"c`d$e\nf"},
                    {"name": "AGAIN", "value": "<$(VALUE)>"},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
                    {"name": "USER", "valueFrom": {"secretKeyRef": {"name": "login", "key": "user"}}},
                ],
                envFrom=[{"configMapRef": {"name": "settings"}, "prefix": "APP_"}, {"secretRef": {"name": "login"}}],
                resources={"limits": {"cpu": "1500m", "memory": "1Gi"}},
            ),
            restartPolicy="Never",
        )
    ),
    "files": pod(
        spec_of(
            shell(
                "cat /etc/app/*",
                volumeMounts=[
                    mount("settings", "/etc/app"),
                    mount("settings", "/etc/app.ini", "app.ini"),
                    mount("login", "/etc/login"),
                    mount("about", "/etc/about"),
                    _API_MOUNT,
                ],
            ),
            restartPolicy="Never",
            volumes=[
                {"name": "settings", "configMap": {"name": "settings", "defaultMode": 288}},
                {"name": "login", "secret": {"secretName": "login", "items": [{"key": "user", "path": "a/b"}]}},
                {
                    "name": "about",
                    "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]},
                },
                _API,
            ],
        )
    ),
    "folders": pod(
        spec_of(
            shell(
                "ls /data",
                workingDir="/disk/my work",
                env=[{"name": "WHO", "value": "me"}],
                **mounts(
                    ("disk", "/disk"),
                    mount("disk", "/disk/mine", subPathExpr="users/$(WHO)"),
                    ("fast", "/fast"),
                    mount("data", "/data", readOnly=True),
                ),
            ),
            restartPolicy="OnFailure",
            **volumes(
                disk={"emptyDir": {"sizeLimit": "1Gi"}},
                fast={"emptyDir": {"medium": "Memory"}},
                data={"hostPath": {"path": "/data/set", "type": "Directory"}},
            ),
        )
    ),
    "init": pod(
        spec_of(shell("echo main"), init=[shell("echo one", "one"), shell("echo two", "two")], restartPolicy="Never")
    ),
    "sidecar": pod(
        spec_of(
            shell("echo main"),
            shell("echo other", "other"),
            init=[
                shell(
                    "serve",
                    "proxy",
                    restartPolicy="Always",
                    ports=[{"name": "web", "containerPort": 8080}],
                    startupProbe={"httpGet": {"port": "web", "path": "/up"}, "periodSeconds": 1},
                )
            ],
            restartPolicy="Never",
        )
    ),
    "probes": pod(
        spec_of(
            shell(
                "serve",
                startupProbe={"tcpSocket": {"port": 80}, "failureThreshold": 30},
                livenessProbe={
                    "httpGet": {
                        "port": 80,
                        "path": "/live?it's=$(x)",
                        "httpHeaders": [{"name": "X-Token", "value": "`a`"}],
                    },
                    "terminationGracePeriodSeconds": 1,
                },
                readinessProbe={"exec": {"command": ["test", "-e", "/tmp/it's ready"]}, "initialDelaySeconds": 3},
                lifecycle={
                    "postStart": {"exec": {"command": ["touch", "/tmp/started"]}},
                    "preStop": {"httpGet": {"scheme": "HTTPS", "port": 443, "path": "/stop"}},
                },
                terminationMessagePath="/var/log/last",
                terminationMessagePolicy="FallbackToLogsOnError",
            ),
            shell("rpc", "rpc", livenessProbe={"grpc": {"port": 9000, "service": "x"}}),
            restartPolicy="Always",
            terminationGracePeriodSeconds=5,
        )
    ),
    "gpu": pod(
        spec_of(
            shell("nvidia-smi", resources={"limits": {"nvidia.com/gpu": "2", "cpu": "8", "memory": "32Gi"}}),
            restartPolicy="Never",
            activeDeadlineSeconds=3600,
        )
    ),
    "image": pod(
        spec_of(
            {"name": "main", "image": "registry.example/team/tool:2", "args": ["--help"]},
            {
                "name": "other",
                "image": "/images/other.sif",
                "imagePullPolicy": "Always",
                "securityContext": {"readOnlyRootFilesystem": True},
            },
            restartPolicy="Never",
            imagePullSecrets=[{"name": "registry"}, {"name": "not-there"}],
            securityContext={"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
        )
    ),
    "annotated": pod(
        {"restartPolicy": "Never", "containers": [shell("solve")]},
        annotations={
            "slurm-job.vk.io/flags": "--constraint 'a b' --exclusive",
            "slurm-job.vk.io/flavor": "small",
            "slurm-job.vk.io/mpi-flags": "--map-by core",
            "slurm-job.vk.io/pre-exec": "module load mpi\nexport X='1'\n",
            "slurm-job.vk.io/singularity-mounts": "--bind /cvmfs",
            "slurm-job.vk.io/image-root": "docker://registry.example/",
            "slurm-job.vk.io/job-workdir": "/data/work",
        },
    ),
    "mounted": pod(
        spec_of(
            shell("ls /remote", **mounts(("remote", "/remote"), ("software", "/cvmfs/x", "x"))),
            restartPolicy="Never",
            **volumes(remote={"persistentVolumeClaim": {"claimName": "none"}}, software=EMPTY),
        ),
        annotations={"fuse.vk.io/remote": "sshfs me@there: $MOUNT_POINT\n", "cvmfs.vk.io/software": "true"},
    ),
}
"""By kind; the kind ``image`` needs a runtime that knows images, the others run with any."""

SITE: dict[str, Any] = {
    "volumes": {"host_paths": ["/data"], "cvmfs_path": "/cvmfs", "image_paths": ["/images"]},
    "limits": {"allow_user_flags": True, "allow_pre_exec": True, "allow_fuse": True, "allow_runtime_options": True},
    "flavors": [
        {"name": "small", "max_resources": {"cpu": "4", "memory": "8Gi"}, "max_time_seconds": 86400},
        {"name": "gpu", "max_resources": {"nvidia.com/gpu": "4"}, "partition": "gpu"},
    ],
    "default_flavor": "small",
    "header": "module purge",
    "footer": "echo the end",
}
