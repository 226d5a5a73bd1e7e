"""The places of a pod as users see them: who may run it, where it has a job, and when it is expected to start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from bridge import clock, names
from bridge.apps.view import job_view, pod_view
from bridge.apps.view.node_room import FITS, NEVER, POSSIBLE, Room
from bridge.apps.view.records import PlaceRecord
from bridge.slurm import job_words, states
from bridge.slurm.models import Job
from bridge.workload import links, places, pods, queue_wait
from bridge.workload.places import Offer
from scheduler.places import candidates
from scheduler.places.candidates import Candidate

Pod = Mapping[str, Any]

IN_QUEUE = "it waits in the queue of the site"
QUEUED, STARTED, WON, WITHDRAWN, REFUSED = ("queued", "started", "won", "withdrawn", "refused")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What is known of a pool. ``candidate``: ``None`` if the pool has no node, or the user may not read it.

    ``message`` is that of the node's condition Ready, ``wait`` the expected wait in seconds, 0 if there is none.
    """

    candidate: Candidate | None = None
    knows_room: bool = False
    message: str = ""
    wait: float = 0.0
    offer: Offer = field(default_factory=Offer)


def pool(pod: Pod, name: str, facts: PoolFacts, now: float) -> PlaceRecord:
    """Return the record of a pool at ``now`` (seconds since 1970)."""
    if pods.is_bound(pod):
        return _bound(pod, name, facts, now)
    found, queued = facts.candidate, name in places.open_pools(pod)
    offer = facts.offer if queued else Offer()
    if found is None:
        return _record(name, job=offer.job, state=QUEUED if queued else "")
    eligible = not found.problem or found.may_open
    is_open = not found.problem and not found.silent
    told = f": {facts.message}" if found.silent and found.why == found.silent and facts.message else ""
    return _record(
        name,
        eligible=eligible,
        room=not found.full if is_open and facts.knows_room else None,
        job=offer.job,
        state=REFUSED if offer.refusal else QUEUED if queued else "",
        expected_start=_after(facts.wait, now) if is_open and not offer.refusal else "",
        reason=offer.refusal or found.why + told or (IN_QUEUE if queued else ""),
    )


def _bound(pod: Pod, name: str, facts: PoolFacts, now: float) -> PlaceRecord:
    """Return the record of a pool that has, or had, a job of a bound pod."""
    offer = facts.offer
    if pod["spec"]["nodeName"] != name:
        state = REFUSED if offer.refusal else WITHDRAWN
        return _record(name, eligible=True, job=offer.job, state=state, reason=offer.refusal)
    remote = str((pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB) or "")
    state = pod_view.state_of(pod)
    return _record(
        name,
        eligible=True,
        job=remote.partition("/")[2] or offer.job,
        state=WON if name in places.recorded(pod) else state,
        expected_start=_after(facts.wait, now) if state == pod_view.STARTING else "",
    )


def local(pod: Pod, job: Job | None, rooms: Sequence[Room], wait: float, now: float) -> PlaceRecord:
    """Return the record of the colocated Slurm. ``rooms``: the answers of its nodes; ``wait``: for a pod without a job.

    Without ``job``, what the hub has written to the pod counts.
    """
    row = pod_view.of(pod)
    number = str(job.job_id) if job is not None else str(pods.job_id(pod) or "")
    if row.node:
        here = row.node not in places.recorded(pod)
        return _record(names.LOCAL_POOL, eligible=True, job=number, state=WON if here else WITHDRAWN)
    eligible, room, reason = _room(pod, rooms)
    if not number:
        told = row.reason if row.reason.startswith("Slurm") else ""
        start = "" if told or eligible is False else _after(wait, now)
        return _record(names.LOCAL_POOL, eligible=eligible, room=room, expected_start=start, reason=told or reason)
    if job is None:
        words = job_words.read_waiting(row.message)
        state, reason, start = QUEUED, words.reason or reason, words.start
    else:
        state = QUEUED if states.is_pending(job.states) else STARTED if states.is_allocated(job.states) else ""
        reason = job.reason if state == QUEUED else job_view.reason(row, job)
        state = state or "+".join(sorted(job.states)).lower()
        start = job_words.expected_start(job, now) if state == QUEUED and queue_wait.is_queued(job.reason) else ""
    start = start if start[:1].isdigit() else ""
    return _record(names.LOCAL_POOL, True, room, number, state, start, reason)


def no_slurm() -> PlaceRecord:
    """Return the record of the colocated Slurm where none is configured."""
    return _record(names.LOCAL_POOL, eligible=False, reason=candidates.NO_SLURM)


def _room(pod: Pod, rooms: Sequence[Room]) -> tuple[bool | None, bool | None, str]:
    """Return whether the nodes could run the pod or its group, whether they have room now, and why not."""
    member = links.membership(pod)
    needed = ceil(member.minimum / member.together) if member is not None else 1
    possible = [room for room in rooms if room.answer != NEVER]
    now = sum(room.answer == FITS for room in rooms)
    if not rooms:
        return None, None, ""
    if not possible:
        return False, None, Counter(room.text for room in rooms).most_common(1)[0][0]
    if len(possible) < needed:
        return False, None, f"{_nodes(len(possible))} could run a pod of the group, which needs {needed}"
    if now >= needed:
        return True, True, ""
    if any(room.answer == POSSIBLE for room in rooms):
        return True, None, ""
    return True, False, f"{_nodes(len(possible))} could run the pod, {now or 'none'} now"


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _after(wait: float, now: float) -> str:
    """Return the time after an expected wait, rounded up to a minute; empty without one."""
    return clock.rfc3339(60 * ceil((now + wait) / 60)) if wait else ""


def _record(
    place: str,
    eligible: bool | None = None,
    room: bool | None = None,
    job: str = "",
    state: str = "",
    expected_start: str = "",
    reason: str = "",
) -> PlaceRecord:
    return {
        "place": place,
        "eligible": eligible,
        "room": room,
        "job": job,
        "state": state,
        "expected_start": expected_start,
        "reason": reason,
    }
