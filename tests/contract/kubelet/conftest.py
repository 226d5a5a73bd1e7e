from __future__ import annotations

import ssl
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridge.core.threads import Supervisor
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NODES, PODS
from cluster import Cluster, places
from cluster.systems import install
from controllers.kubelet.handlers import Located
from controllers.kubelet.kubelet_server import Kubelet, KubeletSettings
from tests.fakes.log_pool import LogPool, running

NODE = "pool-one"
NAMESPACE = "kubelet-tests"
VERSIONS = ((places.DEFAULT_KUBERNETES, places.DEFAULT_KUBERNETES), ("1.37", "1.37"), ("1.37", "1.36"))
"""Versions of the API server and of kubectl."""
RBAC = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kubelet-api}
rules:
  - {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
  - {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubelet-api}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kubelet-api}
subjects: [{kind: ServiceAccount, name: podbridge, namespace: podbridge}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: kubelet-api, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: podbridge, namespace: podbridge}]
"""
"""What the kubelet API needs, and no more."""


@dataclass
class Site:
    """A virtual node with podbridge's kubelet API, and a real API server."""

    cluster: Cluster
    client: KubeClient
    pool: LogPool
    kubelet: Kubelet
    supervisor: Supervisor
    program: Path
    """kubectl"""
    pods: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def pod(self, name: str = "", state: str = "running", *containers: str) -> str:
        """Create a pod that the site runs; return its name."""
        name = name or f"p-{uuid.uuid4().hex[:8]}"
        wanted = containers or ("main",)
        spec = {
            "nodeName": NODE,
            "containers": [{"name": each, "image": "i"} for each in wanted],
            "automountServiceAccountToken": False,
        }
        body = {"metadata": {"name": name}, "spec": spec}
        pod = self.client.create(PODS.path(NAMESPACE), body)
        if state == "running":
            statuses = [
                {
                    "name": each,
                    "image": "i",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
                for each in wanted
            ]
            status = {"phase": "Running", "containerStatuses": statuses}
            pod = self.client.patch(PODS.path(NAMESPACE, name, "status"), {"status": status})
            self.pool.runs(pod["metadata"]["uid"], NAMESPACE, name, *(running(each) for each in wanted))
        self.pods[NAMESPACE, name] = pod
        return name

    def uid(self, name: str) -> str:
        return str(self.pods[NAMESPACE, name]["metadata"]["uid"])

    def write(self, name: str, text: bytes, at: float = 0.0, container: str = "main", **more: Any) -> None:
        self.pool.write(self.uid(name), container, text, at, **more)

    def find(self, namespace: str, name: str) -> Located | None:
        pod = self.pods.get((namespace, name))
        return None if pod is None else (pod, self.pool)

    def kubectl(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; return its result, also on failure."""
        return subprocess.run(self.kubectl_command(*args), capture_output=True, text=True, timeout=60)

    def kubectl_command(self, *args: str) -> list[str]:
        return [str(self.program), f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}", *args]

    def trusting(self) -> ssl.SSLContext:
        pair = self.kubelet._certificates.pair
        assert pair is not None
        return ssl.create_default_context(cadata=pair.ca.decode())


@contextmanager
def kube_only(state: Path, **options: Any) -> Iterator[Cluster]:
    """A control plane with podbridge's permissions."""
    with Cluster(state, slurm=None, kcm=False, kwok=False, **options) as running_cluster:
        running_cluster.add_namespace(NAMESPACE)
        running_cluster.kubectl("apply", "-f", "-", input=RBAC)
        yield running_cluster


@contextmanager
def serving(cluster: Cluster, kubectl: str = places.DEFAULT_KUBERNETES, **settings: Any) -> Iterator[Site]:
    """A virtual node with podbridge's kubelet API."""
    client = KubeClient.load(str(cluster.kubeconfig))
    pool = LogPool(NODE)
    supervisor = Supervisor()
    made: dict[str, Site] = {}
    kubelet = Kubelet(
        KubeletSettings(host="127.0.0.1", port=0, addresses=("127.0.0.1", NODE), **settings),
        KubeClient.load(str(cluster.podbridge_kubeconfig)),
        find=lambda namespace, name: made["site"].find(namespace, name),
        pods=lambda: list(made["site"].pods.values()),
        pools=lambda: {NODE: pool},
    )
    program = install.control_plane(kubectl)["kubectl"]
    made["site"] = Site(cluster, client, pool, kubelet, supervisor, program)
    kubelet.start(supervisor)
    client.create(NODES.path(), {"metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    client.patch(NODES.path(name=NODE, sub="status"), {"status": status})
    yield made["site"]
    client.delete(NODES.path(name=NODE))
    supervisor.stop()
    assert supervisor.failure is None
    assert supervisor.join(10) == []


@pytest.fixture(scope="package", params=VERSIONS, ids=" with ".join)
def site(request: pytest.FixtureRequest, state_folder: Path) -> Iterator[Site]:
    server, kubectl = request.param
    state = state_folder / f"kubelet-{server}-{kubectl}"
    with kube_only(state, kubernetes=server) as cluster, serving(cluster, kubectl) as made:
        yield made


def grant(site: Site, user: str, *subresources: str, names: tuple[str, ...] = ()) -> None:
    """Let a user (or ``system:serviceaccount:...``) use sub-resources of nodes, of the named ones alone if any."""
    group, version = "rbac.authorization.k8s.io", "/apis/rbac.authorization.k8s.io/v1"
    name = f"t-{uuid.uuid4().hex[:8]}"
    rule: dict[str, Any] = {"apiGroups": [""], "resources": [f"nodes/{sub}" for sub in subresources], "verbs": ["get"]}
    if names:
        rule["resourceNames"] = list(names)
    site.client.create(f"{version}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
    subject = {"apiGroup": group, "kind": "User", "name": user}
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    }
    site.client.create(f"{version}/clusterrolebindings", binding)


def token(site: Site, account: str) -> str:
    """Create a service account; return a token of it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    site.client.create(path, {"metadata": {"name": account}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(site.client.create(f"{path}/{account}/token", request)["status"]["token"])
