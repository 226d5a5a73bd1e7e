"""The parts of objects that caches keep; without the rest, 10,000 pods need less memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names

Object = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
IDENTITY = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""The keys of ``metadata`` that all caches keep."""
_METADATA = (*IDENTITY, "labels", "finalizers", "ownerReferences")
_POD_SPEC = (
    "schedulerName",
    "nodeName",
    "nodeSelector",
    "tolerations",
    "priority",
    "overhead",
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "schedulingGates",
    "resources",
    "restartPolicy",
    "hostNetwork",
)
_POD_STATUS = ("phase", "reason", "message", "conditions", "startTime")
_CLAIM_STATUS = ("resourceClaimStatuses", "extendedResourceClaimStatus")
_CONTAINER = ("name", "resources", "restartPolicy")
_PORT = ("hostPort", "containerPort", "protocol", "hostIP")
_STORAGE_ANNOTATIONS = (
    "pv.kubernetes.io/bind-completed",
    "volume.beta.kubernetes.io/storage-class",
    "volume.kubernetes.io/selected-node",
)
_CLAIM_SPEC = (
    "accessModes",
    "resources",
    "selector",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
    "volumeName",
)
MOST_OF_SELECTOR = 1000
"""Labels, expressions and values of a claim's selector; a larger one matches no volume."""
_VOLUME_SPEC = (
    "accessModes",
    "capacity",
    "claimRef",
    "nodeAffinity",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
)


def prune_pod(pod: Object) -> Object:
    """Keep identity, placement, requests and phase; drop environment, volumes, images and container states.

    Keep the names of its PersistentVolumeClaims and its host ports: they limit the nodes of a pod, and a claim may be
    for one pod only.
    For a pod without a node, keep its resource claims, and the parts of environment and volumes that use a Secret or a
    token: they limit the selection of a pool.
    """
    spec = pod.get("spec") or {}
    pruned_spec = pick(spec, _POD_SPEC)
    waiting = not spec.get("nodeName")
    if waiting:
        pruned_spec |= pick(spec, ("imagePullSecrets", "resourceClaims"))
    if volumes := [*claim_volumes(spec), *(v for v in spec.get("volumes") or () if waiting and _is_confidential(v))]:
        pruned_spec["volumes"] = volumes
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if node_affinity:
        pruned_spec["affinity"] = {"nodeAffinity": node_affinity}
    for containers in ("containers", "initContainers"):
        if spec.get(containers):
            shared = bool(spec.get("hostNetwork"))
            pruned_spec[containers] = [_container(container, waiting, shared) for container in spec[containers]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(pod),
        "spec": pruned_spec,
        "status": pick(pod.get("status") or {}, (*_POD_STATUS, *_CLAIM_STATUS) if waiting else _POD_STATUS),
    }


def prune_node(node: Object) -> Object:
    """Keep names, labels, annotations, taints, resources and conditions; drop images, addresses and system info."""
    status = node.get("status") or {}
    pruned_status = pick(status, ("allocatable", "capacity"))
    pruned_status["conditions"] = [
        pick(c, ("type", "status", "reason", "lastTransitionTime")) for c in status.get("conditions") or ()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": _metadata(node),
        "spec": pick(node.get("spec") or {}, ("unschedulable", "taints")),
        "status": pruned_status,
    }


def prune_claim(claim: Object) -> Object:
    """Keep the part of a PersistentVolumeClaim that decides which nodes and volumes it allows.

    Claims of all namespaces are kept, and their users make them as large as etcd stores them.
    """
    kept = _storage(claim, "PersistentVolumeClaim", _CLAIM_SPEC)
    metadata, spec = kept["metadata"], kept["spec"]
    if "ownerReferences" in metadata:  # an object has one controller at most
        metadata["ownerReferences"] = [each for each in metadata["ownerReferences"] if each.get("controller")][:1]
    if "accessModes" in spec:
        spec["accessModes"] = list(dict.fromkeys(spec["accessModes"]))
    if "resources" in spec:
        spec["resources"] = {"requests": pick(spec["resources"].get("requests") or {}, ("storage",))}
    if _parts(spec.get("selector") or {}) > MOST_OF_SELECTOR:
        spec["selector"] = {"matchExpressions": [{"key": "podbridge/too-large", "operator": "In", "values": []}]}
    return kept


def prune_volume(volume: Object) -> Object:
    """Keep the part of a PersistentVolume that decides which nodes and claims it allows."""
    return _storage(volume, "PersistentVolume", _VOLUME_SPEC)


def prune_storage_class(storage_class: Object) -> Object:
    """Keep provisioner, binding mode and topology of a StorageClass."""
    keys = ("provisioner", "volumeBindingMode", "allowedTopologies")
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": pick(storage_class["metadata"], IDENTITY),
        **pick(storage_class, keys),
    }


def claim_volumes(spec: Mapping[str, Any]) -> list[Object]:
    """Return the volumes of a pod's spec that use a PersistentVolumeClaim, without its template."""
    volumes: list[Object] = []
    for volume in spec.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            volumes.append(pick(volume, ("name", "persistentVolumeClaim")))
        elif "ephemeral" in volume:
            volumes.append({"name": volume["name"], "ephemeral": {}})
    return volumes


def _parts(selector: Mapping[str, Any]) -> int:
    expressions = selector.get("matchExpressions") or ()
    return len(selector.get("matchLabels") or {}) + sum(1 + len(each.get("values") or ()) for each in expressions)


def _storage(obj: Object, kind: str, keys: tuple[str, ...]) -> Object:
    metadata = pick(obj["metadata"], (*IDENTITY, "ownerReferences"))
    if annotations := pick(obj["metadata"].get("annotations") or {}, _STORAGE_ANNOTATIONS):
        metadata["annotations"] = annotations
    if kind == "PersistentVolume" and obj["metadata"].get("labels"):
        metadata["labels"] = obj["metadata"]["labels"]
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": metadata,
        "spec": pick(obj.get("spec") or {}, keys),
        "status": pick(obj.get("status") or {}, ("phase",)),
    }


def host_ports(container: Mapping[str, Any], host_network: bool) -> list[Object]:
    """Return the ports of a container that are ports of its node."""
    return [pick(port, _PORT) for port in container.get("ports") or () if host_network or port.get("hostPort")]


def _container(container: Object, waiting: bool, host_network: bool) -> Object:
    pruned = pick(container, _CONTAINER)
    if ports := host_ports(container, host_network):
        pruned["ports"] = ports
    if not waiting:
        return pruned
    env = [entry for entry in container.get("env") or () if "secretKeyRef" in (entry.get("valueFrom") or ())]
    env_from = [entry for entry in container.get("envFrom") or () if "secretRef" in entry]
    return pruned | ({"env": env} if env else {}) | ({"envFrom": env_from} if env_from else {})


def _is_confidential(volume: Object) -> bool:
    """Whether the volume uses a Secret or a token, except for the token that the API server adds."""
    if str(volume.get("name", "")).startswith(names.AUTOMATIC_VOLUME_PREFIX):
        return False
    sources = (volume.get("projected") or {}).get("sources") or ()
    return "secret" in volume or any("secret" in part or "serviceAccountToken" in part for part in sources)


def _metadata(obj: Object) -> Object:
    metadata = obj.get("metadata") or {}
    pruned = pick(metadata, _METADATA)
    annotations = metadata.get("annotations")
    if annotations:
        pruned["annotations"] = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    return pruned


def pick(source: Object, keys: tuple[str, ...]) -> Object:
    """Return the mapping with only those of ``keys`` that it has."""
    return {key: source[key] for key in keys if key in source}
