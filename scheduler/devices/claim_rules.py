"""Which claims of pods one job can satisfy: checks before its submission and before a bind. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bridge import names
from bridge.slurm.models import JobRequest
from bridge.workload import pods
from bridge.workload.devices import extended_claims
from bridge.workload.devices.claimed_devices import CPU, Demand, UnsupportedClaimError

Object = dict[str, Any]
Pod = Mapping[str, Any]
MOST_USERS = 256
"""Entries of ``status.reservedFor`` that the API server allows."""


def sum_of(own: Demand, shared: Demand, pods_on_node: int) -> Demand:
    """Return the demand of one node with ``pods_on_node`` pods; the CPUs are those of one pod."""
    kinds = own.gres.keys() | shared.gres.keys()
    return Demand(own.cpus, {kind: own.of(kind) * pods_on_node + shared.of(kind) for kind in kinds})


def check_members(
    request: JobRequest,
    members: Sequence[Pod],
    own_demands: Sequence[Demand],
    shared_uids: Sequence[Collection[str]],
    claims: Sequence[Object],
    shared_demand: Demand,
    size: int,
) -> None:
    """Raise if one job cannot satisfy the claims of the members of a gang."""
    first = members[0]["metadata"]["name"]
    for pod, demand, pod_shared_uids in zip(members, own_demands, shared_uids, strict=True):
        if demand != own_demands[0] or pod_shared_uids != shared_uids[0]:
            raise UnsupportedClaimError(
                f"pods {first} and {pod['metadata']['name']} of one group have claims for other devices; allowed: the "
                f"same resourceClaimTemplateName, or the same resourceClaimName"
            )
    if not claims:
        return
    listed = ", ".join(claim["metadata"]["name"] for claim in claims)
    if request.max_nodes != 1:
        raise UnsupportedClaimError(
            f"ResourceClaim {listed} is shared by the members of a group on several nodes, and its devices are on one; "
            f"allowed: annotation {names.MEMBERS_PER_NODE} with the size of the group ({size}), or "
            f"resourceClaimTemplateName"
        )
    if size > MOST_USERS:
        raise UnsupportedClaimError(
            f"ResourceClaim {listed} is shared by {size} members of a group; allowed: {MOST_USERS}"
        )
    if shared_demand.cpus:
        raise UnsupportedClaimError(
            f"ResourceClaim {listed} of the members of a group requests CPUs ({CPU}), which Slurm counts for each "
            f"member; allowed: resourceClaimTemplateName"
        )


def of_extended_resources(pod: Pod, classes: Mapping[str, str]) -> Object | None:
    """Return the claim for the extended resources of a pod that DRA provides; ``None`` without any."""
    try:
        return extended_claims.claim(pod, classes)
    except ValueError as error:
        raise UnsupportedClaimError(f"spec.containers: {error}") from error


def check_free(claim: Object, users: Sequence[Pod]) -> None:
    """Raise if another pod uses the claim: its devices belong to the job of that pod."""
    allowed = {pods.uid(pod) for pod in users}
    others = [
        user.get("name")
        for user in (claim.get("status") or {}).get("reservedFor") or ()
        if user.get("uid") not in allowed
    ]
    if others:
        raise UnsupportedClaimError(
            f"ResourceClaim {claim['metadata']['name']} is in use by {', '.join(map(str, others[:5]))}, whose Slurm "
            f"job has its devices; allowed: a claim for each pod (resourceClaimTemplateName), or pods of one group on "
            f"one node ({names.MEMBERS_PER_NODE})"
        )


def users(claim: Object) -> set[str]:
    """Return the UIDs of the pods for which a claim is reserved."""
    return {str(user.get("uid")) for user in (claim.get("status") or {}).get("reservedFor") or ()}
