"""The objects of Kueue that podbridge writes, and their comparison with the observed ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest
from typing import Any

from bridge import names
from bridge.workload.quantity import parse

Object = dict[str, Any]
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Versions of Kueue's API that podbridge writes, the preferred one first."""
LARGEST = 2**63 - 1
"""Kubernetes' own limit of quantities. Kueue counts in integers of this size, CPUs in thousandths."""
Amounts = Mapping[str, Fraction]
Quota = tuple[str, Amounts, Amounts | None]
"""Flavor, nominal quota, borrowing limit (``None``: none) per resource; resources without a limit have none."""
MOST_FLAVORS = 64
"""Kueue's limit for a resource group."""
MOST_RESOURCES = 64
"""Kueue's limit for a resource group, and for each flavor."""
MOST_QUOTAS = 512
"""Kueue's limit for a ClusterQueue: the resources of all flavors together."""
_BETA1_POLICIES = {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}
"""What ``MayStopSearch`` is in ``v1beta1``; Kueue 0.15 accepts both there, older versions only these."""
_QUANTITIES = ("nominalQuota", "borrowingLimit")
_FIRST = ("cpu", "memory", "pods")


def resource_flavor(version: str, name: str, owner: Object, hostname: str, taints: Sequence[Any], pool: str) -> Object:
    """Return the ResourceFlavor of a pool: its virtual node, and the toleration for the pod."""
    spec: Object = {
        "nodeLabels": {"kubernetes.io/hostname": hostname},
        "nodeTaints": [dict(taint) for taint in taints],
        "tolerations": [{"key": names.POOL_TAINT, "operator": "Equal", "value": pool, "effect": "NoSchedule"}],
    }
    return _object(version, "ResourceFlavor", name, owner, spec)


def node_flavor(version: str, name: str, owner: Object, labels: Mapping[str, str]) -> Object:
    """Return the ResourceFlavor of nodes with these labels."""
    return _object(version, "ResourceFlavor", name, owner, {"nodeLabels": dict(labels)} if labels else {})


def local_queue(version: str, namespace: str, name: str, owner: Object, target: str) -> Object:
    """Return a LocalQueue of a ClusterQueue."""
    body = _object(version, "LocalQueue", name, owner, {"clusterQueue": target})
    body["metadata"]["namespace"] = namespace
    return body


def cluster_queue(
    version: str, name: str, owner: Object, template: Mapping[str, Any], stop_policy: str, quotas: Sequence[Quota]
) -> Object:
    """Return a ClusterQueue with one resource group; ``template`` has the names of v1beta1."""
    spec: Object = {"queueingStrategy": "BestEffortFIFO", "namespaceSelector": {}, **_template(version, template)}
    spec["stopPolicy"] = stop_policy
    covered = resources(quotas)
    flavors = [
        {"name": flavor, "resources": [_quota(resource, nominal, limit) for resource in covered]}
        for flavor, nominal, limit in quotas
    ]
    spec["resourceGroups"] = [{"coveredResources": covered, "flavors": flavors}] if flavors else []
    return _object(version, "ClusterQueue", name, owner, spec)


def resources(quotas: Sequence[Quota]) -> list[str]:
    """Return the resources of all flavors, in the order in which each flavor of a ClusterQueue must name them.

    Kueue's limits can exclude some of them: :func:`omitted`.
    """
    offered = {resource for _, nominal, _ in quotas for resource in nominal}
    first = [name for name in _FIRST if name in offered]
    # in turn: the resources of one site must not displace those of the others
    turns = zip_longest(*(sorted(nominal.keys() - set(_FIRST)) for _, nominal, _ in quotas))
    others = dict.fromkeys(name for turn in turns for name in turn if name is not None)
    limit = min(MOST_RESOURCES, MOST_QUOTAS // max(1, len(quotas)))
    selected = [*first, *sorted([*others][: max(0, limit - len(first))])]
    return selected or ["cpu"]  # a resource group of Kueue has at least one


def omitted(quotas: Sequence[Quota]) -> list[str]:
    """Return the resources that exceed Kueue's limits."""
    return sorted({resource for _, nominal, _ in quotas for resource in nominal}.difference(resources(quotas)))


def text(resource: str, amount: Fraction) -> str:
    """Return a quantity, rounded down: CPUs to 1/1000, others to whole numbers."""
    # rounded down: the quota must not exceed what the pools offer
    thousandths = min(math.floor(amount * 1000), LARGEST if resource == "cpu" else 1000 * LARGEST)
    if resource == "cpu" and thousandths % 1000:
        return f"{thousandths}m"
    return str(thousandths // 1000)


def is_applied(desired: Object, observed: Object) -> bool:
    """Whether the observed object has all desired values; the API server and Kueue add defaults."""
    annotations = observed["metadata"].get("annotations") or {}
    # the digest shows a field that is no longer desired: in the spec, it looks like a default
    same = annotations.get(names.QUEUE_APPLIED) == desired["metadata"]["annotations"][names.QUEUE_APPLIED]
    return same and _contains(observed.get("spec") or {}, desired["spec"])


def is_owned(observed: Object, uid: str) -> bool:
    """Whether an object belongs to the MasterQueue with this UID."""
    return any(entry.get("uid") == uid for entry in observed["metadata"].get("ownerReferences") or ())


def flavor_names(queue: Object) -> list[str]:
    """Return the flavors of a ClusterQueue."""
    return [flavor["name"] for flavor in _flavors(queue)]


def _flavors(queue: Object) -> list[Object]:
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return [flavor for group in groups for flavor in group.get("flavors") or ()]


def _quotas(queue: Object, flavor: str) -> list[Object]:
    return [item for each in _flavors(queue) if each["name"] == flavor for item in each.get("resources") or ()]


def has_quota(queue: Object, flavor: str) -> bool:
    """Whether a ClusterQueue has any quota of a flavor above 0."""
    return any(_amount(quota.get("nominalQuota")) for quota in _quotas(queue, flavor))


def is_used(queue: Object, flavor: str) -> bool:
    """Whether workloads of a ClusterQueue have a reservation of a flavor."""
    entries = (queue.get("status") or {}).get("flavorsReservation") or ()
    return any(_amount(item.get("total")) for e in entries if e["name"] == flavor for item in e.get("resources") or ())


def can_borrow(queue: Object, flavor: str) -> bool:
    """Whether a ClusterQueue in a cohort has no borrowing limit of 0 for a resource of a flavor."""
    return any(_amount(quota.get("borrowingLimit", 1)) for quota in _quotas(queue, flavor))


def is_unused(queue: Object, flavor: str) -> bool:
    """Whether no workload of a ClusterQueue has a reservation of a flavor, or can get one.

    Kueue admits before it reports the reservation. It writes both the reservations and the observed generation from its
    cache at the same time, so a report for a generation without quota contains all of them.
    """
    conditions = (queue.get("status") or {}).get("conditions") or ()
    observed = {condition.get("observedGeneration", 0) for condition in conditions if condition["type"] == "Active"}
    reported = queue["metadata"].get("generation", 0) in observed
    return reported and not has_quota(queue, flavor) and not is_used(queue, flavor)


def _object(version: str, kind: str, name: str, owner: Object, spec: Object) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    metadata = {"name": name, "ownerReferences": [reference], "annotations": {names.QUEUE_APPLIED: digest}}
    return {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def _template(version: str, template: Mapping[str, Any]) -> Object:
    """Return the fields of the template by their names and values in a version."""
    result = dict(template)
    if version != "v1beta1" and "cohort" in result:
        result["cohortName"] = result.pop("cohort")
    fungibility = result.get("flavorFungibility")
    if isinstance(fungibility, Mapping):
        result["flavorFungibility"] = {key: _policy(version, key, value) for key, value in fungibility.items()}
    return result


def _policy(version: str, field: str, value: Any) -> Any:
    """Return a value of ``flavorFungibility`` by its name in a version; manifests may have either name."""
    older = _BETA1_POLICIES.get(field)
    if older is None or value not in (older, "MayStopSearch"):
        return value
    return older if version == "v1beta1" else "MayStopSearch"


def _quota(resource: str, nominal: Amounts, limit: Amounts | None) -> Object:
    result = {"name": resource, "nominalQuota": text(resource, nominal.get(resource, Fraction(0)))}
    if limit is not None and resource in limit:
        result["borrowingLimit"] = text(resource, limit[resource])
    return result


def _contains(observed: Any, desired: Any, key: str = "") -> bool:
    if isinstance(desired, Mapping):
        return isinstance(observed, Mapping) and all(
            name in observed and _contains(observed[name], value, name) for name, value in desired.items()
        )
    if isinstance(desired, list):
        observed = observed or []
        return len(observed) == len(desired) and all(map(_contains, observed, desired))
    if key in _QUANTITIES:
        return _amount(observed) == _amount(desired)
    return bool(observed == desired)


def _amount(value: Any) -> Fraction:
    try:
        return Fraction(parse(value))
    except ValueError:
        return Fraction(0)
