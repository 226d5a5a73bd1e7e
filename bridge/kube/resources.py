"""API resources and their URL paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Return the URL path of the collection, of the object ``name``, or of its sub-resource ``sub``.

        For a namespaced resource without ``namespace``, this is the collection of all namespaces. Raises ValueError for
        an incomplete address.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} are not namespaced")
        if (name and self.namespaced and not namespace) or (sub and not name):
            raise ValueError(f"incomplete address of one of the {self.plural}")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, sub) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def path_of(self, obj: Mapping[str, Any], sub: str | None = None) -> str:
        """Return the URL path of an object of this namespaced resource, or of its sub-resource ``sub``."""
        return self.path(obj["metadata"]["namespace"], obj["metadata"]["name"], sub)

    @property
    def api_version(self) -> str:
        """``group/version`` as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Resource("", "v1", "pods", True)
NODES = Resource("", "v1", "nodes", False)
NAMESPACES = Resource("", "v1", "namespaces", False)
SECRETS = Resource("", "v1", "secrets", True)
CONFIGMAPS = Resource("", "v1", "configmaps", True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", True)
EVENTS = Resource("events.k8s.io", "v1", "events", True)
POD_EVENTS = Resource("", "v1", "events", True)
"""The same objects in the core group, where ``involvedObject.uid`` is a field selector."""
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", True)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", True)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", False)
JOBS = Resource("batch", "v1", "jobs", True)
SERVICES = Resource("", "v1", "services", True)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", True)
MASTER_QUEUES = Resource("vk.io", "v1", "masterqueues", False)
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False)
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", False)
ADMISSION_POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", False)
SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", False)
SELF_SUBJECT_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", False)

_PLURALS = {
    "Pod": "pods",
    "ReplicationController": "replicationcontrollers",
    "ReplicaSet": "replicasets",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
    "CronJob": "cronjobs",
    "JobSet": "jobsets",
    "LeaderWorkerSet": "leaderworkersets",
    "PodGroup": "podgroups",
    "Workload": "workloads",
    "Node": "nodes",
    "Namespace": "namespaces",
}
_CLUSTER_SCOPED = {"Node", "Namespace"}


def resource_of(api_version: str, kind: str) -> Resource:
    """Return the resource of an owner reference.

    Kinds that own pods are in a table. For other kinds, the plural is derived as in Kubernetes'
    ``UnsafeGuessKindToResource`` (lower case, then ``-s``, ``-es`` after s, ``-ies`` for y). They are treated as
    namespaced, because an owner is in the namespace of the owned object. A wrong plural causes "not found".
    """
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, _PLURALS.get(kind) or _guess(kind.lower()), kind not in _CLUSTER_SCOPED)


def is_collection(path: str) -> bool:
    """Whether ``path`` addresses a collection, not one object."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    return len(parts) == 1 or (len(parts) == 3 and parts[0] == "namespaces")


def _guess(singular: str) -> str:
    if singular.endswith("s"):
        return singular + "es"
    if singular.endswith("y"):
        return singular[:-1] + "ies"
    return singular + "s"
