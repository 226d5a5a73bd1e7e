"""The writes to waiting pods: conditional patches, bindings, and the condition PodScheduled=False with its Event."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge import clock as clocks
from bridge import names
from bridge.clock import Clock
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.telemetry import tracing
from bridge.workload import groups, links, places, pods, remote_gangs
from bridge.workload.remote_gangs import Place
from scheduler import conditions, pod_group
from scheduler.group_actions import Action, BindToPool, Join, SetCondition, SetPlaces
from scheduler.group_states import GroupStates, Pod, ReportedCondition
from scheduler.pod_group import Group

log = logging.getLogger(__name__)


class PodWriter:
    """Patches pods if no other process has written them since; ``kube`` is fenced. Raises ``Kube*`` errors."""

    def __init__(
        self, kube: KubeClient, cache: Cache, events: EventRecorder, clock: Clock, states: GroupStates
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._events = events
        self._clock = clock
        self._states = states

    def act(self, action: Action) -> None:
        """Carry out an action that writes to pods alone."""
        match action:
            case BindToPool():
                self._bind_to_pool(action)
            case SetPlaces():
                # the controllers submit only to pools that the API server has recorded
                self._set_places(action.members, action.places)
                members, pod = len(action.members), pods.key(action.pod)
                extra = kv(pod=pod, members=members, places=",".join(action.places), why=action.why)
                log.info("places recorded", extra=extra)
            case Join():
                self._join(action.group)
            case SetCondition():
                self._set_condition(action.pod, action.reason, action.message)

    def patch(self, pod: Pod, patch: dict[str, Any], sub: str | None = None) -> None:
        """Send a strategic patch of the pod or of its subresource ``sub``, and store the answer in the cache."""
        path = PODS.path_of(pod, sub)
        # the newest known resource version: an earlier write of the same action has changed it
        current = self._cache.by_uid(pods.uid(pod)) or pod
        self._cache.apply(self._kube.patch(path, pods.conditional(patch, current), kind="strategic"))

    def _set_places(self, members: Sequence[tuple[Pod, Place | None]], selected: Sequence[str]) -> None:
        """Record the places of the members of a group that races, each with its place in the group's job."""
        for pod, in_job in members:
            if not places.may_return(self._cache.by_uid(pods.uid(pod)) or pod):
                return  # bound or deleted since the decision: the next one is about what is left
            self.patch(pod, places.places_patch(pod, selected, in_job))

    def _bind_to_pool(self, action: BindToPool) -> None:
        for pod, place in action.members:
            annotations = {names.GRANT: action.grant} if action.grant else {}
            if place is not None:
                annotations |= place.annotations(pod)
            self.bind(pod, action.pool, annotations, f"pool {action.pool}: {action.why}")
            if tracing.tracer is not None:
                tracing.scheduled(pod, action.pool, self._clock.time())
            log.info("pod bound to a pool", extra=kv(pod=pods.key(pod), pool=action.pool, **annotations))

    def bind(
        self, pod: Pod, node: str, annotations: Mapping[str, str], message: str, labels: Mapping[str, str] | None = None
    ) -> None:
        """Bind the pod to a node, with annotations and labels, and write an Event with the message.

        A binding fails if the pod is gone or deleted, was bound by a request without an answer, or was changed after
        this state of it: it may request more now.
        """
        path = PODS.path_of(pod, "binding")
        if remote_gangs.place_of(pod) is not None:  # of a race that is over; a Binding removes no annotation
            annotations = {names.PLACE_IN_JOB: "", **annotations}
        body = pods.binding(pod, node, annotations, labels)
        body["metadata"]["resourceVersion"] = pod["metadata"].get("resourceVersion", "")
        # a kill after the Binding loses only the state below: the first list of the next leader shows the pod as bound
        self._kube.create(path, body)
        now = self._clock.monotonic()
        self._states.update(pods.uid(pod), lambda state: state.bound(now))
        self._events.event(pod, "Scheduled", message, action="Binding")

    def _join(self, group: Group) -> None:
        """Let the waiting members join the object that has taken the name of their group, each with an Event."""
        ref, replacement = group.ref, group.replacement
        if ref is None or replacement is None:
            return
        for open_pod in group.open:
            pod = self._cache.by_uid(pods.uid(open_pod))
            member = links.membership(pod) if pod is not None and pod_group.may_join(pod, ref) else None
            if pod is None or member is None:
                continue
            joined = pod_group.joined(member, replacement)
            self.patch(pod, pods.group_patch(pod, groups.encode(joined)))
            text = f"{ref.kind} {ref.name} was created again: the pod belongs to the new object from now on"
            self._events.event(pod, "GroupReplaced", text, action="Scheduling")
            log.info("member joined", extra=kv(pod=pods.key(pod), group=joined.key.key, before=group.key))

    def _set_condition(self, pod: Pod, reason: str, message: str) -> None:
        """Write the condition PodScheduled=False, and an Event if the reason is new; store it in the pod's state."""
        uid, stamp = pods.uid(pod), clocks.rfc3339(self._clock.time())
        before = self._states.of(uid).condition
        self.patch(pod, pods.condition_patch(pod, names.POD_SCHEDULED, "False", reason, message, stamp), "status")
        if conditions.has_event(before, reason):
            self._events.event(pod, reason, message, action="Scheduling")
        written = ReportedCondition(reason, message[: conditions.MOST_CHARACTERS], self._clock.monotonic())
        self._states.update(uid, lambda state: replace(state, condition=written))

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        """Write a warning about the job of a pod; the condition with this reason that follows gets no second Event."""
        self._events.event(pod, reason, message, warning=True)
        self._states.update(
            pods.uid(pod), lambda state: replace(state, condition=conditions.after_event(state.condition, reason))
        )
