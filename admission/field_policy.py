"""The check of account, partition, QOS and similar annotations against the namespace's policy. Pure.

podbridge submits jobs as SlurmUser. Slurm does not apply restrictions of partitions (``AllowGroups``, ``RootOnly``) and
reservations to SlurmUser, and checks accounts and QOS against the associations of SlurmUser instead of those of the
pod's author (``tests/contract/slurm/test_limits_of_users.py``). So podbridge checks these values itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from admission.raw_pods import Pod, annotations_of
from bridge import names
from bridge.config import policies
from bridge.config.policies import FIELDS, NamespacePolicy
from bridge.workload import pods
from bridge.workload.services import Target

EXPOSE = names.EXPOSE.rpartition("/")[2]
"""The permission to expose pods whose namespace's policy does not allow it."""
SCHEDULER = "scheduler"
"""The permission to name podbridge's scheduler in a namespace that is not managed."""
PARTITION = names.PARTITION.removeprefix(names.JOB_ANNOTATION_PREFIX)


@dataclass(frozen=True, slots=True)
class Denial:
    """A value that needs a permission: the key of the permission, the problem, the values allowed without it."""

    key: str
    problem: str
    allowed: str


def defaults(policy: NamespacePolicy, pod: Pod, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that a pod gets if neither the pod nor its owners (``inherited``) have them.

    A pod without a deadline gets the maximum time limit: it would have the one of the partition.
    """
    annotations = {name: value for name in FIELDS if (value := policy.default_of(name)) is not None}
    deadline = pod["spec"].get("activeDeadlineSeconds") or names.JOB_DEADLINE in {**annotations_of(pod), **inherited}
    if policy.max.timelimit is not None and not deadline:
        annotations[names.TIME_LIMIT] = str(policy.max.timelimit)
    return annotations


def denied(annotations: Mapping[str, str], policy: NamespacePolicy, partition: str) -> list[Denial]:
    """List the values that the policy does not allow, sorted by field; ``partition`` is the configured one.

    If the policy has a default, an absent annotation is denied too, because Slurm would use the default of SlurmUser.
    """
    denials = []
    for name in sorted(FIELDS):
        allowed = policy.allowed_of(name, partition)
        value = annotations.get(name)
        if value is None:
            is_denied = policy.default_of(name) is not None
            problem = f"annotation {name}: must not be absent"
        else:
            refused = [part for part in policies.parts(value) if part not in allowed]
            is_denied = bool(refused) and policies.ANY not in allowed
            problem = f"annotation {name}: {value!r} is not allowed"
            if is_denied and [value] != refused:
                problem += f" ({', '.join(refused)})"
        if is_denied:
            key = name.removeprefix(names.JOB_ANNOTATION_PREFIX)
            denials.append(Denial(key, problem, ", ".join(allowed) or "no such annotation"))
    return denials


def impossible(annotations: Mapping[str, str], partitions: Collection[str]) -> list[str]:
    """List the partitions that no pod of this installation can use; ``partitions`` are those that it can (empty: all).

    No permission allows them: another installation schedules the pods of these partitions.
    """
    requested = policies.parts(annotations.get(names.PARTITION, ""))
    if not partitions or not (refused := [part for part in requested if part not in partitions]):
        return []
    return [
        f"annotation {names.PARTITION}: {', '.join(refused)} is not a partition of this scheduler; "
        f"allowed: {', '.join(partitions)}"
    ]


def selector_denied(spec: Mapping[str, Any], policy: NamespacePolicy, partition: str) -> list[Denial]:
    """List the partitions of the pod's node selector that the policy does not allow; at most one denial."""
    allowed = policy.allowed_of(names.PARTITION, partition)
    refused = [part for part in pods.selected_partitions(spec) if part not in allowed]
    if not refused or policies.ANY in allowed:
        return []
    problem = f"spec.nodeSelector[{names.PARTITION_LABEL_PREFIX}{refused[0]}]: partition {refused[0]!r} is not allowed"
    return [Denial(PARTITION, problem, ", ".join(allowed) or "no such label")]


def selector_impossible(spec: Mapping[str, Any], partitions: Collection[str]) -> list[str]:
    """List the partitions of the pod's node selector that no pod of this installation can use."""
    requested = pods.selected_partitions(spec)
    if not partitions or not (refused := [part for part in requested if part not in partitions]):
        return []
    return [
        f"spec.nodeSelector[{names.PARTITION_LABEL_PREFIX}{refused[0]}]: {refused[0]!r} is not a partition of this "
        f"scheduler; allowed: {', '.join(partitions)}"
    ]


def scheduler_denied(scheduler: str) -> Denial:
    """Return the denial for a pod that names the scheduler in a namespace that is not managed."""
    problem = f"spec.schedulerName: {scheduler!r} is not allowed: the namespace is not managed by podbridge"
    return Denial(SCHEDULER, problem, "another scheduler, or a managed namespace")


def expose_denied(annotations: Mapping[str, str], policy: NamespacePolicy) -> list[Denial]:
    """List the denial for an exposed pod, if the policy does not allow it."""
    if policy.expose or names.EXPOSE not in annotations:
        return []
    return [Denial(EXPOSE, f"annotation {names.EXPOSE} is not allowed", "no such annotation")]


def reach_forbidden(targets: Iterable[Target], own: str, policy: NamespacePolicy) -> list[str]:
    """List the Services that pods of the namespace ``own`` may not reach. No permission allows them."""
    if not policy.reach:
        return [f"annotation {names.REACH} is not allowed in namespace {own}; allowed: no such annotation"]
    allowed = ", ".join([own, *policy.reach_namespaces])
    return [
        f"annotation {names.REACH}: Service {target.service} of namespace {target.namespace} is not allowed; allowed: "
        f"Services of {allowed}"
        for target in targets
        if not policy.may_reach(own, target.namespace)
    ]
