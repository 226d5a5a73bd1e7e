"""Whether an allocated job has what its pods take of their nodes. Pure.

The kubelet gives a pod what its spec requests, whatever Slurm has allocated. The owner of a pending job may make it
smaller with ``scontrol``, and Slurm then counts the rest as free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.slurm.allotments import Allotment
from bridge.workload import gres, quantity, resources

REASON = "AllocationTooSmall"
"""Reason of the condition and the Event of a pod whose job has less than the pod takes."""
_TOLERANCE = 0.99
"""Some versions of Slurm round the memory of a job to two digits after the point of its unit."""


def shortage(allotment: Allotment | None, members: Iterable[Mapping[str, Any]], table: Mapping[str, str]) -> str:
    """Return what a job has too little of for its pods, e.g. ``1 CPUs for pods that take 8``; empty if nothing.

    ``table`` maps extended resources to gres. Values that the answer of Slurm does not show are not compared.
    """
    if allotment is None:
        return ""
    cpus, memory, devices = 0, 0, Counter[tuple[str, str]]()
    for pod in members:
        asked = resources.pod_requests(pod["spec"])
        cpus += quantity.whole(asked.get("cpu", quantity.parse(0)))
        memory += quantity.mebibytes(asked.get("memory", quantity.parse(0)))
        devices.update(gres.of_requests(asked, table))
    found = []
    if 0 < allotment.cpus < cpus:
        found.append(f"{allotment.cpus} CPUs for pods that take {cpus}")
    if 0 < allotment.memory_mib < memory * _TOLERANCE:
        found.append(f"{allotment.memory_mib:.0f} MiB for pods that take {memory}")
    if allotment.gres is not None:
        for (name, kind), count in sorted(devices.items()):
            if (given := allotment.count(name, kind)) < count:
                found.append(f"{given} of gres {name}{f':{kind}' if kind else ''} for pods that take {count}")
    return ", ".join(found)
