"""Which job holds which resources of which peer, so that two submissions do not choose the same GPU. Thread-safe."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.clock import Clock
from bridge.errors import ScriptError, SiteDownError
from bridge.pools.nunet.capacity import total
from bridge.pools.nunet.peer import Peer, Resources

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job runs. ``at``: monotonic time of the submission; lists of peers from before do not show the job."""

    peer: str
    resources: Resources
    at: float


class Placement:
    """The jobs of one pool by UID."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._placed: dict[str, Placed] = {}
        self._peers: tuple[Peer, ...] = ()
        self._listed_at = 0.0

    def update(self, peers: Iterable[Peer], requested_at: float) -> None:
        """Use a list of peers, requested at ``requested_at`` (monotonic)."""
        with self._lock:
            self._peers, self._listed_at = tuple(peers), requested_at

    def free(self) -> dict[str, Resources]:
        """Return the free resources of the available peers by id, without those of jobs submitted since the list."""
        with self._lock:
            free = {peer.id: peer.free for peer in self._peers if peer.available}
            for placed in self._placed.values():
                if placed.at >= self._listed_at and placed.peer in free:
                    free[placed.peer] -= placed.resources
            return free

    def of(self, job: str) -> Placed | None:
        """Return where a job runs; ``None`` if it is not known."""
        return self._placed.get(job)

    def place(self, job: str, requested: Resources, values: Mapping[str, Any], held: Iterable[Placed]) -> Peer:
        """Choose a peer and reserve its resources: the cheapest that has room, then the one with the least left over.

        ``values``: see :func:`refusal`. ``held``: the jobs of this pool that have not ended. Raises SiteDownError if
        the pod fits when such a job has ended, otherwise ScriptError; both name what is free.
        """
        held = list(held)
        with self._lock:
            self._placed.pop(job, None)
            free = self.free()
            fitting: list[Peer] = []
            reasons: list[str] = []
            may_fit_later = False
            for peer in sorted(self._peers, key=lambda peer: peer.id):
                if reason := refusal(peer, values):
                    reasons.append(f"{peer.short_name}: {reason}")
                elif lacking := free[peer.id].lacks(requested):
                    reasons.append(f"{peer.short_name}: less than {lacking}; free: {free[peer.id].words()}")
                    own = total(placed.resources for placed in held if placed.peer == peer.id)
                    may_fit_later = may_fit_later or not (free[peer.id] + own).lacks(requested)
                else:
                    fitting.append(peer)
            if fitting:
                chosen = min(fitting, key=lambda peer: _order(peer, free[peer.id] - requested))
                self._placed[job] = Placed(chosen.id, requested, self._clock.monotonic())
                return chosen
        more = f"; and {len(reasons) - _MOST_NAMED} more peers" if len(reasons) > _MOST_NAMED else ""
        summary = "; ".join(reasons[:_MOST_NAMED]) + more if reasons else "there is no peer"
        text = f"no peer takes the pod ({requested.words()}): {summary}"
        if may_fit_later:
            raise SiteDownError(f"{text}; it fits when a job of this pool has ended")
        raise ScriptError(text)

    def release(self, job: str) -> None:
        """Release the resources of a job."""
        with self._lock:
            self._placed.pop(job, None)


def refusal(peer: Peer, values: Mapping[str, Any]) -> str:
    """Return why a peer cannot take a pod with these values of annotations, or an empty text.

    A peer that states no price is not excluded: the DMS checks the price in the request.
    """
    if not peer.available:
        return "not available"
    if "peers" in values and peer.id not in values["peers"]:
        return "not among the allowed peers"
    if peer.price is not None and peer.price > values.get("max-price-per-hour", math.inf):
        return f"price {peer.price:g} NTX an hour"
    return ""


def _order(peer: Peer, left: Resources) -> tuple[float, int, float, int, str]:
    price = math.inf if peer.price is None else peer.price
    return price, sum(left.gpus.values()), float(left.cpus), left.memory, peer.id
