"""Which values of account, partition, QOS and others a pod may have: the namespace's policy, applied. Pure.

podbridge submits jobs as SlurmUser. Slurm does not keep SlurmUser out of partitions (``AllowGroups``, ``RootOnly``) and
reservations, and checks accounts and QOS against SlurmUser's own associations, not against those of the pod's author
(shown in ``tests/contract/slurm/test_limits_of_users.py``). So podbridge checks these values itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge import names, namespace_policies
from bridge.namespace_policies import FIELDS, NamespacePolicy

SCHEDULER = "scheduler"
"""The permission to name podbridge's scheduler in a namespace that is not managed."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A value that needs a permission: the key of the permission, what was asked for, what is allowed without."""

    key: str
    problem: str
    allowed: str


def defaults(policy: NamespacePolicy) -> dict[str, str]:
    """Return the annotations that a pod gets where neither it nor its owners have them."""
    return {name: value for name in FIELDS if (value := policy.default_of(name)) is not None}


def denied(annotations: Mapping[str, str], policy: NamespacePolicy, partition: str) -> list[Denial]:
    """List the values beyond the policy, sorted by field; ``partition`` is the configured one.

    An absent annotation is denied too where the policy has a default: without it, Slurm would choose for SlurmUser.
    """
    found = []
    for name in sorted(FIELDS):
        allowed = policy.allowed_of(name, partition)
        value = annotations.get(name)
        if value is None:
            beyond = policy.default_of(name) is not None
            problem = f"annotation {name}: must not be absent"
        else:
            refused = [part for part in namespace_policies.parts(value) if part not in allowed]
            beyond = bool(refused) and namespace_policies.ANY not in allowed
            problem = f"annotation {name}: {value!r} is not allowed"
            if beyond and [value] != refused:
                problem += f" ({', '.join(refused)})"
        if beyond:
            key = name.removeprefix(names.JOB_ANNOTATION_PREFIX)
            found.append(Denial(key, problem, ", ".join(allowed) or "none: leave the annotation out"))
    return found


def scheduler_denied(scheduler: str) -> Denial:
    """Say that the namespace may not name the scheduler."""
    problem = f"spec.schedulerName: {scheduler!r} is not allowed: the namespace is not managed by podbridge"
    return Denial(SCHEDULER, problem, "another scheduler, or a managed namespace")
