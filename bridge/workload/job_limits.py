"""The limits of a namespace's policy on resources that only the scheduler can count. Pure.

A resource claim may be created after its pod, also from a template that has been replaced since. A group may get more
pods than its object says. So admission writes these limits to the pod, and the scheduler compares the request for the
job with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge import gres_text, names
from bridge.config.policies import MaxValues
from bridge.errors import UntranslatableError
from bridge.slurm.models import JobRequest
from bridge.workload.devices import gres

Limits = dict[str, Any]
"""Limits by the annotation that they limit, as in :class:`~bridge.config.policies.MaxValues`."""
_KEYS = {names.GRES: "gres", names.CPU_PER_TASK: "cpuPerTask", names.MIN_NODES: "minNodes", names.MAX_NODES: "maxNodes"}


class LimitExceededError(UntranslatableError):
    """A job that is larger than the policy of its pod's namespace allows."""

    reason = "NamespaceLimitExceeded"


def of_policy(most: MaxValues, *, claims: bool, group: bool) -> Limits:
    """Return the limits for a pod that has resource claims, or is a member of a group."""
    limits: Limits = {names.GRES: most.gres, names.CPU_PER_TASK: most.cpu_per_task} if claims else {}
    if group:
        limits |= {names.MIN_NODES: most.min_nodes or most.max_nodes, names.MAX_NODES: most.max_nodes}
    return {name: value for name, value in limits.items() if value is not None}


def encode(limits: Limits) -> str:
    """Return the annotation."""
    return json.dumps({_KEYS[name]: value for name, value in limits.items()}, sort_keys=True)


def check(request: JobRequest, members: Iterable[Mapping[str, Any]]) -> None:
    """Raise :class:`LimitExceededError` if the request for a job exceeds a limit of one of its pods."""
    for text in sorted({(pod["metadata"].get("annotations") or {}).get(names.JOB_LIMITS) or "" for pod in members}):
        if text and (problems := _problems((request, *request.components), text)):
            raise LimitExceededError("; ".join(problems))


def _problems(parts: Iterable[JobRequest], text: str) -> list[str]:
    parts = list(parts)
    try:
        limits = {**json.loads(text)}
        known_limits = {key: limits[key] for key in _KEYS.values() if key in limits}
        return [problem for key, most in known_limits.items() for problem in _COUNTS[key](parts, most)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return [f"annotation {names.JOB_LIMITS}: {text[:80]!r} cannot be read; allowed: as admission writes it"]


def _gres(parts: list[JobRequest], most: Mapping[str, int]) -> Iterable[str]:
    for part in parts:
        gres_of_pod = [gres_text.read(text) for expression in part.gres for text in gres_text.listed(expression)]
        for kind, count in gres.beyond(gres_of_pod, most).items():
            excess = f"{kind}:{count} on a node, with the resource claims, is not allowed"
            yield _message(excess, gres.limits_text(most), "gres")


def _cpus(parts: list[JobRequest], most: int) -> Iterable[str]:
    if (count := max(part.cpus for part in parts)) > most:
        yield _message(f"{count} CPUs, with the resource claims, are not allowed", most, "cpuPerTask")


def _min_nodes(parts: list[JobRequest], most: int) -> Iterable[str]:
    if (count := sum(part.min_nodes for part in parts)) > most:
        yield _message(f"a minimum of {count} nodes for the pods of the group is not allowed", most, "minNodes")


def _max_nodes(parts: list[JobRequest], most: int) -> Iterable[str]:
    if (count := sum(part.max_nodes or part.min_nodes for part in parts)) > most:
        yield _message(f"{count} nodes for the pods of the group are not allowed", most, "maxNodes")


def _message(excess: str, most: object, key: str) -> str:
    return f"{excess}; allowed: at most {most} (max.{key} of the namespace's policy)"


_COUNTS: Mapping[str, Callable[[list[JobRequest], Any], Iterable[str]]]
_COUNTS = {"gres": _gres, "cpuPerTask": _cpus, "minNodes": _min_nodes, "maxNodes": _max_nodes}
