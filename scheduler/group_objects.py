"""The objects of groups whose members wait: users correct ``minMember``, or delete and create a PodGroup meanwhile.

Admission writes the minimum and the UID of the object on a pod when it is created. The objects of groups of which no
member runs are read again from time to time. The present minimum counts until the job is submitted. If another object
has the name of the group, its members join that one (:class:`scheduler.group_actions.Join`): else they wait for members
that are created for the other object.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from bridge.clock import Clock
from bridge.core.workers import Workers
from bridge.errors import KubeForbiddenError
from bridge.kube.discovery import get_if_served
from bridge.kube.kube_client import KubeClient
from bridge.logs import kv
from bridge.slurm.models import GroupRef
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import podgroup, workload_api
from scheduler.pod_group import Group, Replacement

log = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two readings of a group that lacks members."""
LONG_PERIOD = 60.0
"""Seconds between two readings of a group whose members wait for Slurm."""
GAP = 0.1
"""Least seconds between the readings of two groups: thousands of waiting ones cost the API server little."""
_KINDS = {kind.name: kind for kind in (podgroup.KIND, workload_api.KIND)}
_NO_POD: Mapping[str, Any] = {"metadata": {}, "spec": {}}


class GroupObjects:
    """Reads the objects with the workers of the loop, and changes groups. Used by the loop alone."""

    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._minimums: dict[str, int] = {}
        self._replaced: dict[str, Replacement] = {}
        self._read_at: dict[str, float] = {}
        self._next = -math.inf
        self._forbidden = False

    def request(self, groups: Iterable[Group], has_job: Callable[[str], bool], workers: Workers) -> None:
        """Read the object of the next waiting group, if one is due; ``has_job``: whether a key has a job in Slurm."""
        now = self._clock.monotonic()
        if self._forbidden or now < self._next:
            return
        for group in groups:
            waited = now - self._read_at.get(group.key, -math.inf)
            if (
                waited < PERIOD
                or group.ref is None
                or group.ref.kind not in _KINDS
                or not group.waiting
                or group.running
            ):
                continue
            if waited >= LONG_PERIOD or (not has_job(group.key) and _lacks_members(group)):
                self._read_at[group.key], self._next = now, now + GAP
                call = f"object of {group.key}"
                workers.submit(call, lambda ref=group.ref: self._read(ref), 9, kind="read_group")  # type: ignore[misc]
                return

    def applied(self, group: Group) -> Group:
        """Return the group with the present minimum of its group, and with the object that has taken its name."""
        replacement = self._replaced.get(group.key)
        if replacement is not None:
            group = replace(group, replacement=replacement)
        minimum = self._minimums.get(group.key, group.minimum)
        if minimum == group.minimum:
            return group
        # without a controller that says how many pods it creates, the size is the minimum
        size = group.size if group.size > group.minimum else max(minimum, len(group.waiting) + group.succeeded())
        return replace(group, minimum=minimum, size=max(size, minimum))

    def forget_all_but(self, keys: Set[str]) -> None:
        """Forget the groups without pods."""
        for values_by_key in (self._minimums, self._replaced, self._read_at):
            for key in values_by_key.keys() - keys:
                values_by_key.pop(key, None)

    def _read(self, ref: GroupRef) -> None:
        kind = _KINDS[ref.kind]
        for resource in kind.resources:
            try:
                owner = get_if_served(self._kube, resource, ref.namespace, ref.name)
            except KubeForbiddenError as error:
                self._forbidden = True
                log.warning("PodGroups may not be read: their changes apply to new pods only", extra=kv(error=error))
                return
            if owner is None:
                continue
            try:
                place = kind.place(_NO_POD, owner, False, 0)
            except InvalidGroupError:
                return  # as for new pods of the group, which admission refuses
            uid = str(owner["metadata"].get("uid") or "")
            if uid == ref.uid:
                self._replaced.pop(ref.key, None)
                if place is not None:
                    self._minimums[ref.key] = place.minimum
            elif uid:
                self._replaced[ref.key] = Replacement(uid, place.minimum if place is not None else 0)
            return


def _lacks_members(group: Group) -> bool:
    """Whether a group waits for more members."""
    return len(group.waiting) + group.succeeded() < group.minimum
