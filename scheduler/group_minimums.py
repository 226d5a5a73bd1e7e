"""The present minimum of PodGroups whose members wait for others: a user may correct ``minMember`` meanwhile.

Admission writes the minimum on a pod when it is created. A group that waits for more members is read again from time to
time, and its present minimum counts until its job is submitted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from bridge.clock import Clock
from bridge.errors import KubeForbiddenError
from bridge.kube.client import KubeClient
from bridge.kube.discovery import get_if_served
from bridge.logs import kv
from bridge.slurm.models import GroupRef, Snapshot
from bridge.workers import Workers
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import podgroup, workload_api
from scheduler.gangs import Gang

log = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two readings of one group."""
GAP = 0.1
"""Least seconds between the readings of two groups: thousands of incomplete ones cost the API server little."""
_KINDS = {kind.name: kind for kind in (podgroup.KIND, workload_api.KIND)}
_NO_POD: Mapping[str, Any] = {"metadata": {}, "spec": {}}


class GroupMinimums:
    """Reads incomplete groups with the workers of the loop, and changes gangs. Used by the loop alone."""

    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._found: dict[str, int] = {}
        self._read_at: dict[str, float] = {}
        self._next = -math.inf
        self._forbidden = False

    def request(self, gangs: Iterable[Gang], snapshot: Snapshot, workers: Workers) -> None:
        """Read the next group that lacks members, if one is due."""
        now = self._clock.monotonic()
        if self._forbidden or now < self._next:
            return
        for gang in gangs:
            due = now >= self._read_at.get(gang.key, -math.inf) + PERIOD
            if due and gang.ref.kind in _KINDS and _lacks_members(gang, snapshot):
                self._read_at[gang.key], self._next = now, now + GAP
                call = f"minimum of {gang.key}"
                workers.submit(call, lambda ref=gang.ref: self._read(ref), 9, kind="read_group")  # type: ignore[misc]
                return

    def applied(self, gang: Gang) -> Gang:
        """Return the gang with the present minimum of its group, if that was read."""
        minimum = self._found.get(gang.key, gang.minimum)
        if minimum == gang.minimum:
            return gang
        # without a controller that says how many pods it creates, the size is the minimum
        size = gang.size if gang.size > gang.minimum else max(minimum, len(gang.waiting) + gang.succeeded())
        return replace(gang, minimum=minimum, size=max(size, minimum))

    def forget_all_but(self, keys: Set[str]) -> None:
        """Forget the groups without pods."""
        for known in (self._found, self._read_at):
            for key in known.keys() - keys:
                known.pop(key, None)

    def _read(self, ref: GroupRef) -> None:
        kind = _KINDS[ref.kind]
        for resource in kind.resources:
            try:
                owner = get_if_served(self._kube, resource, ref.namespace, ref.name)
            except KubeForbiddenError as error:
                self._forbidden = True
                log.warning(
                    "PodGroups may not be read: a changed minimum applies to new pods only", extra=kv(error=error)
                )
                return
            if owner is None:
                continue
            if owner["metadata"].get("uid") == ref.uid:
                try:
                    place = kind.place(_NO_POD, owner, False, 0)
                except InvalidGroupError:
                    return
                if place is not None:
                    self._found[ref.key] = place.minimum
            return


def _lacks_members(gang: Gang, snapshot: Snapshot) -> bool:
    """Whether a gang waits for more members before its job is submitted."""
    waiting = len(gang.waiting)
    return bool(waiting) and not snapshot.by_uid.get(gang.key) and waiting + gang.succeeded() < gang.minimum
