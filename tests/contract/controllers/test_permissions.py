"""The permissions of the accounts of config/, from the API server."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cluster.systems.kube import ACCOUNTS, account_groups

pytestmark = pytest.mark.real

OPEN, CLOSED = f"open-{os.getpid()}", f"closed-{os.getpid()}"
KUBE_SYSTEM = "kube-system"
EVERYWHERE = (OPEN, CLOSED, KUBE_SYSTEM, "podbridge", "")

SERVICES = (("", "services"), ("discovery.k8s.io", "endpointslices"))
ADMISSION = {
    ("list", "", "nodes", "", "", ""),
    ("get", "", "namespaces", "", "", CLOSED),
    ("get", "", "namespaces", "", "", KUBE_SYSTEM),
    ("get", "batch", "jobs", "", CLOSED, "j"),
    ("get", "apps", "replicasets", "", CLOSED, "r"),
    *(("get", group, "podgroups", "", CLOSED, "g") for group in ("scheduling.x-k8s.io", "scheduling.k8s.io")),
    ("get", "scheduling.k8s.io", "workloads", "", CLOSED, "w"),
    ("get", "jobset.x-k8s.io", "jobsets", "", CLOSED, "s"),
    ("get", "leaderworkerset.x-k8s.io", "leaderworkersets", "", CLOSED, "l"),
    ("create", "authorization.k8s.io", "subjectaccessreviews", "", "", ""),
    ("list", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", ""),
    ("update", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "", "podbridge-mutate"),
    ("update", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", "podbridge-validate"),
    ("update", "", "secrets", "", "podbridge", "podbridge-webhook-tls"),
}
SCHEDULER = {
    ("list", "", "nodes", "", "", ""),
    ("watch", "", "pods", "", "", ""),
    ("patch", "", "pods", "", CLOSED, "p"),
    ("patch", "", "pods", "status", CLOSED, "p"),
    ("create", "", "pods", "binding", CLOSED, "p"),
    *(("get", group, "podgroups", "", CLOSED, "g") for group in ("scheduling.x-k8s.io", "scheduling.k8s.io")),
    ("get", "", "namespaces", "", "", CLOSED),
    ("get", "", "namespaces", "", "", KUBE_SYSTEM),
    ("create", "events.k8s.io", "events", "", CLOSED, ""),
    ("update", "coordination.k8s.io", "leases", "", "podbridge", "podbridge-scheduler"),
    *((verb, "resource.k8s.io", "resourceclaims", "", CLOSED, "") for verb in ("list", "watch", "create", "update")),
    *(("update", "resource.k8s.io", "resourceclaims", sub, CLOSED, "c") for sub in ("status", "binding")),
    ("list", "resource.k8s.io", "resourceslices", "", "", ""),
    ("get", "resource.k8s.io", "deviceclasses", "", "", "gpu.example.com"),
    ("list", "resource.k8s.io", "deviceclasses", "", "", ""),
    *((verb, "", "persistentvolumeclaims", "", CLOSED, "") for verb in ("list", "watch", "patch")),
    *((verb, "", "persistentvolumes", "", "", "") for verb in ("list", "watch", "patch")),
    *((verb, "storage.k8s.io", "storageclasses", "", "", "") for verb in ("list", "watch")),
}
CONTROLLERS = {
    ("list", "", "nodes", "", "", ""),
    ("watch", "", "pods", "", "", ""),
    ("patch", "", "pods", "", CLOSED, "p"),
    ("patch", "", "pods", "status", CLOSED, "p"),
    ("delete", "", "pods", "", CLOSED, "p"),
    ("create", "", "nodes", "", "", "n"),
    ("patch", "", "nodes", "", "", "n"),
    ("delete", "", "nodes", "", "", "n"),
    ("patch", "", "nodes", "status", "", "n"),
    ("get", "", "namespaces", "", "", CLOSED),
    ("get", "", "namespaces", "", "", KUBE_SYSTEM),
    ("create", "events.k8s.io", "events", "", CLOSED, ""),
    ("create", "authentication.k8s.io", "tokenreviews", "", "", ""),
    ("create", "authorization.k8s.io", "subjectaccessreviews", "", "", ""),
    ("update", "coordination.k8s.io", "leases", "", "podbridge", "podbridge-controllers"),
    ("patch", "coordination.k8s.io", "leases", "", "kube-node-lease", "site-a"),
    *(("list", "resource.k8s.io", kind, "", "", "") for kind in ("resourceslices", "deviceclasses")),
    ("get", "scheduling.k8s.io", "podgroups", "", CLOSED, "g"),
    ("patch", "scheduling.k8s.io", "podgroups", "status", CLOSED, "g"),
    *((verb, "", "configmaps", "", "podbridge", "podbridge-brake") for verb in ("get", "patch")),
    ("patch", "", "configmaps", "", "podbridge", "podbridge-slurm"),
    ("get", "", "configmaps", "", KUBE_SYSTEM, "extension-apiserver-authentication"),
    *((verb, "vk.io", "masterqueues", "", "", "") for verb in ("list", "watch")),
    ("patch", "vk.io", "masterqueues", "status", "", "q"),
    *((verb, "kueue.x-k8s.io", "resourceflavors", "", "", "f") for verb in ("get", "create", "patch", "delete")),
    *((verb, "kueue.x-k8s.io", "clusterqueues", "", "", "q") for verb in ("list", "watch", "patch", "delete")),
    *((verb, "kueue.x-k8s.io", "localqueues", "", CLOSED, "q") for verb in ("list", "create", "patch", "delete")),
    ("create", "", "pods", "binding", CLOSED, "p"),
    ("get", "", "secrets", "", OPEN, "s"),
    ("get", "", "configmaps", "", OPEN, "c"),
    ("create", "", "serviceaccounts", "token", OPEN, "default"),
    *((verb, group, kind, "", "", "") for verb in ("list", "watch") for group, kind in SERVICES),
    *((verb, "discovery.k8s.io", "endpointslices", "", OPEN, "e") for verb in ("create", "update", "delete")),
}
ALL_USERS = {("get", "", "configmaps", "", "podbridge", "podbridge-slurm")}
MAY = {
    "podbridge-admission": ADMISSION | ALL_USERS,
    "podbridge-scheduler": SCHEDULER | ALL_USERS,
    "podbridge-controllers": CONTROLLERS | ALL_USERS,
    "podbridge": ADMISSION | SCHEDULER | CONTROLLERS | ALL_USERS,
}
"""What each account is for; it may do nothing that stands here for others alone."""

NOBODY = {
    *((verb, "", "secrets", "", place, "") for verb in ("list", "watch", "create", "delete") for place in EVERYWHERE),
    *(("get", "", "secrets", "", place, "s") for place in (CLOSED, KUBE_SYSTEM, "podbridge", "")),
    *(("create", "", "serviceaccounts", "token", place, "default") for place in (CLOSED, KUBE_SYSTEM, "podbridge", "")),
    *(("create", "", "pods", "", place, "") for place in EVERYWHERE),
    *(("create", "", "pods", sub, place, "p") for sub in ("exec", "attach", "portforward") for place in EVERYWHERE),
    *(("patch", "", "pods", sub, place, "p") for sub in ("ephemeralcontainers", "resize") for place in EVERYWHERE),
    *(("create", "", "pods", "eviction", place, "p") for place in EVERYWHERE),
    *(("get", "", "nodes", sub, "", "n") for sub in ("proxy", "exec", "log")),
    *((verb, "rbac.authorization.k8s.io", "clusterroles", "", "", "x") for verb in ("escalate", "bind", "create")),
    *((verb, "rbac.authorization.k8s.io", "roles", "", KUBE_SYSTEM, "x") for verb in ("escalate", "bind", "create")),
    *(("create", "rbac.authorization.k8s.io", "rolebindings", "", place, "") for place in EVERYWHERE),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", "", ""),
    *(("impersonate", "", kind, "", "", "x") for kind in ("users", "groups", "serviceaccounts")),
    *((verb, "", "serviceaccounts", "", "podbridge", "podbridge") for verb in ("create", "patch", "delete")),
    *(("create", "certificates.k8s.io", "certificatesigningrequests", sub, "", "") for sub in ("", "approval")),
    *(
        (verb, "admissionregistration.k8s.io", kind, "", "", name)
        for verb, name in (("create", ""), ("delete", "podbridge-mutate"), ("update", "somebody-elses"))
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    ),
    ("list", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "", ""),
    *(
        (verb, "admissionregistration.k8s.io", kind, "", "", "podbridge-nodes")
        for verb in ("create", "update", "patch", "delete")
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    ),
    *(("update", "coordination.k8s.io", "leases", "", KUBE_SYSTEM, name) for name in ("kube-scheduler", "x")),
    ("create", "coordination.k8s.io", "leases", "", "podbridge", ""),
    *((verb, "", "namespaces", "", "", "x") for verb in ("create", "patch", "delete", "list")),
    *((verb, "", "configmaps", "", KUBE_SYSTEM, "x") for verb in ("get", "update", "patch")),
    *((verb, "apps", "daemonsets", "", KUBE_SYSTEM, "x") for verb in ("create", "patch", "update", "delete")),
    *((verb, "batch", "jobs", "", CLOSED, "x") for verb in ("create", "patch", "update", "delete")),
    *((verb, "", "persistentvolumes", "", "", "x") for verb in ("create", "get", "update", "delete")),
    *((verb, "", "persistentvolumes", "status", "", "x") for verb in ("update", "patch")),
    *((verb, "", "persistentvolumeclaims", "", CLOSED, "x") for verb in ("create", "get", "update", "delete")),
    *((verb, "storage.k8s.io", "storageclasses", "", "", "x") for verb in ("create", "update", "patch", "delete")),
    *((verb, "resource.k8s.io", "resourceclaims", "", CLOSED, "c") for verb in ("delete", "patch")),
    *((verb, "resource.k8s.io", "resourceslices", "", "", "s") for verb in ("create", "update", "delete")),
    *((verb, "vk.io", "masterqueues", "", "", "q") for verb in ("create", "patch", "update", "delete")),
    *((verb, "kueue.x-k8s.io", "workloads", "", CLOSED, "w") for verb in ("create", "patch", "delete")),
    *((verb, "", "services", "", OPEN, "s") for verb in ("create", "update", "patch", "delete")),
    *(
        (verb, "discovery.k8s.io", "endpointslices", "", place, "e")
        for verb in ("create", "update", "delete")
        for place in (CLOSED, KUBE_SYSTEM, "podbridge", "")
    ),
    ("*", "*", "*", "", "", ""),
}


@pytest.fixture(scope="module")
def allowed(kubernetes: Any) -> Any:
    """Return whether a service account of podbridge may do something."""
    for namespace in (OPEN, CLOSED):
        kubernetes.add_namespace(namespace)
    kubernetes.open_to_pools(OPEN)

    def ask(account: str, wish: tuple[str, ...]) -> bool:
        verb, group, resource, sub, namespace, name = wish
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": sub}
        attributes |= {"namespace": namespace, "name": name}
        spec = {
            "user": f"system:serviceaccount:podbridge:{account}",
            "groups": [*account_groups(), "system:authenticated"],
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        }
        answer = kubernetes.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer["status"]["allowed"])

    yield ask
    for namespace in (OPEN, CLOSED):
        kubernetes.api("DELETE", f"/api/v1/namespaces/{namespace}")


def test_every_account_is_looked_at() -> None:
    assert MAY.keys() == set(ACCOUNTS.values())


@pytest.mark.parametrize("account", MAY)
def test_an_account_may_do_what_its_part_needs_and_nothing_of_the_others(allowed: Any, account: str) -> None:
    assert [wish for wish in sorted(MAY[account]) if not allowed(account, wish)] == []
    others = set().union(*MAY.values()) - MAY[account]
    assert [wish for wish in sorted(others) if allowed(account, wish)] == []


@pytest.mark.parametrize("account", MAY)
def test_no_account_may_do_what_gives_power_over_the_cluster(allowed: Any, account: str) -> None:
    assert [wish for wish in sorted(NOBODY) if allowed(account, wish)] == []
