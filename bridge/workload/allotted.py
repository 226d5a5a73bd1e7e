"""Compares the allocation of a job with the resources that its pods use on their nodes. Pure.

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
    """The resources that pods use on their node."""

    cpus: int
    memory_mib: int
    devices: Mapping[tuple[str, str], int]


def shortage(allotment: Allotment | None, placed: Mapping[str, Sequence[_Pod]], table: Mapping[str, str]) -> str:
    """Return the first shortage of a job for its pods, e.g. ``1 CPUs for pods that take 8``; empty if there is none.

    ``placed`` are the pods by the Slurm node of their place; ``table`` maps extended resources to gres. All nodes
    together are compared, and each of several nodes. Values that the answer of Slurm does not show are not compared.
    """
    if allotment is None:
        return ""
    taken = {node: _taken_by_pods(node_pods, table) for node, node_pods in placed.items()}
    return _shortage_text(allotment, _sum(taken.values())) or next(
        iter(_shortage_by_node(allotment, taken).values()), ""
    )


def on_nodes(
    allotment: Allotment | None, placed: Mapping[str, Sequence[_Pod]], table: Mapping[str, str]
) -> dict[str, str]:
    """Return the shortages of a job on several nodes, by node; ``placed`` is as for :func:`shortage`."""
    if allotment is None or not allotment.nodes:
        return {}
    return _shortage_by_node(allotment, {node: _taken_by_pods(node_pods, table) for node, node_pods in placed.items()})


def _shortage_by_node(allotment: Allotment, taken: Mapping[str, _Taken]) -> dict[str, str]:
    allotment_by_node = dict(allotment.nodes)
    shortage_by_node = {
        node: _shortage_text(allotment_by_node[node], node_taken)
        for node, node_taken in taken.items()
        if node in allotment_by_node
    }
    return {node: f"{text} on node {node}" for node, text in shortage_by_node.items() if text}


def _taken_by_pods(members: Iterable[_Pod], table: Mapping[str, str]) -> _Taken:
    return _sum([_taken_by_pod(pod, table) for pod in members])


def _taken_by_pod(pod: _Pod, table: Mapping[str, str]) -> _Taken:
    requests = resources.pod_requests(pod["spec"])
    cpus, memory = quantity.whole(requests.get("cpu", _ZERO)), quantity.mebibytes(requests.get("memory", _ZERO))
    return _Taken(cpus, memory, gres.of_requests(requests, table))


def _sum(taken: Collection[_Taken]) -> _Taken:
    if len(taken) == 1:
        return next(iter(taken))
    devices: dict[tuple[str, str], int] = {}
    for summand in taken:
        for kind, count in summand.devices.items():
            devices[kind] = devices.get(kind, 0) + count
    return _Taken(sum(summand.cpus for summand in taken), sum(summand.memory_mib for summand in taken), devices)


def _shortage_text(allotment: Allotment, taken: _Taken) -> str:
    cpus, memory, devices = taken
    shortages = []
    if 0 < allotment.cpus < cpus:
        shortages.append(f"{allotment.cpus} CPUs for pods that take {cpus}")
    if 0 < allotment.memory_mib < memory * _TOLERANCE:
        shortages.append(f"{allotment.memory_mib:.0f} MiB for pods that take {memory}")
    if allotment.gres is not None:
        for (name, kind), count in sorted(devices.items()):
            if (allocated := allotment.count(name, kind)) < count:
                shortages.append(f"{allocated} of gres {name}{f':{kind}' if kind else ''} for pods that take {count}")
    return ", ".join(shortages)
