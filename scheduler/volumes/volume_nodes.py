"""The nodes that the claims of a pod allow, and the writes that bind the claims on one of them. Pure.

Free volumes are chosen as in FindMatchingVolume of Kubernetes (pkg/controller/volume/persistentvolume/index.go): the
smallest one that fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any

from bridge.workload import eligibility, quantity
from bridge.workload.eligibility import NodeView
from scheduler.volumes.pod_volumes import SELECTED_NODE, Needs, Term, Unbound, affinity
from scheduler.volumes.storage import Object, Storage

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Write the node into the annotation selected-node of the claim, for its provisioner."""

    claim: Object
    node: str

    @property
    def patch(self) -> dict[str, Any]:
        """The merge patch, with UID and resource version as preconditions."""
        return {"metadata": {**_precondition(self.claim), "annotations": {SELECTED_NODE: self.node}}}


@dataclass(frozen=True, slots=True)
class ClaimVolume:
    """Write the claim into ``claimRef`` of a free volume; kube-controller-manager then binds both."""

    volume: Object
    claim: Object

    @property
    def patch(self) -> dict[str, Any]:
        """The merge patch, with UID and resource version as preconditions."""
        metadata = self.claim["metadata"]
        ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        ref |= {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata}
        # not volumeName of the claim: it can be set only once, so a lost race would leave the claim unbound
        # without the annotation, kube-controller-manager keeps claimRef as a user's if the claim is bound elsewhere
        annotations = {BOUND_BY_CONTROLLER: "yes"}
        return {"metadata": {**_precondition(self.volume), "annotations": annotations}, "spec": {"claimRef": ref}}


Write = SelectNode | ClaimVolume

_Candidate = tuple[Decimal, str, Object, tuple[Term, ...]]
"""A free volume with its capacity, its name and its node affinity."""


class NodeFilter:
    """Decides which nodes the claims of one pod allow; made for one version of the storage objects."""

    def __init__(self, needs: Needs, storage: Storage) -> None:
        self._terms = needs.terms
        self._storage = storage
        self._candidates = [(claim, _by_host(claim, storage)) for claim in needs.unbound]

    def refusal(self, node: NodeView) -> str:
        """Return why the claims do not allow the node; empty if they do."""
        why = next((term.why for term in self._terms if not _matches(term.selector, node)), "")
        return why or self._plan(node)[1]

    def writes(self, node: NodeView) -> list[Write]:
        """Return the writes that bind the unbound claims on a node that :meth:`refusal` allows."""
        planned = ((self._storage.claim(*claim.key), volume) for claim, volume in self._plan(node)[0])
        return [
            SelectNode(claim, node.name) if volume is None else ClaimVolume(volume, claim)
            for claim, volume in planned
            if claim is not None
        ]

    def _plan(self, node: NodeView) -> tuple[list[tuple[Unbound, Object | None]], str]:
        """Return the free volume of each unbound claim (``None``: it is provisioned), or why the node is refused."""
        planned: list[tuple[Unbound, Object | None]] = []
        taken_names: set[str] = set()
        for claim, by_host in self._candidates:
            candidates = [*by_host.get(node.labels.get(HOSTNAME, ""), ()), *by_host.get(None, ())]
            candidates = [
                candidate
                for candidate in candidates
                if candidate[1] not in taken_names and all(_matches(term.selector, node) for term in candidate[3])
            ]
            if candidates:
                _, name, volume, _ = min(candidates, key=itemgetter(0, 1))
                taken_names.add(name)
                planned.append((claim, volume))
            elif not claim.provisioner:
                return [], f"no free PersistentVolume of StorageClass {claim.storage_class} fits"
            elif claim.topology and not _matches(claim.topology, node):
                return [], f"allowedTopologies of StorageClass {claim.storage_class} do not match"
            else:
                planned.append((claim, None))
        return planned, ""


def _by_host(claim: Unbound, storage: Storage) -> dict[str | None, list[_Candidate]]:
    """Return the free volumes that fit the claim by the host of their node affinity; ``None``: any other affinity."""
    spec = json.loads(claim.spec)
    by_host: dict[str | None, list[_Candidate]] = {}
    requested = quantity.parse(spec["storage"])
    for volume in storage.volumes_of_class(claim.storage_class):
        if _fits(spec, requested, volume):
            terms = storage.derived(volume, affinity)
            candidate = (_capacity(volume), volume["metadata"]["name"], volume, terms)
            hosts = [_hosts(term.selector) for term in terms]
            for host in hosts[0] if hosts and hosts[0] is not None else (None,):
                by_host.setdefault(host, []).append(candidate)
    return by_host


def _fits(requirements: Mapping[str, Any], requested: Decimal, volume: Object) -> bool:
    """Whether a volume is free and fulfils a claim, on whatever node."""
    spec = volume["spec"]
    return bool(
        not spec.get("claimRef")
        and not volume["metadata"].get("deletionTimestamp")
        and (volume.get("status") or {}).get("phase") == "Available"
        and (spec.get("volumeMode") or "Filesystem") == requirements["volumeMode"]
        and (spec.get("volumeAttributesClassName") or "") == requirements["attributes"]
        and set(requirements["accessModes"]) <= set(spec.get("accessModes") or ())
        and _capacity(volume) >= requested
        and _selects(requirements["selector"], volume["metadata"].get("labels") or {})
    )


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
    exact = [
        {"key": key, "operator": "In", "values": [value]} for key, value in (selector.get("matchLabels") or {}).items()
    ]
    expressions = [*exact, *(selector.get("matchExpressions") or ())]
    return all(eligibility.expression_matches(expression, labels) for expression in expressions)


def _capacity(volume: Object) -> Decimal:
    return quantity.parse((volume["spec"].get("capacity") or {}).get("storage", "0"))


@lru_cache(4096)
def _parsed(selector: str) -> Any:
    return json.loads(selector)


@lru_cache(4096)
def _hosts(selector: str) -> frozenset[str] | None:
    """Return the hosts of a selector that only names hosts, as that of a local volume; ``None`` for any other."""
    terms = _parsed(selector)
    if len(terms) != 1 or terms[0].get("matchFields") or len(terms[0].get("matchExpressions") or ()) != 1:
        return None
    (expression,) = terms[0]["matchExpressions"]
    if expression["key"] != HOSTNAME or expression["operator"] != "In":
        return None
    return frozenset(expression.get("values") or ())


def _matches(selector: str, node: NodeView) -> bool:
    hosts = _hosts(selector)
    if hosts is not None:
        return node.labels.get(HOSTNAME) in hosts
    return any(eligibility.term_matches(term, node) for term in _parsed(selector))


def _precondition(obj: Object) -> dict[str, str]:
    return {key: obj["metadata"][key] for key in ("uid", "resourceVersion") if key in obj["metadata"]}
