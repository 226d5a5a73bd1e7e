"""The volumes of a pod: which nodes its claims allow, what it waits for, and the writes that bind its claims. Pure.

The rules are those of the plugins VolumeBinding and VolumeRestrictions of the Kubernetes scheduler
(pkg/scheduler/framework/plugins/volumebinding/binder.go, pkg/controller/volume/persistentvolume/index.go). A claim is
in one of these states:

- bound: the node must match the node affinity of its volume;
- of a class with ``Immediate`` binding and not bound: the pod waits;
- of a class with ``WaitForFirstConsumer`` and not bound: a node is allowed if a free volume there fits, or if the class
  has a provisioner and its ``allowedTopologies`` match. After Slurm has allocated the node, one write for each claim
  binds it: ``claimRef`` of a free volume, or the annotation ``selected-node`` for the provisioner. From then on the
  written value alone decides which nodes are allowed, so a successor of a killed scheduler continues with that node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.workload import pods, quantity
from scheduler.volumes.storage import Object, Storage, class_name

Pod = Mapping[str, Any]

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ONE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class Term:
    """A node selector (the list ``nodeSelectorTerms``, as JSON), and why a node that it does not match is refused."""

    why: str
    selector: str


@dataclass(frozen=True, slots=True)
class Unbound:
    """A claim of a class with ``WaitForFirstConsumer`` that nothing has bound yet.

    ``spec`` holds what a volume must fulfil, as JSON. ``topology`` is the selector of the class's allowedTopologies,
    empty for any node. Without ``provisioner``, the claim needs a volume that exists.
    """

    key: tuple[str, str]
    storage_class: str
    spec: str
    provisioner: bool
    topology: str

    @property
    def shape(self) -> tuple[object, ...]:
        """All fields but the key: claims of the same shape allow the same nodes."""
        return self.storage_class, self.spec, self.provisioner, self.topology


@dataclass(frozen=True, slots=True)
class Needs:
    """What the claims of a pod require.

    ``problem`` says why the pod cannot be scheduled yet. A node must match each of ``terms``. ``unbound`` are the
    claims to bind on the allocated node, the smallest request first. ``binding`` are the names of those for which that
    is written, but that are not bound yet. ``exclusive`` are the keys of claims with the access mode ReadWriteOncePod.
    """

    problem: str = ""
    terms: tuple[Term, ...] = ()
    unbound: tuple[Unbound, ...] = ()
    binding: tuple[str, ...] = ()
    exclusive: tuple[str, ...] = ()

    @property
    def restricts(self) -> bool:
        """Whether the claims may allow some nodes only."""
        return bool(self.terms or self.unbound)


NOTHING = Needs()


def claims(pod: Pod) -> list[tuple[str, bool]]:
    """Return the names of the pod's claims, and whether each is made for the pod (a generic ephemeral volume)."""
    names = []
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            names.append((str(volume["persistentVolumeClaim"]["claimName"]), False))
        elif "ephemeral" in volume:
            names.append((f"{pod['metadata']['name']}-{volume['name']}", True))
    return names


def claim_keys(pod: Pod) -> tuple[str, ...]:
    """Return ``namespace/name`` of the pod's claims."""
    return tuple(f"{pod['metadata']['namespace']}/{name}" for name, _ in claims(pod))


def needs(pod: Pod, storage: Storage) -> Needs:
    """Return what the claims of a pod require now."""
    names = claims(pod)
    if not names:
        return NOTHING
    namespace = pod["metadata"]["namespace"]
    problems: list[str] = []
    terms: list[Term] = []
    unbound: list[Unbound] = []
    binding: list[str] = []
    exclusive: list[str] = []
    for name, ephemeral in dict(names).items():
        claim = storage.claim(namespace, name)
        if problem := _unusable(claim, name, pod if ephemeral else None) or "":
            problems.append(problem)
            continue
        assert claim is not None  # noqa: S101  (_unusable has a reason for None)
        if ONE_POD in (claim["spec"].get("accessModes") or ()):
            exclusive.append(f"{namespace}/{name}")
        claim_state = _state(claim, storage)
        if isinstance(claim_state, str):
            problems.append(claim_state)
        elif isinstance(claim_state, Unbound):
            unbound.append(claim_state)
        else:
            terms += claim_state.terms
            binding += claim_state.binding
    if len(unbound) > 1:
        # as binder.go: the smallest claim takes the smallest volume, and leaves the larger ones for the others
        unbound.sort(key=lambda claim: (quantity.parse(json.loads(claim.spec)["storage"]), claim.key))
    return Needs("; ".join(problems), tuple(dict.fromkeys(terms)), tuple(unbound), tuple(binding), tuple(exclusive))


def _unusable(claim: Object | None, name: str, owner: Pod | None) -> str:
    """Return why the pod cannot use the claim at all; ``owner`` is the pod if the claim must have been made for it."""
    if claim is None:
        return f"PersistentVolumeClaim {name} does not exist"
    if claim["metadata"].get("deletionTimestamp"):
        return f"PersistentVolumeClaim {name} is being deleted"
    if owner is not None and not any(
        reference.get("controller") and reference.get("uid") == pods.uid(owner)
        for reference in claim["metadata"].get("ownerReferences") or ()
    ):
        return f"PersistentVolumeClaim {name} was not created for this pod"
    if (claim.get("status") or {}).get("phase") == "Lost":
        return f"PersistentVolumeClaim {name} has lost its PersistentVolume"
    return ""


def _state(claim: Object, storage: Storage) -> Needs | Unbound | str:
    """Return the requirements of one claim, the claim to bind, or why the pod has to wait."""
    metadata, spec = claim["metadata"], claim["spec"]
    annotations, name = metadata.get("annotations") or {}, metadata["name"]
    volume_name = spec.get("volumeName")
    # a user may set volumeName in advance; kube-controller-manager sets bind-completed when both sides are bound
    if volume_name and BIND_COMPLETED in annotations:
        volume = storage.volume(volume_name)
        if volume is None:
            return f"PersistentVolume {volume_name} of PersistentVolumeClaim {name} does not exist"
        return Needs(terms=storage.derived(volume, affinity))
    class_of_claim = class_name(claim)
    storage_class = storage.storage_class(class_of_claim) if class_of_claim else None
    if class_of_claim and storage_class is None:
        return f"StorageClass {class_of_claim} of PersistentVolumeClaim {name} does not exist"
    if volume_name or storage_class is None or storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return f"PersistentVolumeClaim {name} is not bound to a PersistentVolume yet"
    for volume in storage.volumes_of_claim(metadata["namespace"], name):
        # without a UID, an administrator has reserved the volume; another UID is that of a deleted claim of this name
        if volume["spec"]["claimRef"].get("uid") in (None, "", metadata["uid"]):
            return Needs(terms=storage.derived(volume, affinity), binding=(name,))
    if node := annotations.get(SELECTED_NODE):
        fields = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        return Needs(terms=(_term("a PersistentVolume is provisioned for another node", fields),), binding=(name,))
    return Unbound(
        (metadata["namespace"], name),
        class_of_claim,
        storage.derived(claim, _requirements),
        storage_class.get("provisioner") != NO_PROVISIONER,
        storage.derived(storage_class, _topology),
    )


def _requirements(claim: Object) -> str:
    spec = claim["spec"]
    requirements = {
        "storage": ((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"),
        "accessModes": sorted(spec.get("accessModes") or ()),
        "volumeMode": spec.get("volumeMode") or "Filesystem",
        "selector": spec.get("selector") or {},
        "attributes": spec.get("volumeAttributesClassName") or "",
    }
    return _canonical(requirements)


def affinity(volume: Object) -> tuple[Term, ...]:
    """Return the node affinity of a PersistentVolume; empty if every node has access to it."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if not required:
        return ()
    return (_term("node affinity of a PersistentVolume does not match", required.get("nodeSelectorTerms") or ()),)


def _topology(storage_class: Object) -> str:
    allowed = storage_class.get("allowedTopologies")
    if not allowed:
        return ""
    return _canonical(
        [
            {
                "matchExpressions": [
                    {"key": expression["key"], "operator": "In", "values": expression.get("values") or []}
                    for expression in term.get("matchLabelExpressions") or ()
                ]
            }
            for term in allowed
        ]
    )


def _term(why: str, selector: Iterable[Mapping[str, Any]]) -> Term:
    return Term(why, _canonical(list(selector)))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)
