"""The nodes that Kubernetes would refuse for a pod, with the reasons. Pure, on raw pods and nodes.

Slurm allocates the nodes. The request to Slurm therefore excludes the nodes that Kubernetes would refuse: those that do
not match nodeSelector, required node affinity or tolerations, that are cordoned, or that have too little Allocatable
beside the pods that Slurm does not count. A Slurm node that several Kubernetes nodes claim is refused too: a pod and
its Secrets must not go to the wrong kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from bridge import names
from bridge.core.grouping import grouped
from bridge.workload import pods, resources
from bridge.workload.resources import PODS, Resources, allocatable
from bridge.workload.tolerations import Covers, exceeds, remembered

CORDONED = "cordoned"
BESIDE = "beside the pods there"
"""Part of the reason for a node that is large enough, but full: its pods take what Slurm does not count."""
UNCOUNTED = Decimal("Infinity")
"""The amount of an extended resource that a node offers by DRA: Slurm counts its devices, Kubernetes does not."""
NOTHING: Mapping[str, Resources] = MappingProxyType({})
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
LIFECYCLE_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints that Kubernetes sets on a node that is down or starting, and removes when it is up."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Kubernetes node that is also a Slurm node.

    ``rivals`` are the other Kubernetes nodes that claim to be the same Slurm node.
    """

    name: str
    slurm_name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    cordoned: bool
    offered: Resources | None
    """Allocatable; ``None`` if Kubernetes has no such node now. Then only Slurm counts."""
    rivals: tuple[str, ...] = ()
    taken: Resources = field(default_factory=dict)
    """The resources and host ports of the node's pods that Slurm does not count."""
    ready: bool = True
    mirrors_drain: bool = False
    """Whether podbridge has cordoned the node because it was drained in Slurm."""

    def by_devices(self) -> list[str]:
        """Return the extended resources that the node may offer by DRA."""
        return [name for name, value in (self.offered or {}).items() if value == UNCOUNTED]


def slurm_name(node: Mapping[str, Any]) -> str:
    """Return the name of a Kubernetes node in Slurm: its label, else the same name."""
    metadata = node["metadata"]
    label: str = (metadata.get("labels") or {}).get(names.SLURM_NODENAME_LABEL, "")
    return label or str(metadata["name"])


def view(node: Mapping[str, Any], taken: Resources | None = None) -> NodeView:
    """Return the view of a raw node; ``taken`` are the resources of its pods that Slurm does not count."""
    spec = node.get("spec") or {}
    return NodeView(
        name=node["metadata"]["name"],
        slurm_name=slurm_name(node),
        labels=node["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        cordoned=bool(spec.get("unschedulable")),
        offered=allocatable(node),
        taken=taken or {},
        ready=readiness(node).get("status") == "True",
        mirrors_drain=names.SLURM_REASON in (node["metadata"].get("annotations") or {}),
    )


def has_changed(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> bool:
    """Whether the view of a raw node has changed; ``None`` if there is no such node before or afterwards."""
    return old is None or new is None or view(old) != view(new)


def views(nodes: Iterable[Mapping[str, Any]], taken: Mapping[str, Resources] = NOTHING) -> list[NodeView]:
    """Return the views of all colocated nodes, with their rivals; ``taken`` is by the name of the node."""
    return with_rivals([view(node, taken.get(str(node["metadata"]["name"]))) for node in nodes])


def with_rivals(nodes: Sequence[NodeView]) -> list[NodeView]:
    """Return the views of all colocated nodes with their rivals, of which they have none yet."""
    claims = _rivals((node.slurm_name, node.name) for node in nodes)
    return [replace(node, rivals=claims[node.name]) if node.name in claims else node for node in nodes]


def with_devices(node: NodeView, extended: Iterable[str]) -> NodeView:
    """Return the node with the extended resources of DeviceClasses that its Allocatable does not have."""
    missing = {name: UNCOUNTED for name in extended if not (node.offered or {}).get(name)}
    return replace(node, offered={**node.offered, **missing}) if missing and node.offered is not None else node


def rivals(nodes: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the Kubernetes nodes that claim the same Slurm node as others: name -> the others, sorted."""
    return _rivals((slurm_name(node), str(node["metadata"]["name"])) for node in nodes)


def _rivals(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the rivals of nodes, from their names in Slurm and in Kubernetes."""
    shared = [sorted(claimants) for claimants in grouped(named).values() if len(claimants) > 1]
    return {name: tuple(n for n in claimants if n != name) for claimants in shared for name in claimants}


def rivalry(slurm_node: str, others: Iterable[str]) -> str:
    """Return the reason for a Slurm node that several Kubernetes nodes claim."""
    return f"Slurm node {slurm_node} is claimed by {', '.join(others)} too"


def once_up(node: NodeView) -> NodeView:
    """Return the node as it will be after its start."""
    # labels, other taints, cordon and Allocatable outlive a start, so they still count
    taints = tuple(taint for taint in node.taints if taint.get("key") not in LIFECYCLE_TAINTS)
    return replace(node, taints=taints, ready=True)


def may_pass(reason: str) -> bool:
    """Whether a refusal may end by itself: a cordon, a kubelet that is away, or other pods on the node."""
    return reason == CORDONED or reason.endswith(BESIDE) or any(f"taint {key}:" in reason for key in LIFECYCLE_TAINTS)


def unseen(slurm_node: str) -> NodeView:
    """Return the view of a node that Kubernetes has not had since the start of this process: only its name is known."""
    return NodeView(slurm_node, slurm_node, {"kubernetes.io/hostname": slurm_node}, (), cordoned=False, offered=None)


def readiness(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition Ready of a raw node, empty if it has none."""
    return pods.condition(node, "Ready")


SPEC_FIELDS = ("schedulerName", "nodeSelector", "affinity", "tolerations")
"""The fields of a pod's spec that :func:`mismatch` reads."""


def refusal(spec: Mapping[str, Any], requests: Resources, node: NodeView, covers: Covers | None = None) -> str:
    """Return the reason why Kubernetes would refuse the node for the pod; empty if it would not.

    ``requests`` are those of the pod on a node (:func:`bridge.workload.resources.kubelet_requests`). ``covers``: as for
    :func:`mismatch`.
    """
    return first_reason(mismatch(spec, node, covers), shortage(requests, node))


def first_reason(mismatch: str, shortage: str) -> str:
    """Return the reason that counts of a node's two: one that stays, before one that may end by itself."""
    stays = next((why for why in (mismatch, shortage) if why and not may_pass(why)), "")
    return stays or mismatch or shortage


def mismatch(spec: Mapping[str, Any], node: NodeView, covers: Covers | None = None) -> str:
    """Return the reason why the pod may not be on the node, whatever it requests; empty if it may.

    ``covers`` returns whether the pod tolerates a taint; for many nodes, it is that of
    :func:`~bridge.workload.tolerations.remembered`.
    The managed-node taint of the pod's scheduler counts as tolerated: podbridge adds the toleration to its pods. A node
    with that of another scheduler is refused, whatever the pod tolerates.
    """
    holder = next((taint.get("value") for taint in node.taints if taint.get("key") == names.MANAGED_TAINT), None)
    if holder is not None and holder != spec.get("schedulerName", holder):
        return f"managed by scheduler {holder}"
    if node.rivals:
        return rivalry(node.slurm_name, node.rivals)
    covers = covers or remembered(spec.get("tolerations") or ())
    for key, value in (spec.get("nodeSelector") or {}).items():
        if node.labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required and not any(term_matches(term, node) for term in required.get("nodeSelectorTerms") or ()):
        return "required node affinity does not match"
    # taints of a kubelet that is away come last: what the pod may never use is not merely closed
    for taint in sorted(node.taints, key=lambda taint: taint.get("key") in LIFECYCLE_TAINTS):
        # for a cordon, spec.unschedulable counts: Kubernetes adds and removes its taint some time later
        if taint.get("effect") == "PreferNoSchedule" or taint.get("key") in (names.MANAGED_TAINT, UNSCHEDULABLE_TAINT):
            continue
        if not covers(taint):
            return f"taint {taint.get('key')}:{taint.get('effect')} is not tolerated"
    if node.cordoned and not covers({"key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}):
        return CORDONED
    return ""


def shortage(requests: Resources, node: NodeView) -> str:
    """Return the first resource or host port of which the node has too little for the requests; empty if none."""
    if node.offered is None:
        return ""  # only Slurm counts
    conflicts = resources.port_conflicts(requests, node.taken)
    for name in sorted(requests):
        if resources.is_host_port(name):
            if name in conflicts:
                return f"{name} is in use"
            continue
        offered = node.offered.get(name, Decimal(0))
        if name == PODS and name not in node.offered:
            continue  # a node without this resource was never updated by a kubelet
        if requests[name] > offered:
            return f"too little {name}"
        if requests[name] > offered - node.taken.get(name, Decimal(0)):
            return f"too little {name} {BESIDE}"
    return ""


def term_matches(term: Mapping[str, Any], node: NodeView) -> bool:
    """Whether one of the ``nodeSelectorTerms`` of a node selector matches; an empty one matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(expression_matches(e, node.labels) for e in expressions) and all(
        expression_matches(e, {"metadata.name": node.name}) for e in fields
    )


def expression_matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether one expression (key, operator, values) of a selector matches the labels."""
    key, operator = expression["key"], expression["operator"]
    values: list[str] = expression.get("values") or []
    present = key in labels
    if operator == "Exists":
        return present
    if operator == "DoesNotExist":
        return not present
    if operator == "In":
        return present and labels[key] in values
    if operator == "NotIn":
        return not present or labels[key] not in values
    if operator in ("Gt", "Lt") and present and len(values) == 1:
        return exceeds(operator, labels[key], values[0])
    return False
