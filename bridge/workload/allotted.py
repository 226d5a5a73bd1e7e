"""Whether an allocated job has what its pods take of their nodes. Pure.

The kubelet gives a pod what its spec requests, whatever Slurm has allocated. The owner of a pending job may make it
smaller with ``scontrol``, and Slurm then counts the rest as free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bridge.slurm.allotments import Allotment
from bridge.workload import quantity, resources
from bridge.workload.devices import gres

_ZERO = quantity.parse(0)
_Pod = Mapping[str, Any]
REASON = "AllocationTooSmall"
"""Reason of the condition and the Event of a pod whose job has less than the pod takes."""
_TOLERANCE = 0.99
"""Some versions of Slurm round the memory of a job to two digits after the point of its unit."""


class _Taken(NamedTuple):
    """What pods take of their node."""

    cpus: int
    memory_mib: int
    devices: Mapping[tuple[str, str], int]


def shortage(allotment: Allotment | None, placed: Mapping[str, Sequence[_Pod]], table: Mapping[str, str]) -> str:
    """Return what a job has too little of for its pods, e.g. ``1 CPUs for pods that take 8``; empty if nothing.

    ``placed`` are the pods by the Slurm node of their place; ``table`` maps extended resources to gres. All nodes
    together are compared, and each of several nodes. Values that the answer of Slurm does not show are not compared.
    """
    if allotment is None:
        return ""
    taken = {node: _taken(there, table) for node, there in placed.items()}
    return _compared(allotment, _sum(taken.values())) or next(iter(_on_nodes(allotment, taken).values()), "")


def on_nodes(
    allotment: Allotment | None, placed: Mapping[str, Sequence[_Pod]], table: Mapping[str, str]
) -> dict[str, str]:
    """Return what single nodes of a job on several nodes have too little of, by node; ``placed`` as above."""
    if allotment is None or not allotment.nodes:
        return {}
    return _on_nodes(allotment, {node: _taken(there, table) for node, there in placed.items()})


def _on_nodes(allotment: Allotment, taken: Mapping[str, _Taken]) -> dict[str, str]:
    given = dict(allotment.nodes)
    found = {node: _compared(given[node], one) for node, one in taken.items() if node in given}
    return {node: f"{text} on node {node}" for node, text in found.items() if text}


def _taken(members: Iterable[_Pod], table: Mapping[str, str]) -> _Taken:
    return _sum([_taken_by(pod, table) for pod in members])


def _taken_by(pod: _Pod, table: Mapping[str, str]) -> _Taken:
    asked = resources.pod_requests(pod["spec"])
    cpus, memory = quantity.whole(asked.get("cpu", _ZERO)), quantity.mebibytes(asked.get("memory", _ZERO))
    return _Taken(cpus, memory, gres.of_requests(asked, table))


def _sum(taken: Collection[_Taken]) -> _Taken:
    if len(taken) == 1:
        return next(iter(taken))
    devices: dict[tuple[str, str], int] = {}
    for one in taken:
        for kind, count in one.devices.items():
            devices[kind] = devices.get(kind, 0) + count
    return _Taken(sum(one.cpus for one in taken), sum(one.memory_mib for one in taken), devices)


def _compared(given: Allotment, taken: _Taken) -> str:
    cpus, memory, devices = taken
    found = []
    if 0 < given.cpus < cpus:
        found.append(f"{given.cpus} CPUs for pods that take {cpus}")
    if 0 < given.memory_mib < memory * _TOLERANCE:
        found.append(f"{given.memory_mib:.0f} MiB for pods that take {memory}")
    if given.gres is not None:
        for (name, kind), count in sorted(devices.items()):
            if (there := given.count(name, kind)) < count:
                found.append(f"{there} of gres {name}{f':{kind}' if kind else ''} for pods that take {count}")
    return ", ".join(found)
