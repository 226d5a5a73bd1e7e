"""Heterogeneous jobs: Slurm runs each component as a job with an id of its own; podbridge sees them as one job. Pure.

The first component is the leader. Its id is that of the whole job: ``GET job/{leader}`` and ``jobs/state?job_id=`` show
all components, and ``DELETE job/{leader}`` cancels all. Slurm starts the components at the same time, each on nodes of
its own. If one loses its node, or the leader is cancelled, all of them end. If another component is cancelled alone,
the rest continues. Observed with slurmrestd 24.11.5 (v0.0.40 to v0.0.42) and 26.05.5 (v0.0.42 to v0.0.45).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job, JobPart
from bridge.slurm.states import end_of

MOST = 128
"""Largest number of components of one job. slurmrestd answers 200 and makes no job if there are more."""
BROKEN = frozenset({"CANCELLED"})
"""The states of a job that lacks a component: Slurm has forgotten it, or has never created it."""

COMPLETING = frozenset({"COMPLETING"})

States = frozenset[str]


class Component(NamedTuple):
    """A job in an answer, the id of its leader (0 if it is not a component) and its number among the components."""

    leader: int
    offset: int
    job: Job


def combined(parts: Sequence[States]) -> States:
    """Return the states of a job from those of its components, in their order.

    If any component has ended, the job has ended: in the way that explains most, because the others are cancelled
    afterwards. Until these have ended, it is completing, so that their end changes the states. If no component has
    ended, these are the states of all; two different base states are no phase of a job.
    """
    ended = [states for states in parts if end_of(states) is not None]
    if not ended:
        return frozenset().union(*parts)
    # Slurm cancels the others after one has ended, so CANCELLED is the cause only if all components have it
    cause = min(ended, key=lambda states: ("CANCELLED" in states, "COMPLETED" in states))
    return cause if len(ended) == len(parts) else cause | COMPLETING


def joined(components: Iterable[Component]) -> list[Job]:
    """Return each job once: the components of one leader become one job, which has the id of its first component."""
    jobs: list[Job] = []
    groups: dict[int, dict[int, Job]] = {}
    for component in components:
        if component.leader:
            groups.setdefault(component.leader, {})[component.offset] = component.job
        else:
            jobs.append(component.job)
    return jobs + [_joined(group) for group in groups.values()]


def _joined(group: Mapping[int, Job]) -> Job:
    parts = [group[offset] for offset in sorted(group)]
    first, states = parts[0], combined([part.states for part in parts])
    # only the comment says how many components there should be: slurmctld does not list one that it has forgotten
    lacks = min(group) > 0 or (first.link is not None and first.link.parts > len(parts))
    if lacks and end_of(states) is None:
        states = BROKEN | COMPLETING
    reasons = [part.reason for part in parts if part.reason]
    return replace(
        first,
        states=states,
        nodes=tuple(node for part in parts for node in part.nodes),
        reason=", ".join(dict.fromkeys(reasons)),
        parts=tuple([_part(part) for part in parts]),
        allotment=None,
        request=_sum([part.request for part in parts if part.request is not None]),
    )


def _sum(requests: Sequence[Allotment]) -> Allotment:
    gres: Counter[str] = Counter()
    for request in requests:
        gres.update(dict(request.gres or ()))
    cpus, memory = sum(request.cpus for request in requests), sum(request.memory_mib for request in requests)
    return Allotment(cpus, memory, tuple(sorted(gres.items())))


def _part(job: Job) -> JobPart:
    if job.link is None:
        return JobPart(job.job_id, job.states, job.nodes, excluded=job.excluded)
    counts = job.link.members, job.link.together
    return JobPart(
        job.job_id, job.states, job.nodes, job.link.shape, job.excluded, *counts, job.allotment, job.batch_host
    )


def is_over(job: Job) -> bool:
    """Whether all components have ended. The job has ended with any of them (:func:`combined`), the rest may run."""
    return end_of(job.states) is not None and all(end_of(part.states) is not None for part in job.parts)


def joined_states(components: Mapping[int, tuple[int, States]]) -> dict[int, States]:
    """Return the states of jobs by the id of their leader; ``components``: component offset and states, by job id.

    The list does not name leaders, but slurmctld creates the components of a job in one step: their ids ascend without
    those of other heterogeneous jobs between them. A component without its predecessor stays a job of its own.
    """
    groups: dict[int, list[States]] = {}
    leader, last = 0, 0
    for job_id in sorted(components):
        offset, states = components[job_id]
        if not offset or offset != last + 1 or not leader:
            leader = job_id
        last = offset
        groups.setdefault(leader, []).append(states)
    return {job_id: combined(parts) for job_id, parts in groups.items()}
