"""Which job holds which resources of which peer, so that two submissions do not choose the same GPU. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.errors import ScriptError, SiteDownError
from bridge.pools.nunet.choice import PeerRequirements, choose
from bridge.pools.nunet.peer import Peer, Resources


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job runs. ``at``: monotonic time of the submission; lists of peers from before do not show the job."""

    peer: str
    resources: Resources
    at: float


class Placement:
    """The jobs of one pool by UID. ``least_free``: share of a GPU's VRAM that must be free."""

    def __init__(self, least_free: float, clock: Clock) -> None:
        self._least_free = least_free
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
            free = {peer.id: peer.resources(self._least_free) for peer in self._peers if peer.available}
            for placed in self._placed.values():
                if placed.at >= self._listed_at and placed.peer in free:
                    free[placed.peer] -= placed.resources
            return free

    def of(self, job: str) -> Placed | None:
        """Return where a job runs; ``None`` if it is not known."""
        return self._placed.get(job)

    def place(self, job: str, requested: Resources, requirements: PeerRequirements, held: Mapping[str, Placed]) -> Peer:
        """Choose a peer and reserve its resources. ``held``: the jobs of this pool that have not ended.

        Raises SiteDownError if the pod fits when such a job has ended, otherwise ScriptError; both name what is free.
        """
        held_by_peer: dict[str, Resources] = {}
        for placed in held.values():
            held_by_peer[placed.peer] = held_by_peer.get(placed.peer, Resources(disk=0)) + placed.resources
        with self._lock:
            self._placed.pop(job, None)
            choice = choose(self._peers, self.free(), held_by_peer, requested, requirements)
            if choice.peer is not None:
                self._placed[job] = Placed(choice.peer.id, requested, self._clock.monotonic())
                return choice.peer
        if choice.may_fit_later:
            raise SiteDownError(f"{choice.reason}; it fits when a job of this pool has ended")
        raise ScriptError(choice.reason)

    def release(self, job: str) -> None:
        """Release the resources of a job."""
        with self._lock:
            self._placed.pop(job, None)
