"""Converts a pod to a request for one placeholder job. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from bridge import names
from bridge.config.hub import Config
from bridge.errors import UntranslatableError
from bridge.gres_text import Gres
from bridge.slurm import components
from bridge.slurm.models import GroupRef, JobLink, JobRequest, PodRef
from bridge.slurm.versions import ApiVersion
from bridge.workload import annotations as job_annotations
from bridge.workload import links, pods, quantity, resources
from bridge.workload.devices import gres
from bridge.workload.resources import Resources

_SIZES = ("name", "link", "min_nodes", "max_nodes", "tasks", "tasks_per_node", "excluded_nodes", "components")
"""Fields of a request in which the components of a job may always differ."""


def pod_ref(pod: Mapping[str, Any]) -> PodRef:
    """Return the reference to a pod in the comment of its job."""
    metadata = pod["metadata"]
    return PodRef(metadata["namespace"], metadata["name"], metadata["uid"])


def request(
    pod: Mapping[str, Any],
    config: Config,
    version: ApiVersion,
    cluster: str,
    excluded: tuple[str, ...] = (),
    longest: int = 0,
) -> JobRequest:
    """Return the request for a pod; ``excluded`` are the sorted names of the nodes that Slurm must not allocate.

    ``longest`` is the largest time limit of the partitions in minutes (0: no limit). A deadline up to that is not
    refused because of the grace period: the time limit is ``longest`` then.

    Admission has already copied the annotations of the pod's owners to the pod.

    Raises :class:`~bridge.workload.annotations.InvalidAnnotationsError` or :class:`UntranslatableError`.
    """
    settings = job_annotations.read(pod["metadata"].get("annotations") or {})
    requests = resources.pod_requests(pod["spec"])
    if problems := job_annotations.below_requests(settings, requests, config.gres):
        raise job_annotations.InvalidAnnotationsError("; ".join(problems), hint="raise the annotation, or leave it out")
    exclusive = bool(settings.get(names.EXCLUSIVE, config.exclusive))
    external = _external(config, version)
    if not version.other_users and (names.USER_ID in settings or names.GROUP_ID in settings):
        raise UntranslatableError(
            f"{names.USER_ID} and {names.GROUP_ID} can't be used: Slurm's API {version.name} knows neither"
        )
    partition = pods.partitions(pod, config.partition)
    if config.partitions and not set(partition.split(",")) <= set(config.partitions):
        raise UntranslatableError(
            f"{pods.partition_source(pod)}: {partition} is not a partition of this scheduler; allowed: "
            + ", ".join(config.partitions)
        )
    fewest = settings.get(names.MIN_NODES, 1)
    cpus = settings.get(names.CPU_PER_TASK) or quantity.whole(requests.get("cpu", quantity.parse(0)))
    memory = quantity.mebibytes(requests.get("memory", quantity.parse(0)))
    return JobRequest(
        name=settings.get(names.JOB_NAME, pod["metadata"]["name"]),
        # a pod that changes before its binding has another shape than its job, and is submitted again
        link=JobLink(cluster, (pod_ref(pod),), shape=links.shape(pod)),
        external=external,
        partition=partition,
        account=settings.get(names.ACCOUNT, ""),
        qos=settings.get(names.QOS, ""),
        constraints=settings.get(names.CONSTRAINTS, ""),
        licenses=settings.get(names.LICENSES, ""),
        reservation=settings.get(names.RESERVATION, ""),
        wckey=settings.get(names.WCKEY, ""),
        mcs_label=config.mcs_label,
        user_id=settings.get(names.USER_ID, ""),
        group_id=settings.get(names.GROUP_ID, ""),
        priority=settings.get(names.PRIORITY),
        cpus=cpus,
        memory_mib=settings.get(names.MEM_PER_NODE) or memory or _default_memory(config, cpus, exclusive=exclusive),
        gres=requested_gres(requests, settings.get(names.GRES, ()), config.gres, exclusive),
        min_nodes=fewest,
        max_nodes=settings.get(names.MAX_NODES, max(1, fewest)),
        # Slurm 26.05 refuses fewer tasks than nodes; each node gets the resources that the pod needs on one of them
        tasks=fewest,
        time_limit=settings.get(names.TIME_LIMIT)
        or deadline_minutes(pod["spec"], settings.get(names.JOB_DEADLINE), longest),
        exclusive=exclusive,
        excluded_nodes=excluded,
    )


def _default_memory(config: Config, cpus: int, *, exclusive: bool) -> int:
    """Return the MiB of a pod that requests none; 0: what Slurm gives. A job that takes whole nodes has all of them."""
    per_cpu = config.defaults.memory_per_cpu
    return 0 if per_cpu is None or exclusive else max(1, cpus) * quantity.mebibytes(quantity.parse(per_cpu))


@dataclass(frozen=True, slots=True)
class GangShape:
    """The size of a gang or of a component: at least ``minimum`` of ``size`` members, at most ``together`` on a node.

    ``completed`` members have succeeded in an earlier job; ``size`` and ``minimum`` do not count them.
    """

    ref: GroupRef
    size: int
    minimum: int
    together: int = 1
    completed: int = 0

    @property
    def fewest(self) -> int:
        """The least number of nodes with which the job starts."""
        return math.ceil(self.minimum / self.together)


def gang_request(
    members: Sequence[Mapping[str, Any]],
    shape: GangShape,
    config: Config,
    version: ApiVersion,
    cluster: str,
    excluded: tuple[str, ...] = (),
    longest: int = 0,
) -> JobRequest:
    """Return the request for one job of all members; each node gets the resources of ``shape.together`` members.

    The job has the name of the first member's job, and the largest of their time limits. :func:`heterogeneous` makes
    one request of several, for members that request different resources. Raises as :func:`request`, and
    :class:`UntranslatableError` if the members differ.
    """
    together = min(shape.together, shape.size)  # a job never starts with fewer tasks than it has on each node
    link = JobLink(
        cluster, (), shape.ref, shape.size, links.shape(members[0]), completed=shape.completed, together=together
    )
    requests = [_of_member(pod, link, config, version, cluster, longest) for pod in members]
    first, limits = requests[0], [request.time_limit for request in requests]
    compared = [field.name for field in fields(first) if field.name not in ("name", "time_limit")]
    for pod, other in zip(members, requests, strict=True):
        if differing := [name for name in compared if getattr(first, name) != getattr(other, name)]:
            raise UntranslatableError(
                f"pods {members[0]['metadata']['name']} and {pod['metadata']['name']} of one group differ in "
                f"{', '.join(differing)}; allowed: the same value"
            )
    if first.min_nodes != 1 or first.max_nodes != 1:
        raise UntranslatableError(f"{names.MIN_NODES} and {names.MAX_NODES} can't be used for a pod of a group")
    return replace(
        first,
        time_limit=max(limits) if all(limits) else 0,
        # Slurm counts memory and gres for a node, and CPUs for a task, which is one member
        memory_mib=first.memory_mib * together,
        gres=tuple(gres.times(expression, together) for expression in first.gres),
        min_nodes=shape.fewest,
        max_nodes=math.ceil(shape.size / together),
        # a number of tasks needs nodes for all of them; without one, the job starts with the fewest nodes or more
        tasks=0 if shape.minimum < shape.size else max(shape.size, shape.fewest),
        tasks_per_node=together,
        excluded_nodes=excluded,
    )


def heterogeneous(requests: Sequence[JobRequest], config: Config, version: ApiVersion) -> JobRequest:
    """Return the request for one heterogeneous job, with a component for each of the requests of :func:`gang_request`.

    The comment of each component has its number, the size of the whole group and its own. Slurm ends the whole job with
    its first component, so all that have a time limit get the largest one. Raises :class:`UntranslatableError` if the
    version of Slurm has no such jobs, or if the components would be jobs of different users.
    """
    first = requests[0]
    if not version.heterogeneous:
        named = [field.name for field in fields(first) if field.name not in _SIZES]
        differing = [name for name in named if any(getattr(each, name) != getattr(first, name) for each in requests)]
        differences = ", ".join(differing).replace("excluded_nodes", "the nodes that they select") or "their settings"
        raise UntranslatableError(
            f"the pods of one group differ in {differences}: they need a heterogeneous "
            f"job, which Slurm's API {version.name} can't make; allowed: the same requests and settings"
        )
    if len(requests) > components.MOST:
        raise UntranslatableError(
            f"the pods of one group have {len(requests)} different requests or settings; allowed: {components.MOST}"
        )
    if len({(component.user_id, component.group_id) for component in requests}) > 1:
        raise UntranslatableError(f"{names.USER_ID} and {names.GROUP_ID} differ between the pods of one group")
    external = first.external and version.external_components
    if config.placeholder == "external" and not external:
        raise UntranslatableError(
            "placeholder: external is configured, but external jobs of pods that differ need Slurm 26.05.3 or later"
        )
    longest = max(component.time_limit for component in requests)
    size = sum(component.link.size for component in requests)
    parts = [
        replace(
            component,
            external=external,
            time_limit=longest if component.time_limit else 0,
            link=replace(component.link, size=size, part=number, parts=len(requests), members=component.link.size),
        )
        for number, component in enumerate(requests)
    ]
    return replace(parts[0], components=tuple(parts[1:]))


def _of_member(
    pod: Mapping[str, Any], link: JobLink, config: Config, version: ApiVersion, cluster: str, longest: int
) -> JobRequest:
    named = (pod["metadata"].get("annotations") or {}).get(names.JOB_NAME)
    name = named or (link.group.name if link.group is not None else "")
    return replace(request(pod, config, version, cluster, longest=longest), link=link, name=name)


def _external(config: Config, version: ApiVersion) -> bool:
    """Whether the placeholder is an external job; raises if it is configured, but the API version has no such jobs."""
    external = config.placeholder == "external" or (config.placeholder == "auto" and version.external_jobs)
    if external and not version.external_jobs:
        raise UntranslatableError(
            f"placeholder: external is configured, but Slurm's API {version.name} has no such jobs"
        )
    return external


def deadline_minutes(spec: Mapping[str, Any], of_job: int | None, longest: int) -> int:
    """Return the minutes until the deadline and the end of the pod's grace period; 0 without a deadline.

    The deadline is the shorter of the pod's own and ``of_job``, the deadline of its Job, both in seconds. At the
    deadline, the kubelet ends the containers with the grace period; the job must not end before. The grace period alone
    does not make the result exceed ``longest`` minutes (0: no limit).
    """
    deadlines = [int(seconds) for seconds in (spec.get("activeDeadlineSeconds"), of_job) if seconds]
    if not deadlines:
        return 0
    least = math.ceil(min(deadlines) / 60)
    # the API server accepts any integer of 64 bits. Slurm's limits have 32, and -1 is no limit there
    grace = min(pods.spec_grace(spec), job_annotations.LONGEST_DEADLINE)
    with_grace = math.ceil((min(deadlines) + grace) / 60)
    return max(least, min(with_grace, longest)) if longest else with_grace


def requested_gres(
    requests: Resources, annotated: tuple[str, ...], table: Mapping[str, str], exclusive: bool
) -> tuple[str, ...]:
    """Convert extended resources to gres. For a gres in the annotation, the annotation takes precedence.

    Slurm could allocate a resource that is not in the table twice, so it is refused unless the pod takes whole nodes.
    """
    unknown = [resource for resource in resources.extended(requests) if resource not in table]
    if unknown and not exclusive:
        raise UntranslatableError(
            f"resource {unknown[0]} is not known to Slurm: map it to a gres in the configuration (gres: "
            f'{{{unknown[0]}: NAME}}), or let the pod take whole nodes ({names.EXCLUSIVE}: "true")'
        )
    named = {expression.split(":")[0] for expression in annotated}
    counted = gres.of_requests(requests, table)
    from_resources = (Gres(name, kind, count) for (name, kind), count in sorted(counted.items()) if name not in named)
    return (*annotated, *map(str, from_resources))
