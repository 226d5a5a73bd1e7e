"""The check of a pod's size against the maxima of the namespace's policy. Pure.

What counts is the size of the job that the pod would get: of its annotations, which may come from its owners, of its
requests, and of its group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pydantic.alias_generators import to_camel

from admission import raw_pods
from admission.field_policy import Denial
from bridge import gres_text, names
from bridge.config.policies import SIZES, MaxValues
from bridge.workload import groups, quantity, translate
from bridge.workload.annotations import JobSettings
from bridge.workload.devices import gres
from bridge.workload.devices.claimed_devices import CPU
from bridge.workload.groups import InvalidGroupError, Membership
from bridge.workload.resources import Resources

UNLIMITED = MaxValues()
_LIMITED_ALWAYS = (names.MIN_NODES, names.MAX_NODES, names.EXCLUSIVE)


def denied(
    pod: raw_pods.Pod,
    settings: JobSettings,
    requested: Resources,
    maxima: MaxValues,
    table: Mapping[str, str],
    by_class: Mapping[str, int],
    exclusive: bool,
) -> list[Denial]:
    """List what exceeds the maxima in a pod with these annotations and requests.

    ``table`` maps extended resources to gres; ``by_class`` are the gres and CPUs that containers request by the name of
    a device class; ``exclusive``: pods without the annotation take whole nodes. The devices of other claims are not
    known yet (:mod:`bridge.workload.job_limits`).
    """
    if maxima == UNLIMITED and settings.keys().isdisjoint(_LIMITED_ALWAYS):
        return []
    member = _membership(raw_pods.annotations_of(pod))
    return [
        *_nodes(settings, member, maxima),
        *_whole_nodes(settings, maxima, exclusive=exclusive),
        *_amounts(settings, requested, by_class.get(CPU, 0), member, maxima),
        *_gres(settings, requested, {kind: by_class[kind] for kind in by_class if kind != CPU}, member, maxima, table),
        *_time(pod, settings, maxima),
    ]


def _denial(name: str, problem: str, allowed: str) -> Denial:
    field = to_camel(SIZES[name])
    return Denial(name.removeprefix(names.JOB_ANNOTATION_PREFIX), problem, f"{allowed} (max.{field} of its policy)")


def _stated(name: str, value: object) -> str:
    return f"annotation {name}: {value} is not allowed"


def _membership(annotations: Mapping[str, str]) -> Membership | None:
    """Return the pod's group; ``None`` without one, and for an invalid one, which is refused elsewhere."""
    if names.GROUP not in annotations:
        return None
    try:
        return groups.decode(annotations[names.GROUP], "", groups.together(annotations))
    except InvalidGroupError:
        return None


def _nodes(settings: JobSettings, member: Membership | None, maxima: MaxValues) -> Iterator[Denial]:
    fewest = settings.get(names.MIN_NODES, 1)
    counts = (fewest, settings.get(names.MAX_NODES, fewest))
    annotation_names = (names.MIN_NODES, names.MAX_NODES)
    for name, limit, count in zip(annotation_names, maxima.nodes(), counts, strict=True):
        if count > limit:
            yield _denial(name, _stated(name, count), f"at most {limit}")
    if member is None:
        return
    limits = (maxima.min_nodes or maxima.max_nodes, maxima.max_nodes)
    for name, most_of_group, size in zip(annotation_names, limits, (member.minimum, member.size), strict=True):
        count = math.ceil(size / member.together)
        if most_of_group is not None and count > most_of_group:
            problem = f"group {member.key.name}: {count} nodes for {size} pods are not allowed"
            yield _denial(name, problem, f"at most {most_of_group}")


def _whole_nodes(settings: JobSettings, maxima: MaxValues, *, exclusive: bool) -> Iterator[Denial]:
    allowed = exclusive if maxima.exclusive is None else maxima.exclusive
    if settings.get(names.EXCLUSIVE, exclusive) and not allowed:
        yield _denial(names.EXCLUSIVE, f"annotation {names.EXCLUSIVE}: true is not allowed", "false")


def _amounts(
    settings: JobSettings, requested: Resources, by_class: int, member: Membership | None, maxima: MaxValues
) -> Iterator[Denial]:
    """Check CPUs of a pod, and memory on a node."""
    cpus = max(settings.get(names.CPU_PER_TASK) or quantity.whole(requested.get("cpu", quantity.parse(0))), by_class)
    if maxima.cpu_per_task is not None and cpus > maxima.cpu_per_task:
        problem = _excess_problem(names.CPU_PER_TASK, settings, f"{cpus} CPUs")
        yield _denial(names.CPU_PER_TASK, problem, f"at most {maxima.cpu_per_task}")
    if maxima.mem_per_node is None:
        return
    memory = settings.get(names.MEM_PER_NODE) or quantity.mebibytes(requested.get("memory", quantity.parse(0)))
    memory *= _on_a_node(member)
    allowed = f"at most {maxima.mem_per_node}"
    if memory > quantity.mebibytes(quantity.parse(maxima.mem_per_node)):
        problem = _excess_problem(names.MEM_PER_NODE, settings, f"{memory}Mi of memory on a node")
        yield _denial(names.MEM_PER_NODE, problem, allowed)
    elif not memory:  # Slurm would give the job all memory of the node, or DefMemPerCPU
        problem = "spec.containers: a pod without a request for memory is not allowed"
        yield _denial(names.MEM_PER_NODE, problem, allowed)


def _gres(
    settings: JobSettings,
    requested: Resources,
    by_class: Mapping[str, int],
    member: Membership | None,
    maxima: MaxValues,
    table: Mapping[str, str],
) -> Iterator[Denial]:
    if maxima.gres is None:
        return
    requested_gres = translate.requested_gres(requested, settings.get(names.GRES, ()), table, exclusive=True)
    parsed_gres = [
        gres_text.read(part) for part in (*requested_gres, *(f"{kind}:{count}" for kind, count in by_class.items()))
    ]
    for key, count in gres.beyond(parsed_gres, maxima.gres, _on_a_node(member)).items():
        problem = _excess_problem(names.GRES, settings, f"{key}:{count} on a node")
        yield _denial(names.GRES, problem, f"at most {gres.limits_text(maxima.gres)}")


def _time(pod: raw_pods.Pod, settings: JobSettings, maxima: MaxValues) -> Iterator[Denial]:
    if maxima.timelimit is None:
        return
    stated = settings.get(names.TIME_LIMIT)
    minutes = stated or translate.deadline_minutes(pod["spec"], settings.get(names.JOB_DEADLINE), 0)
    if not minutes:
        problem = f"annotation {names.TIME_LIMIT}: must not be absent"
    elif minutes > maxima.timelimit:
        source = "" if stated else ", of the deadline and terminationGracePeriodSeconds,"
        problem = f"annotation {names.TIME_LIMIT}: {minutes} minutes{source} is not allowed"
    else:
        return
    yield _denial(names.TIME_LIMIT, problem, f"at most {maxima.timelimit} minutes")


def _excess_problem(name: str, settings: JobSettings, amount: str) -> str:
    return _stated(name, amount) if name in settings else f"spec.containers: {amount} is not allowed"


def _on_a_node(member: Membership | None) -> int:
    """Return how many pods of the group share a node."""
    return 1 if member is None else min(member.together, member.size)
