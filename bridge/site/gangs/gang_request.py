"""The request for the one job of a group, which follows from those of its pods. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.names import MEMBERS_PER_NODE
from bridge.protocol.model.requests import PlaceInJob
from bridge.site.batch.batch_interface import BatchJobRequest
from bridge.site.jobs.job_record import SHAPE, Gang, Meta, part_of, parts_of


def of_one(meta: Meta, place: PlaceInJob) -> Meta:
    """Return the request for the job of a group whose pods are all like this one."""
    gang = Gang(meta.owner, place.size, place.per_node, place.mpi)
    return replace(meta, owner="", place=None, gang=gang, attempts=0)


def of_all(meta: Meta, members: Sequence[Meta], most_seconds: Callable[[str], float | None]) -> Meta:
    """Return the request for the job of a group: each run of ranks whose pods request the same becomes a component.

    Parameters
    ----------
    meta
        The present request.
    members
        The requests of the pods by rank.
    most_seconds
        Returns the site's time limit for a flavor. The job gets the largest time limit of a pod that it allows.
    """
    if meta.gang is None:
        return meta
    uniform = replace(meta, gang=replace(meta.gang, parts=()))
    shapes = [part_of(member, 1, member.place.per_node if member.place is not None else 1) for member in members]
    limits = [math.inf if member.time_limit is None else member.time_limit for member in members]
    parts = tuple(replace(part, size=len([*run])) for part, run in itertools.groupby(shapes))
    limit = min(max(limits, default=math.inf), *(most_seconds(part.flavor) or math.inf for part in parts))
    gang = replace(meta.gang, parts=() if parts == parts_of(uniform) else parts)
    return replace(meta, gang=gang, time_limit=None if math.isinf(limit) else limit)


def differences(wanted: Meta, present: Meta, rank: int, *, heterogeneous: bool) -> list[tuple[str, object, object]]:
    """Return why a pod cannot have a rank of a job: names, its values, and those of the job.

    ``wanted``: the request for a job of such pods. ``heterogeneous``: the batch system runs pods that request different
    resources; once the job was submitted, the resources of each rank stay.
    """
    pairs: list[tuple[str, object, object]] = [("namespace", wanted.namespace, present.namespace)]
    if present.attempts or not heterogeneous:
        (new,), part = parts_of(wanted), parts_of(present)[component_of(present, rank) or 0]
        pairs += [(name, getattr(new, name), getattr(part, name)) for name in SHAPE if name != "namespace"]
        pairs.append(("place.per_node", new.per_node, part.per_node))
    # the wait for a grant lengthens the time limit
    if not heterogeneous and (wanted.grant_wait is None) == (present.grant_wait is None):
        pairs.append(("time_limit", wanted.time_limit, present.time_limit))
    if wanted.gang is not None and present.gang is not None:
        pairs += [
            (f"place.{name}", getattr(wanted.gang, name), getattr(present.gang, name)) for name in ("size", "mpi")
        ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def component_of(meta: Meta, rank: int) -> int | None:
    """Return the number of the component with a rank; ``None``: the job is not heterogeneous."""
    parts = parts_of(meta)
    ends = itertools.accumulate(part.size for part in parts)
    number = next((number for number, end in enumerate(ends) if rank < end), len(parts) - 1)
    return number if len(parts) > 1 else None


def description(meta: Meta, request: BatchJobRequest) -> str:
    """Return what the job asks for, for a message of the batch system that refuses it."""
    nodes, parts = sum(part.machines for part in request.components), parts_of(meta)
    per_node = ", ".join(dict.fromkeys(str(part.per_node) for part in parts))
    pods = sum(part.size for part in parts)
    return f"the job of the group asks for {nodes} nodes for {pods} pods ({MEMBERS_PER_NODE}: {per_node})"
