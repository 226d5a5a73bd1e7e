"""The submissions of pods to a DMS, the jobs that they became, and the resources that these hold on peers."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from bridge.core import job_lifecycle
from bridge.core.job_lifecycle import NEW, Event, Lifecycle
from bridge.errors import UnknownJobError
from bridge.pools.nunet import peers
from bridge.pools.nunet.peers import Peer, PeerList, Placed, Resources

_SHOWN = 100


@dataclass(slots=True)
class Submission:
    """The submission of one pod.

    ``job``: the DMS's id of its job; empty: not known. ``word``: what the user had stated before the last request.
    ``has_caller``: a request of a client submits the pod now. ``placed``: what the job holds; ``None``: not known.
    """

    lifecycle: Lifecycle = NEW
    job: str = ""
    word: str = ""
    has_caller: bool = False
    placed: Placed | None = None

    @property
    def open_word(self) -> str | None:
        """What the user had stated before a request that may still be carried out; ``None``: there is none."""
        return self.word if self.lifecycle.may_take_effect(math.inf) else None

    def identify(self, job: str, at: float) -> None:
        """Record the DMS's id of the job, which an answer has shown at ``at`` (monotonic)."""
        self.job, self.lifecycle = job, self.lifecycle.shown(Event.QUEUED, at)

    def sending(self, word: str) -> AbstractContextManager[None]:
        """Record a request. Without an answer it may be carried out at any time: the DMS cannot search for a pod."""
        self.word = word
        return job_lifecycle.sending(self, lambda: math.inf)


class Submissions:
    """The submissions of one pool by the pod's UID. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, Submission] = {}

    @contextmanager
    def only_caller(self, uid: str) -> Iterator[Submission]:
        """Let one caller at once submit a pod; raise UnknownJobError for the others, before they send anything."""
        with self._lock:
            submission = self._by_uid.setdefault(uid, Submission())
            if submission.has_caller:
                raise UnknownJobError("another request submits the pod now")
            submission.has_caller = True
        try:
            yield submission
        finally:
            submission.has_caller = False
            if submission.lifecycle == NEW:
                self.forget(uid)

    def get(self, uid: str) -> Submission:
        """Return the submission of a pod."""
        return self._by_uid.get(uid) or Submission()

    def claim(self, uid: str, job: str, at: float, others: Mapping[str, str | None]) -> None:
        """Record the id of a job that a peer or the DMS has shown; ``others``: ids of jobs that are known elsewhere.

        Raises UnknownJobError if it is that of another pod.
        """
        with self._lock:
            known_ids = {**others, **{other: submission.job for other, submission in self._by_uid.items()}}
            if any(known_id == job and other != uid for other, known_id in known_ids.items()):
                raise UnknownJobError(f"a peer or the DMS states the job of another pod: {job[:_SHOWN]!r}")
            self._by_uid.setdefault(uid, Submission()).identify(job, at)

    def free(self, listed: PeerList) -> dict[str, Resources]:
        """Return the free resources of the available peers by id, without those of jobs submitted since the list."""
        free = {peer.id: peer.free for peer in listed.peers if peer.available}
        for submission in [*self._by_uid.values()]:
            placed = submission.placed
            if placed is not None and placed.at >= listed.requested_at and placed.peer in free:
                free[placed.peer] -= placed.resources
        return free

    def place(
        self,
        uid: str,
        listed: PeerList,
        requested: Resources,
        values: Mapping[str, Any],
        held: Iterable[Placed],
        now: float,
    ) -> Peer:
        """Choose a peer and reserve its resources, so that two pods do not get the same GPU; see :func:`peers.choose`.

        ``now`` is in monotonic seconds.
        """
        with self._lock:
            submission = self._by_uid.setdefault(uid, Submission())
            submission.placed = None
            chosen = peers.choose(listed.peers, self.free(listed), requested, values, [*held])
            submission.placed = Placed(chosen.id, requested, now)
            return chosen

    def forget(self, uid: str) -> None:
        """Remove what is recorded of a pod, unless a request submits it now."""
        with self._lock:
            if not self.get(uid).has_caller:
                self._by_uid.pop(uid, None)
