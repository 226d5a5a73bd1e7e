"""The section ``namespacePolicies`` of the configuration: the Slurm settings that pods may use. Pure.

podbridge submits jobs as an administrator of Slurm, who has access to all partitions and reservations, and whose
accounts and QOS all pods would share. So the configuration defines which values the pods of a namespace may use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from bridge import names
from bridge.config.base import LabelSelector, Memory, NameOrAny, Section
from bridge.gres_text import KIND

ANY = "*"
"""In a list of allowed values: every value. In a list of namespaces: every namespace."""
MOST_CPUS = 65_533
"""CPUs of a task: Slurm's number has 16 bits, and 65534 (NO_VAL16) and 65535 (INFINITE16) are no counts."""
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
_LICENSE = r"[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+)?"
Value = Annotated[str, Field(pattern=rf"^({_WORD}|\*)$", max_length=1024)]
Values = list[Value] | None
Default = Annotated[str, Field(pattern=rf"^{_WORD}$", max_length=1024)] | None
_ID = r"([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]*)"
Ids = list[Annotated[str, Field(pattern=rf"^({_ID}|\*)$", max_length=1024)]] | None

FIELDS: dict[str, str] = {
    names.PARTITION: "partition",
    names.ACCOUNT: "account",
    names.QOS: "qos",
    names.LICENSES: "licenses",
    names.RESERVATION: "reservation",
    names.WCKEY: "wckey",
    names.USER_ID: "user_id",
    names.GROUP_ID: "group_id",
}
"""Annotation and its key in ``allowed`` and ``default``."""

SIZES: dict[str, str] = {
    names.MIN_NODES: "min_nodes",
    names.MAX_NODES: "max_nodes",
    names.EXCLUSIVE: "exclusive",
    names.CPU_PER_TASK: "cpu_per_task",
    names.MEM_PER_NODE: "mem_per_node",
    names.GRES: "gres",
    names.TIME_LIMIT: "timelimit",
}
"""Annotation and its key in ``max``."""


class AllowedValues(Section):
    """Lists of allowed values; ``*`` allows all values."""

    partition: Values = Field(None, description="Partitions; without a default either, the configured partition.")
    account: Values = Field(None, description="Slurm accounts.")
    qos: Values = Field(None, description="QOS.")
    licenses: list[Annotated[str, Field(pattern=rf"^({_LICENSE}|\*)$", max_length=1024)]] | None = Field(
        None, description="Names of licenses, without counts."
    )
    reservation: Values = Field(None, description="Reservations.")
    wckey: Values = Field(None, description="Workload characterization keys.")
    user_id: Ids = Field(None, description="Users of Slurm, by number or name.")
    group_id: Ids = Field(None, description="Groups of the Slurm job, by number or name.")


class DefaultValues(Section):
    """Values of the annotations that a pod without them gets."""

    partition: Annotated[str, Field(pattern=rf"^{_WORD}(,{_WORD})*$", max_length=1024)] | None = Field(
        None, description="Slurm partitions, comma separated."
    )
    account: Default = Field(None, description="Slurm account.")
    qos: Default = Field(None, description="QOS.")
    licenses: (
        Annotated[
            str, Field(pattern=rf"^{_LICENSE}(:[0-9]{{1,6}})?([,;]{_LICENSE}(:[0-9]{{1,6}})?)*$", max_length=1024)
        ]
        | None
    ) = Field(None, description="Licenses, with counts.")
    reservation: Annotated[str, Field(pattern=rf"^{_WORD}(,{_WORD})*$", max_length=1024)] | None = Field(
        None, description="Reservations, comma separated."
    )
    wckey: Default = Field(None, description="Workload characterization key.")
    user_id: Annotated[str, Field(pattern=rf"^{_ID}$", max_length=1024)] | None = Field(
        None, description="User of the Slurm job, by number or name."
    )
    group_id: Annotated[str, Field(pattern=rf"^{_ID}$", max_length=1024)] | None = Field(
        None, description="Group of the Slurm job, by number or name."
    )


class MaxValues(Section):
    """Maximum sizes of the job of a pod, from its annotations and its requests. Without a value there is no maximum.

    A pod needs one node, and a group as many as its pods: the two counts of nodes have a default for the annotations.
    """

    min_nodes: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Largest `min-nodes`, and minimum of a group; unset: as `maxNodes`."
    )
    max_nodes: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Largest `max-nodes`, and nodes of a group; unset: 1, for groups no limit."
    )
    exclusive: bool | None = Field(None, description="Pods may take whole nodes; unset: only if all do (`exclusive`).")
    cpu_per_task: Annotated[int, Field(ge=1, le=MOST_CPUS)] | None = Field(None, description="CPUs of a pod.")
    mem_per_node: Memory | None = Field(
        None, description="Memory on a node, for example 64Gi. A pod must request memory."
    )
    gres: dict[Annotated[str, Field(pattern=rf"^{KIND}$")], Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Count on a node, for example `gpu: 4` or `gpu:a100: 2`; others are refused."
    )
    timelimit: Annotated[int, Field(ge=1, le=5_256_000)] | None = Field(
        None, description="Minutes. A pod without time limit and deadline gets this one."
    )

    @model_validator(mode="after")
    def _ordered(self) -> MaxValues:
        if self.min_nodes is not None and self.max_nodes is not None and self.min_nodes > self.max_nodes:
            raise ValueError(f"minNodes: {self.min_nodes} is above maxNodes; allowed: at most {self.max_nodes}")
        return self

    def nodes(self) -> tuple[int, int]:
        """Return the largest minimum and the largest maximum of nodes that annotations may request."""
        most = self.max_nodes or self.min_nodes or 1
        return self.min_nodes or most, most


class NamespacePolicy(Section):
    """The values that the pods of some namespaces may use without a permission."""

    namespaces: list[NameOrAny] = Field([], description='Names of namespaces, or `["*"]` for all namespaces.')
    namespace_selector: LabelSelector | None = Field(None, description="Label selector, instead of names.")
    groups: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        [], description="Kubernetes groups whose members create the pods; empty: all users."
    )
    may_name_scheduler: bool = Field(
        False, description="Pods may name podbridge's scheduler in namespaces that are not managed."
    )
    expose: bool = Field(True, description="Pods at pools may be [exposed](../users/run-pods.md#services).")
    reach: bool = Field(True, description="Pods at pools may [reach](../users/run-pods.md#reach-services) Services.")
    reach_namespaces: list[NameOrAny] = Field(
        [], description='Other namespaces whose Services they may reach; `["*"]`: all.'
    )
    default: DefaultValues = DefaultValues()
    allowed: AllowedValues = AllowedValues()
    max: MaxValues = MaxValues()

    @model_validator(mode="after")
    def _selects(self) -> NamespacePolicy:
        if bool(self.namespaces) == (self.namespace_selector is not None):
            raise ValueError('must have either namespaces (a list of names, or ["*"]) or namespaceSelector')
        return self

    def selects(self, namespace: str, labels: Mapping[str, str], groups: Collection[str] = ()) -> bool:
        """Whether the policy applies in a namespace with these labels to a user in these Kubernetes groups."""
        if self.groups and not any(group in groups for group in self.groups):
            return False
        if self.namespace_selector is not None:
            return self.namespace_selector.matches(labels)
        return namespace in self.namespaces or ANY in self.namespaces

    def may_reach(self, own: str, namespace: str) -> bool:
        """Whether pods of the namespace ``own`` may reach Services of a namespace."""
        return self.reach and (namespace == own or namespace in self.reach_namespaces or ANY in self.reach_namespaces)

    def default_of(self, annotation: str) -> str | None:
        """Return the default of the annotation; ``None`` without one."""
        value: str | None = getattr(self.default, FIELDS[annotation])
        return value

    def allowed_of(self, annotation: str, partition: str) -> list[str]:
        """Return the values that the annotation may have; ``partition`` is the configured one.

        The default is included. If the policy has no key for partitions, the configured partition is allowed.
        """
        field = FIELDS[annotation]
        allowed, default = getattr(self.allowed, field), getattr(self.default, field)
        if annotation == names.PARTITION and allowed is None and default is None:
            return parts(partition)
        return list(dict.fromkeys([*(parts(default) if default else ()), *(allowed or ())]))


NOTHING = NamespacePolicy(namespaces=[ANY])
"""The policy of namespaces that no policy selects: it allows only the configured partition."""


def parts(value: str) -> list[str]:
    """Split the value of an annotation into names, without the counts of licenses."""
    words = (word.split(":")[0].strip() for word in value.replace(";", ",").replace("|", ",").split(","))
    return [word for word in words if word]


def find(
    policies: Iterable[NamespacePolicy], namespace: str, labels: Mapping[str, str], groups: Collection[str] = ()
) -> NamespacePolicy:
    """Return the first policy that selects the namespace and a user in ``groups``, else :data:`NOTHING`.

    Without groups, only policies for all users are considered.
    """
    return next((policy for policy in policies if policy.selects(namespace, labels, groups)), NOTHING)


def may_expose(policies: Iterable[NamespacePolicy], namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether some users may expose pods in a namespace with these labels without a permission."""
    for policy in policies:
        if policy.selects(namespace, labels, policy.groups):
            if policy.expose:
                return True
            if not policy.groups:  # the following policies apply to nobody
                return False
    return NOTHING.expose


def may_reach(policies: Iterable[NamespacePolicy], own: str, labels: Mapping[str, str], namespace: str) -> bool:
    """Whether pods of the namespace ``own`` may reach Services of another, whichever groups create them."""
    for policy in (*policies, NOTHING):
        if policy.selects(own, labels, policy.groups):
            if policy.may_reach(own, namespace):
                return True
            if not policy.groups:  # later ones do not apply
                return False
    return False


def _beyond(policies: list[NamespacePolicy], partition: str, partitions: Collection[str]) -> list[str]:
    """List the default and allowed partitions that the list ``partitions`` lacks."""
    possible = ", ".join(partitions)
    lines = []
    if not set(parts(partition)) <= set(partitions) or not partition:
        lines.append(f"partition: {partition!r} is not in partitions; allowed: {possible}")
    for index, policy in enumerate(policies):
        for key, values in (
            ("allowed", policy.allowed.partition or []),
            ("default", [policy.default.partition or ANY]),
        ):
            if wrong := sorted({part for value in values for part in parts(value)} - {ANY, *partitions}):
                where = f"namespacePolicies[{index}].{key}.partition"
                lines.append(f"{where}: {', '.join(wrong)} is not in partitions; allowed: {possible}")
    return lines


def problems(policies: list[NamespacePolicy], partition: str, partitions: Collection[str] = ()) -> list[str]:
    """List the problems of the policies; ``partition`` is the configured one, ``partitions`` those that are possible.

    Without ``partitions``, all are possible.
    """
    lines = _beyond(policies, partition, partitions) if partitions else []
    for index, policy in enumerate(policies):
        where = f"namespacePolicies[{index}]"
        # a policy for some groups leaves the other users to later policies
        before = [earlier for earlier in policies[:index] if not earlier.groups or earlier.groups == policy.groups]
        if any(ANY in earlier.namespaces for earlier in before):
            lines.append(f"{where}: is never used, because an earlier policy selects all namespaces; allowed: '*' last")
        again = sorted({n for n in policy.namespaces for earlier in before if n in earlier.namespaces})
        if again and ANY not in again:
            lines.append(f"{where}.namespaces: {', '.join(again)} already has a policy; allowed: one each")
        allowed = policy.allowed.partition
        is_default = partition and not policy.default.partition
        if is_default and allowed is not None and ANY not in allowed and not set(parts(partition)) <= set(allowed):
            lines.append(
                f"{where}.allowed.partition: lacks {partition!r}, the configured partition of pods that name "
                f"none; allowed: add it, or set {where}.default.partition"
            )
    return lines
