"""The condition of the PodGroups of Kubernetes' Workload API that says whether they are scheduled.

Their scheduler writes it. Source: ``PodGroupStatus`` in ``k8s.io/api/scheduling`` (v1alpha2, v1beta1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bridge import names
from bridge.core import isolation
from bridge.errors import KubeNotFoundError
from bridge.kube.discovery import get_if_served
from bridge.kube.kube_client import KubeClient
from bridge.slurm.models import GroupRef
from bridge.workload import links, pods
from bridge.workload.groups import Membership
from bridge.workload.kinds import pod_group_kinds

Pod = Mapping[str, Any]
TYPES = {"v1alpha2": "PodGroupScheduled", "v1beta1": "PodGroupInitiallyScheduled"}
"""API version -> type of the condition. The one of v1beta1 stays ``True`` whatever happens to the pods later."""


@dataclass(frozen=True, slots=True)
class GroupCondition:
    """The condition of one PodGroup; ``reason`` is ``Scheduled`` or ``Unschedulable``."""

    group: GroupRef
    scheduled: bool
    reason: str
    message: str


def conditions(all_pods: Iterable[Pod]) -> dict[str, GroupCondition]:
    """Return the condition of each PodGroup with a pod, by the key of its group. Pure.

    A PodGroup is scheduled when as many members as its minimum are bound or have ended on a node. It stays so when such
    members are deleted, as long as another one exists and no member waits from the time before it was bound. Otherwise,
    the message is that of the first member with a condition.
    """
    members: dict[str, list[Pod]] = {}
    for pod in all_pods:
        if names.GROUP not in (pod["metadata"].get("annotations") or ()):
            continue
        try:
            key = links.key(pod)  # cached: reading the memberships of thousands of pods takes longer
        except Exception as error:
            isolation.report("workload", pods.key(pod), error)
            continue
        if key.startswith(f"{pod_group_kinds.WORKLOAD.name}/"):
            members.setdefault(key, []).append(pod)
    conditions_by_group = {key: _of_members(key, group) for key, group in members.items()}
    return {key: condition for key, condition in conditions_by_group.items() if condition is not None}


def _of_members(key: str, members: list[Pod]) -> GroupCondition | None:
    try:
        member = _membership(members)
        return _condition(member, members) if member is not None else None
    except Exception as error:
        isolation.report("workload", key, error)
        return None


def _membership(members: list[Pod]) -> Membership | None:
    """Return the membership of a pod in its group, with the size and the minimum that the scheduler uses."""
    first = links.membership(members[0])
    if first is None or len({pod["metadata"]["annotations"][names.GROUP] for pod in members}) == 1:
        return first
    size, minimum = links.size_and_minimum((pod, links.membership(pod) or first) for pod in members)
    return replace(first, size=size, minimum=minimum)


def _condition(member: Membership, members: list[Pod]) -> GroupCondition:
    members = sorted(members, key=lambda pod: str(pod["metadata"]["name"]))
    bound = [pod for pod in members if pods.is_bound(pod)]
    if len(bound) >= member.minimum or pods.bound_before(bound, filter(pods.is_open, members)):
        return GroupCondition(member.key, True, "Scheduled", f"{member.minimum} pods are bound to nodes")
    messages = (str(pods.condition(pod, names.POD_SCHEDULED).get("message", "")) for pod in members)
    return GroupCondition(member.key, False, "Unschedulable", next(filter(None, messages), "the pods wait for Slurm"))


def write(kube: KubeClient, condition: GroupCondition, now: str) -> None:
    """Write the condition to its PodGroup, if that exists and has another one; ``now`` is an RFC 3339 time."""
    group = condition.group
    for resource in pod_group_kinds.WORKLOAD.resources:
        pod_group = get_if_served(kube, resource, group.namespace, group.name)
        if pod_group is None:
            continue
        if pod_group["metadata"]["uid"] != group.uid:
            return
        kind = TYPES[resource.version]
        current_conditions = (pod_group.get("status") or {}).get("conditions") or []
        before: Mapping[str, Any] = next((entry for entry in current_conditions if entry.get("type") == kind), {})
        if resource.version == "v1beta1" and before.get("status") == "True":
            return
        status = "True" if condition.scheduled else "False"
        desired = {"type": kind, "status": status, "reason": condition.reason, "message": condition.message[:1024]}
        if all(before.get(field) == value for field, value in desired.items()):
            return
        # the time is that of the last change of the status, not of the message
        desired["lastTransitionTime"] = before["lastTransitionTime"] if before.get("status") == status else now
        others = [entry for entry in current_conditions if entry.get("type") != kind]
        patch = {
            # replaces the list of conditions: the version refuses it if another client has just set one
            "metadata": {"resourceVersion": pod_group["metadata"]["resourceVersion"]},
            "status": {"conditions": [*others, desired]},
        }
        with suppress(KubeNotFoundError):
            kube.patch(resource.path(group.namespace, group.name, "status"), patch)
        return
