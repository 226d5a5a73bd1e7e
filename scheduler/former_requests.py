"""What former leaders may have requested of Slurm: until when, for which pods, and the lists of jobs that show it."""

from __future__ import annotations

import logging
import math
from collections.abc import Set

from bridge.control.control_loop import Loop
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.object_store import Object, number
from bridge.logs import kv
from bridge.slurm.models import Snapshot
from bridge.slurm.snapshot import Poller
from bridge.workload import pods
from scheduler import rules
from scheduler.group_states import GroupStates

log = logging.getLogger(__name__)


class NewPods:
    """The pods that were created under this leadership: no former leader can have submitted a job for them.

    :meth:`changed` is a subscriber of ``cache``, the cache of pods.

    The API server increases the resource version with each write. So an event that adds a pod with a higher version
    than an answer that was requested under this leadership is about a pod created after this request. A pod from a list
    does not count, because its version is that of its last change.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._from = math.inf
        self._uids: set[str] = set()

    def begin(self) -> None:
        """Run when this process becomes the leader. If the API server does not answer, no pod counts as new."""
        try:
            self._from = self._cache.request_version() or math.inf
        except BridgeError as error:
            log.warning("resource version of pods cannot be read", extra=kv(error=error))

    def changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete."""
        if kind == "add" and new is not None and not self._cache.listing:
            if number(new["metadata"].get("resourceVersion", "")) > self._from:
                self._uids.add(pods.uid(new))
        elif kind == "delete" and old is not None:
            self._uids.discard(pods.uid(old))

    @property
    def uids(self) -> Set[str]:
        """The UIDs of the new pods that still exist. The set changes with the cache."""
        return self._uids


class FormerRequests:
    """The requests to Slurm whose outcome is unknown. Used by the thread of the loop alone.

    ``inherited_at`` is the time (monotonic seconds) until which a former leader may have sent requests that slurmctld
    may still carry out; 0 if there are none.
    """

    def __init__(self, loop: Loop, poller: Poller, states: GroupStates, new: NewPods) -> None:
        self._loop, self._poller, self._states, self._new = loop, poller, states, new
        self.inherited_at = self.inherited_until = 0.0

    def begin(self) -> None:
        """Run when this process becomes the leader: decisions need a snapshot and a list of all jobs from then on."""
        self.inherited_at = (self._loop.leading_since or 0.0) if self._loop.inherited else 0.0
        self.inherited_until = 0.0
        if self.inherited_at:  # an earlier list would not show the outcome of all of them
            self._poller.list_all(self.inherited_at + rules.SETTLE)
        self._new.begin()
        self._poller.list_all()
        self._poller.wake()

    @property
    def unsettled(self) -> bool:
        """Whether a job that this process or a former leader has requested may still appear."""
        return bool(self.inherited_at) or self._states.unsettled

    @property
    def settled_since(self) -> float:
        """The time since which this process leads, or at which slurmctld had carried out the former requests."""
        return max(self._loop.leading_since or 0.0, self.inherited_until)

    def settle(self, snapshot: Snapshot) -> bool:
        """Request the lists of jobs that show the outcome; return whether that of an own request is unknown."""
        if self.inherited_at:
            until = rules.settled_at(snapshot, self.inherited_at)
            if snapshot.error or snapshot.began < until:
                self._poller.wake()
                self._poller.list_all(until)
            else:  # later errors of slurmctld do not matter
                self.inherited_at, self.inherited_until = 0.0, until
        list_needed_at, unsettled = self.inherited_until, self._states.unsettled
        if unsettled:
            list_needed_at = max(list_needed_at, rules.settled_at(snapshot, self._states.lost_at))
        if snapshot.requested_at < list_needed_at:
            self._poller.list_all(list_needed_at)
        return unsettled
