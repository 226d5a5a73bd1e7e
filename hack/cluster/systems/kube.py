"""The Kubernetes control plane of one cluster: its files, its daemons' command lines, plain calls to its API."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import pki
from cluster.errors import ClusterError
from cluster.ports import http_status, listening
from cluster.systems.slurm import Size

ADMIN = ("admin", ("system:masters",))
ACCOUNTS = {
    "run": "podbridge",
    "admission": "podbridge-admission",
    "scheduler": "podbridge-scheduler",
    "controllers": "podbridge-controllers",
}
"""The service account of each command of podbridge, as config/rbac.yaml and config/rbac-run.yaml have them."""
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
_AUDIT = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [kwok, "system:apiserver"]
- level: None
  userGroups: ["system:nodes"]
- level: Metadata
"""

PORTS = 6
NEED_APISERVER = ("kube-controller-manager", "kube-scheduler", "kwok")
"""Daemons that are started after kube-apiserver is ready: the first one ends if it waits longer than 10 s."""


def account(command: str, installation: str = "podbridge") -> str:
    """Return the service account of ``podbridge <command>`` in an installation."""
    return ACCOUNTS[command].replace("podbridge", installation)


def account_groups(installation: str = "podbridge") -> tuple[str, str]:
    """Return the groups of the service accounts of an installation."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{installation}")


@dataclass(frozen=True)
class KubeSetup:
    """One control plane: its folder, its ports and its options."""

    folder: Path
    first_port: int
    """Ports: etcd's clients, its peers, kube-apiserver, kube-controller-manager, kwok, kube-scheduler."""
    binaries: Mapping[str, Path]
    controller_manager: bool = True
    kwok: bool = True
    scheduler: bool = False
    audit: Path | None = None
    """File of the audit log (JSON lines, metadata only, without kwok's writes)."""
    apiserver_args: Sequence[str] = ()
    controller_manager_args: Sequence[str] = ()
    scheduler_args: Sequence[str] = ()
    address: str = ""
    """Address of this machine at which pods reach kube-apiserver; without it, only the loopback."""

    @property
    def port(self) -> int:
        """Port of kube-apiserver."""
        return self.first_port + 2

    @property
    def server(self) -> str:
        """URL of kube-apiserver."""
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, name: str) -> Path:
        """Return the path of a kubeconfig: ``admin``, ``podbridge``, ..."""
        return self.folder / f"{name}.kubeconfig"

    def write(self) -> None:
        """Write certificates, kubeconfigs, policies and kwok's stages into an empty folder."""
        self.folder.mkdir(parents=True, mode=0o700)
        authority = pki.Authority(self.folder, "ca")
        hosts = ["127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc", *filter(None, [self.address])]
        authority.write(self.folder / "apiserver", "kube-apiserver", hosts=hosts)
        authority.write(self.folder / "kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
        pki.Authority(self.folder, "front-proxy-ca").write(self.folder / "front-proxy", "front-proxy-client")
        pki.write_key(self.folder / "service-account.key")
        authority.write(self.folder / "admin", *ADMIN)
        self.user_kubeconfig("admin", *ADMIN)
        self.user_kubeconfig("kwok", "kwok", ("system:masters",))
        self.user_kubeconfig("controller-manager", "system:kube-controller-manager")
        self.user_kubeconfig("scheduler", "system:kube-scheduler")
        self.write_accounts("podbridge")
        self.folder.joinpath("audit-policy.yaml").write_text(_AUDIT)

    def write_accounts(self, installation: str) -> None:
        """Write a kubeconfig for each service account of an installation of podbridge."""
        groups = account_groups(installation)
        for command in ACCOUNTS:
            name = account(command, installation)
            self.user_kubeconfig(name, f"system:serviceaccount:{installation}:{name}", groups)

    def user_kubeconfig(self, file: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for ``user``."""
        authority = pki.Authority(self.folder, "ca")
        path = self.kubeconfig(file)
        path.touch(mode=0o600)
        path.write_text(pki.kubeconfig(self.server, authority, authority.issue(user, groups), user))
        return path

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting."""
        etcd = f"http://127.0.0.1:{self.first_port}"
        peers = f"http://127.0.0.1:{self.first_port + 1}"
        result = {
            "etcd": [
                *(str(self.binaries["etcd"]), f"--data-dir={self.folder / 'etcd'}", "--name=local"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", "--unsafe-no-fsync"),
                *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
                *(f"--initial-cluster=local={peers}", "--log-level=warn"),
            ],
            "kube-apiserver": [str(self.binaries["kube-apiserver"]), *self._apiserver(etcd)],
        }
        if self.controller_manager:
            result["kube-controller-manager"] = [
                *(str(self.binaries["kube-controller-manager"]), "--leader-elect=false", "--bind-address=127.0.0.1"),
                *(f"--kubeconfig={self.kubeconfig('controller-manager')}", f"--secure-port={self.first_port + 3}"),
                *(f"--root-ca-file={self.folder / 'ca.crt'}", "--use-service-account-credentials"),
                f"--service-account-private-key-file={self.folder / 'service-account.key'}",
                # high enough not to limit a measurement
                *("--kube-api-qps=500", "--kube-api-burst=1000"),
                *(f"--cert-dir={self.folder}", "--concurrent-job-syncs=10"),
                "--horizontal-pod-autoscaler-sync-period=5s",
                *self.controller_manager_args,
            ]
        if self.scheduler:
            own = self.kubeconfig("scheduler")
            result["kube-scheduler"] = [
                *(str(self.binaries["kube-scheduler"]), f"--kubeconfig={own}", "--leader-elect=false"),
                *(f"--authentication-kubeconfig={own}", f"--authorization-kubeconfig={own}"),
                *("--bind-address=127.0.0.1", f"--secure-port={self.first_port + 5}", f"--cert-dir={self.folder}"),
                *("--kube-api-qps=500", "--kube-api-burst=1000"),
                *self.scheduler_args,
            ]
        if self.kwok:
            result["kwok"] = [
                *(str(self.binaries["kwok"]), f"--kubeconfig={self.kubeconfig('kwok')}"),
                f"--config={Path(__file__).with_name('stages.yaml')}",
                f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
                *("--node-lease-duration-seconds=40", "--cidr=10.64.0.0/12", "--node-ip=127.0.0.1"),
                f"--server-address=127.0.0.1:{self.first_port + 4}",
            ]
        return result

    def answers(self, name: str) -> bool:
        """Return whether a daemon answers."""
        if name == "etcd":
            return http_status(f"http://127.0.0.1:{self.first_port}/health") == 200
        if name == "kube-apiserver":
            return Api(self).ready()
        if name == "kube-controller-manager":
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            return listening(self.first_port + 3) and Api(self).has(account)  # it listens before its controllers run
        if name == "kube-scheduler":
            return listening(self.first_port + 5)
        try:
            status, nodes = Api(self).request("GET", "/api/v1/nodes")
        except OSError:
            return False
        return status == 200 and all(is_ready(node) for node in nodes["items"] if is_kwoks(node))

    def _apiserver(self, etcd: str) -> list[str]:
        def file(name: str) -> Path:
            return self.folder / name

        result = [
            f"--etcd-servers={etcd}",
            *("--bind-address=127.0.0.1", f"--secure-port={self.first_port + 2}", "--endpoint-reconciler-type=none"),
            f"--cert-dir={self.folder}",
            *(f"--tls-cert-file={file('apiserver.crt')}", f"--tls-private-key-file={file('apiserver.key')}"),
            f"--client-ca-file={file('ca.crt')}",
            *("--authorization-mode=Node,RBAC", "--allow-privileged"),
            "--service-cluster-ip-range=10.0.0.0/24,fd00:10::/112",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={file('service-account.key')}",
            f"--service-account-signing-key-file={file('service-account.key')}",
            f"--requestheader-client-ca-file={file('front-proxy-ca.crt')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={file('front-proxy.crt')}",
            f"--proxy-client-key-file={file('front-proxy.key')}",
            f"--kubelet-client-certificate={file('kubelet-client.crt')}",
            f"--kubelet-client-key={file('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
        ]
        if self.address:
            # of a webhook's Service, the server calls the addresses of its pods: there is no kube-proxy
            result += ["--bind-address=0.0.0.0", "--enable-aggregator-routing=true"]
        if self.audit:
            result += [f"--audit-policy-file={file('audit-policy.yaml')}", f"--audit-log-path={self.audit}"]
        return [*result, *self.apiserver_args]


class Api:
    """JSON calls to kube-apiserver as the administrator, with one connection each."""

    def __init__(self, setup: KubeSetup) -> None:
        self._port = setup.first_port + 2
        self._tls = ssl.create_default_context(cafile=str(setup.folder / "ca.crt"))
        stem = setup.folder / "admin"
        self._tls.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))

    def __call__(
        self, method: str, path: str, body: Any = None, content: str = "application/json", timeout: float = 30
    ) -> Any:
        """Make the call; return the decoded answer. Raise :class:`ClusterError` for a status of 400 and more."""
        status, answer = self.request(method, path, body, content, timeout)
        if status >= 400:
            message = answer.get("message", answer) if isinstance(answer, dict) else answer
            raise ClusterError(f"{method} {path}: {status}: {message}")
        return answer

    def merge(self, path: str, patch: dict[str, Any]) -> Any:
        """Apply a merge patch to an object; return the object."""
        return self("PATCH", path, patch, "application/merge-patch+json")

    def ensure(self, path: str, body: dict[str, Any]) -> None:
        """Create an object unless it exists."""
        status, answer = self.request("POST", path, body)
        if status >= 400 and status != 409:
            raise ClusterError(f"POST {path}: {status}: {answer.get('message')}")

    def delete_pods(self, namespace: str) -> None:
        """Delete all pods of a namespace. The server deletes them one by one: hundreds can take more than 30 s."""
        self("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 1}, timeout=180)

    def request(
        self, method: str, path: str, body: Any = None, content: str = "application/json", timeout: float = 30
    ) -> tuple[int, Any]:
        """Make the call; return the status and the decoded answer (text if it is not JSON)."""
        connection = self.connection(timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def connection(self, timeout: float) -> http.client.HTTPSConnection:
        """Return a connection, for answers that do not end."""
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=timeout, context=self._tls)

    def ready(self) -> bool:
        """Return whether ``/readyz`` answers 200."""
        return self.has("/readyz")

    def has(self, path: str) -> bool:
        """Return whether a path answers 200."""
        try:
            return self.request("GET", path)[0] == 200
        except OSError:
            return False


def node_object(name: str, size: Size) -> dict[str, Any]:
    """Return a node for kwok with the size of Slurm's node of the same name."""
    resources = {"cpu": str(size.cpus), "memory": f"{size.memory}Mi", "pods": "2000", "ephemeral-storage": "1Ti"}
    if size.gpus:
        resources["nvidia.com/gpu"] = str(size.gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {KWOK_ANNOTATION: "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


def crds_established(api: Api) -> bool:
    """Return whether the API server serves all CustomResourceDefinitions."""
    crds = api("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    return all(has_condition(crd, "Established") for crd in crds)


def namespace_objects(name: str, annotations: dict[str, str] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Return paths and bodies of a namespace and its service account, without which pods are refused."""
    return [
        ("/api/v1/namespaces", {"metadata": {"name": name, "annotations": annotations or {}}}),
        (f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}),
    ]


def is_kwoks(node: dict[str, Any]) -> bool:
    """Return whether kwok is the kubelet of a node; podbridge is that of a virtual node."""
    return KWOK_ANNOTATION in (node["metadata"].get("annotations") or {})


def is_ready(node: dict[str, Any]) -> bool:
    """Return whether a node is Ready."""
    return has_condition(node, "Ready")


def has_condition(item: dict[str, Any], name: str) -> bool:
    """Return whether a condition of an object is True."""
    conditions = item.get("status", {}).get("conditions") or []
    return any(condition["type"] == name and condition["status"] == "True" for condition in conditions)
