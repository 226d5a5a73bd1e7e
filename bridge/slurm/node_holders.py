"""Which jobs hold what on each node of Slurm. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bridge.slurm import states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job


class Holder(NamedTuple):
    """A job on one node. ``name`` is that of its pod or group, empty for a job that is not podbridge's.

    ``end_time`` is when the time limit of the job ends it, in seconds since the epoch; 0: not known.
    """

    name: str
    amount: Allotment
    end_time: float


def by_node(jobs: Iterable[Job]) -> dict[str, list[Holder]]:
    """Return the holders by the name of the node.

    Without an allotment by node, the nodes of a job or of a component have equal shares of what it has or requests.
    """
    result: dict[str, list[Holder]] = {}
    for job in jobs:
        if not states.is_allocated(job.states):
            continue
        name = job.link.names[0] if job.link is not None else ""
        for part in job.parts or (job,):
            if not part.nodes:
                continue
            whole = part.allotment or (job.request if not job.parts else None) or Allotment()
            amounts = dict(whole.nodes)
            even = _share(whole, len(part.nodes))
            for node in part.nodes:
                result.setdefault(node, []).append(Holder(name, amounts.get(node, even), job.end_time))
    return result


def _share(whole: Allotment, nodes: int) -> Allotment:
    gres = whole.gres and tuple((name, count // nodes) for name, count in whole.gres)
    return Allotment(whole.cpus // nodes, whole.memory_mib / nodes, gres)
