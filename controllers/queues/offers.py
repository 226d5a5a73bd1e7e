"""What each pool offers to queues: the resources, taints and state of its virtual node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from bridge import names
from bridge.clock import parse_rfc3339
from bridge.core import isolation
from bridge.workload import pods
from bridge.workload.pool_selection import is_virtual
from bridge.workload.quantity import parse

State = Literal["ready", "held", "unknown"]
SILENT = "SiteSilent"
_HOSTNAME = "kubernetes.io/hostname"
_TRANSIENT = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets and removes with the condition of a node."""
_ZERO = Fraction(0)
_REPELLENT = ("NoSchedule", "NoExecute")
MOST_TAINTS = 8
"""Limit of a ResourceFlavor."""


@dataclass(frozen=True, slots=True)
class QuotaOffer:
    """The virtual node of a pool."""

    pool: str
    hostname: str
    """Value of the label ``kubernetes.io/hostname`` of the node."""
    taints: tuple[Mapping[str, str], ...]
    """Taints that pods must tolerate to use the pool, without the pool's own one and without transient ones."""
    amounts: Mapping[str, Fraction]
    """Allocatable resources of the node."""
    state: State
    """``unknown``: nobody has reported the condition ``Ready`` of the node, for example after a restart of
    podbridge."""
    reason: str
    """Reason of the condition, or ``Cordoned``."""
    since: float
    """Time (seconds since 1970) from which the condition has been as it is."""


def read(nodes: Iterable[Mapping[str, Any]]) -> dict[str, QuotaOffer]:
    """Return the offers of all virtual nodes by pool."""
    offers = [offer for node in nodes if is_virtual(node) and (offer := _readable_offer(node)) is not None]
    return {offer.pool: offer for offer in sorted(offers, key=lambda offer: offer.pool)}


def _readable_offer(node: Mapping[str, Any]) -> QuotaOffer | None:
    try:
        return _offer(node)
    except Exception as error:
        isolation.report("queues", str(node["metadata"]["name"]), error)
        return None


def of_nodes(
    nodes: Iterable[Mapping[str, Any]], labels: Mapping[str, str], *, slurm: bool, scheduler: str
) -> dict[str, Fraction]:
    """Return what the nodes with these labels offer together: nodes that are not ready or cordoned offer 0.

    ``slurm``: the nodes with the taint of podbridge's ``scheduler``, also those that Slurm has stopped and starts for a
    job; else those that no podbridge has tainted. Of the latter, those with any taint for pods offer 0: the
    ResourceFlavor tolerates none.
    """
    total: dict[str, Fraction] = {}
    for node in nodes:
        spec, node_labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
        if any(node_labels.get(key) != value for key, value in labels.items()):
            continue
        managers = [taint.get("value") for taint in spec.get("taints") or () if taint["key"] == names.MANAGED_TAINT]
        if is_virtual(node) or managers != ([scheduler] if slurm else []):
            continue
        ready = _is_ready(node, asleep=slurm and names.SLURM_ASLEEP in (node["metadata"].get("annotations") or {}))
        if not slurm:
            ready &= not any(taint.get("effect") in _REPELLENT for taint in spec.get("taints") or ())
        for resource, amount in _amounts((node.get("status") or {}).get("allocatable") or {}).items():
            total[resource] = total.get(resource, _ZERO) + (amount if ready else 0)
    return total


def _is_ready(node: Mapping[str, Any], *, asleep: bool) -> bool:
    ready = pods.condition(node, "Ready").get("status") == "True"
    return (ready or asleep) and not (node.get("spec") or {}).get("unschedulable")


def _offer(node: Mapping[str, Any]) -> QuotaOffer:
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    ready = pods.condition(node, "Ready")
    state: State = {"True": "ready", "False": "held"}.get(str(ready.get("status")), "unknown")  # type: ignore[assignment]
    reason = str(ready.get("reason") or "NotReported")
    # a cordon counts whatever the condition is: Kueue must admit no workload to the pool
    if spec.get("unschedulable"):
        state, reason = "held", "Cordoned"
    taints = [
        {key: taint[key] for key in ("key", "value", "effect") if taint.get(key)}
        for taint in spec.get("taints") or ()
        if taint["key"] != names.POOL_TAINT and not taint["key"].startswith(_TRANSIENT)
    ]
    return QuotaOffer(
        labels[names.POOL_LABEL],
        labels.get(_HOSTNAME, metadata["name"]),
        # sorted: another order in the Node must not write the ResourceFlavor again
        tuple(sorted(taints, key=lambda taint: (taint["key"], taint["effect"])))[:MOST_TAINTS],
        _amounts(status.get("allocatable") or {}),
        state,
        reason,
        max(_time(ready.get("lastTransitionTime")), _lost_at(node) if reason == SILENT else 0.0),
    )


def _lost_at(node: Mapping[str, Any]) -> float:
    """Return the time since which podbridge has not heard the site; the node may have been not ready before that."""
    connected = pods.condition(node, names.POOL_CONNECTED)
    return _time(connected.get("lastTransitionTime")) if connected.get("status") == "False" else 0.0


def _amounts(allocatable: Mapping[str, Any]) -> dict[str, Fraction]:
    amounts = {}
    for resource, value in allocatable.items():
        try:
            amounts[resource] = Fraction(parse(value))
        except ValueError:
            continue  # a quantity that cannot be read is no offer
    return amounts


def _time(text: object) -> float:
    try:
        return parse_rfc3339(str(text))
    except ValueError:
        return 0.0
