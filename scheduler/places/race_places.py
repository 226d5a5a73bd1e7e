"""The pools at which a pod that races gets a place. Pure. ``docs/users/late-binding.md`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge import names
from scheduler.places.candidates import Candidate

NO_PLACE_LEFT = "no place left"


@dataclass(frozen=True, slots=True)
class Places:
    """The selected places in the order of preference, and the reasons why other pools have none."""

    selected: tuple[str, ...]
    refused: dict[str, str]


def select(candidates: Sequence[Candidate], kept: Sequence[str], limit: int) -> Places:
    """Select at most ``limit`` places. ``candidates`` are in the order of preference, ``kept`` are the present places.

    A present place stays while its pool can have it: it has waited in its queue. A present place at a pool that is not
    Ready stays only as long as no other pool needs its number. The colocated Slurm always keeps its place, because
    nothing withdraws its job while the pod waits.
    """

    def rank(candidate: Candidate) -> tuple[bool, bool, bool, bool]:
        new = candidate.name not in kept
        return new or candidate.name != names.LOCAL_POOL, bool(candidate.silent), new, bool(candidate.full)

    possible = [c for c in candidates if not c.problem and (not c.silent or c.name in kept)]
    chosen = {c.name for c in sorted(possible, key=rank)[:limit]}
    refused = {c.name: c.problem or c.silent or NO_PLACE_LEFT for c in candidates if c.name not in chosen}
    return Places(tuple(c.name for c in candidates if c.name in chosen), refused)
