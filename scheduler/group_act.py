"""Carries out the actions for groups at the colocated Slurm; those about jobs: :mod:`scheduler.job_act`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bridge import clock, errors, names
from bridge.control.control_loop import Dependencies
from bridge.kube.prune import prune_claim, prune_volume
from bridge.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from bridge.logs import kv
from bridge.telemetry import tracing
from bridge.telemetry.metrics import SCHEDULER_ACTIONS, START_TO_BIND_SECONDS, counted, label_of
from bridge.workload import groups, links, pods, remote_gangs, slurm_spans
from bridge.workload.devices.claimed_devices import DevicesNotReadyError, UnsupportedClaimError, WrongDevicesError
from scheduler import group_actions, group_binding, pod_group
from scheduler.devices.claim_store import ClaimMissingError
from scheduler.devices.claims import Claims
from scheduler.devices.device_names import DeviceNames
from scheduler.devices.taken_devices import TakenDevices
from scheduler.group_states import GroupState, GroupStates, Wait
from scheduler.job_act import JobActor
from scheduler.nodes.placement import CurrentPlacements
from scheduler.pod_group import Group
from scheduler.pod_writer import PodWriter
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import SelectNode, Write

log = logging.getLogger(__name__)


class SlurmActor:
    """Carries out the actions of :mod:`scheduler.group_decide`; called by the workers, once at a time for each pod.

    ``check_leadership`` raises :class:`~bridge.errors.LostLeadershipError` when this process is not the leader. It is
    called right before every write to Slurm; ``kube`` is fenced and calls it itself.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        states: GroupStates,
        writer: PodWriter,
        storage: Storage,
        device_names: DeviceNames,
        placements: CurrentPlacements,
        check_leadership: Callable[[], None],
        taken: TakenDevices,
    ) -> None:
        self._config = dependencies.config
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.pods
        self._events = dependencies.events
        self._clock = dependencies.clock
        self._states = states
        self._writer, self._placements = writer, placements
        self._device_names = device_names
        self._claims = Claims(
            self._kube, self._slurm, self._config, self._clock, self._class_by_resource, self._cache.apply, taken
        )
        self._storage = storage
        self._jobs = JobActor(dependencies, states, writer, self._claims, placements, check_leadership)
        self.update_pace = self._jobs.update_pace

    def act(self, action: group_actions.Action) -> None:
        """Carry out one action and store its result in the state of the pod.

        Raises :class:`~bridge.errors.BridgeError` if the workers are to repeat or to report the action.
        """
        name = label_of(type(action))
        with counted(SCHEDULER_ACTIONS, name) as outcome:
            match action:
                case group_actions.Submit():
                    outcome.result = "ok" if self._jobs.submit(action) else "refused"
                case group_actions.Hold():
                    self._hold(action.pod, action.job_id)
                case group_actions.Bind():
                    self._bind(action)
                case group_actions.BindTogether():
                    self._bind_together(action)
                case group_actions.BindVolumes():
                    self._bind_volumes(action.writes)
                case group_actions.Release():
                    self._release(action)
                case group_actions.Unhold():
                    self._unhold(action.pod, None, None)
                case group_actions.CancelSecond():
                    self._jobs.cancel(action.group.key, action.job_id)
                    log.warning("cancelled a second job", extra=kv(pod=pods.key(action.pod), job=action.job_id))
                case group_actions.CancelAndResubmit():
                    self._jobs.cancel_and_resubmit(action)
                case group_actions.Withdraw():
                    self._jobs.withdraw(action)
                case group_actions.Exclude():
                    self._jobs.exclude(action)
                case group_actions.Shrink():
                    self._jobs.shrink(action)
                case group_actions.SetApart():
                    self._set_apart(action)
                case _:
                    self._writer.act(action)

    def _hold(self, pod: group_actions.Pod, job_id: int) -> None:
        try:
            self._writer.patch(pod, pods.hold_patch(pod, job_id, self._config.scheduler_name))
        except errors.KubeNotFoundError:
            self._cancel_alone(pod, job_id)
        except errors.KubeConflictError:
            # 409 is the answer to an old resource version and to another UID: a new pod may have the name
            if self._read_pod(pod) is not None:
                raise
            self._cancel_alone(pod, job_id)

    def _cancel_alone(self, pod: group_actions.Pod, job_id: int) -> None:
        """Cancel the job of a pod that is gone, unless other members of its group may need it."""
        if links.membership(pod) is None:
            self._jobs.cancel(pods.uid(pod), job_id)

    def _read_pod(self, pod: group_actions.Pod) -> dict[str, Any] | None:
        """Read the pod from the API server; ``None`` if it is gone, or if another pod has its name."""
        try:
            current = self._kube.get(PODS.path_of(pod))
        except errors.KubeNotFoundError:
            return None
        return current if pods.uid(current) == pods.uid(pod) else None

    def _bind(self, action: group_actions.Bind) -> None:
        pod = self._cache.by_uid(pods.uid(action.pod))
        if pod is None or pods.is_deleted(pod) or pods.is_bound(pod) or _has_changed(pod, action):
            return
        # before the Binding: without the finalizer, `kubectl delete --force` would free the node while containers run
        if pods.lacks_hold(pod, action.job_id):
            self._hold(pod, action.job_id)
            pod = self._cache.by_uid(pods.uid(pod)) or pod
        if self._allocate_claims([replace(action, pod=pod)]):
            self._bind_now(pod, action)

    def _bind_now(self, pod: group_actions.Pod, action: group_actions.Bind) -> bool:
        """Send the Binding if its allocation is still there; return whether it was sent."""
        pod = self._cache.by_uid(pods.uid(pod)) or pod  # a hold or the claims may have changed it
        if _has_changed(pod, action):
            return False
        if action.later:  # the list of states does not show that a running job has lost a node
            self._poller.read(action.job_id)
        snapshot = self._poller.snapshot
        cancelled = self._slurm.cancellations.since(snapshot.began)
        if why := group_binding.lost_allocation(action, links.key(pod), snapshot, cancelled):
            log.info("not bound", extra=kv(pod=pods.key(pod), job=action.job_id, node=action.node, why=why))
            return False
        job_id = str(action.job_id)
        annotations = {
            names.NODE_ANNOTATION: action.node,
            names.SLURM_NODE_ANNOTATION: action.slurm_node,
            names.JOB_ID_ANNOTATION: job_id,
            names.JOB_START_ANNOTATION: clock.rfc3339(action.started),
        }
        text = f"bound to node {action.node} of Slurm job {job_id}"
        # API servers before 1.33 drop the labels of a Binding, so the annotations have the job id too
        self._writer.bind(pod, action.node, annotations, text, {names.JOB_ID_LABEL: job_id})
        if links.membership(pod) is not None:
            self._states.update(links.key(pod), GroupState.bound)
        if tracing.tracer is not None:
            submitted_at, now = self._jobs.submitted_at(links.key(pod), action.job_id), self._clock.time()
            slurm_spans.bound(pod, action.job_id, action.node, submitted_at, action.started, now)
        # the clocks of slurmctld and of this host may differ
        START_TO_BIND_SECONDS.observe(max(0.0, self._clock.time() - action.started))
        log.info("pod bound", extra=kv(pod=pods.key(pod), job=action.job_id, node=action.node))
        return True

    def _class_by_resource(self, slurm_node: str | None) -> Mapping[str, str]:
        """Return the classes that provide extended resources on a node, or on any: resource -> class."""
        class_by_resource = self._device_names.class_by_resource
        if slurm_node is None:
            return class_by_resource
        node = self._placements.current.by_slurm_name.get(slurm_node)
        return (
            {name: class_by_resource[name] for name in node.by_devices() if name in class_by_resource}
            if node is not None
            else {}
        )

    def _bind_together(self, action: group_actions.BindTogether) -> None:
        """Bind members of a group, after the claims of all of them are allocated."""
        # empty if one of them no longer waits: none is bound then, so that the members start together
        members = self._jobs.still_waiting([bind.pod for bind in action.binds], action.group.key)
        if any(_has_changed(pod, bind) for pod, bind in zip(members, action.binds, strict=False)):
            return
        binds = [replace(bind, pod=pod) for bind, pod in zip(action.binds, members, strict=False)]
        if binds and self._allocate_claims(binds, action.group):
            all(self._bind_now(bind.pod, bind) for bind in binds)

    def _allocate_claims(self, binds: list[group_actions.Bind], together: Group | None = None) -> bool:
        """Allocate the ResourceClaims of pods; return false after their job was cancelled because they cannot be.

        ``together``: the group whose members are bound together. The job is kept for a while if devices are not ready,
        and if other members of the group may run: the claim of a successor may not be created yet.
        """
        pod, job_id = binds[0].pod, binds[0].job_id
        try:
            self._claims.allocate(binds)
        except (WrongDevicesError, UnsupportedClaimError, ClaimMissingError, DevicesNotReadyError) as error:
            if together is None and links.membership(pod) is None:
                together = pod_group.of_one(pod)
            if together is None or together.running or isinstance(error, DevicesNotReadyError):
                wait = Wait(error.reason, str(error))
                key = together.key if together is not None else pods.uid(pod)
                self._states.update(key, lambda state: replace(state, claim_wait=wait))
                raise
            self._jobs.cancel_and_resubmit(group_actions.CancelAndResubmit(together, job_id, str(error)))
            return False
        return True

    def _bind_volumes(self, writes: Iterable[Write]) -> None:
        """Send the writes, one for each claim; the next decision sees the answers."""
        # a kill in between is harmless: the next decision keeps the written nodes and volumes, and writes the rest
        for write in writes:
            claim = write.claim["metadata"]
            if isinstance(write, SelectNode):
                path, chosen = PERSISTENT_VOLUME_CLAIMS.path(claim["namespace"], claim["name"]), write.node
                answer = prune_claim(self._kube.patch(path, write.patch, kind="merge"))
            else:
                chosen = write.volume["metadata"]["name"]
                answer = prune_volume(self._kube.patch(PERSISTENT_VOLUMES.path(name=chosen), write.patch, kind="merge"))
            log.info("claim bound", extra=kv(claim=f"{claim['namespace']}/{claim['name']}", to=chosen))
            self._storage.changed("update", None, answer)

    def _release(self, action: group_actions.Release) -> None:
        key = action.group.key
        for job_id in action.job_ids:  # before the finalizer is removed: a successor still finds the pod, and cancels
            self._jobs.cancel(key, job_id)
        self._states.update(key, GroupState.seen)
        job = action.job_ids[-1] if action.job_ids else None
        submitted_at = self._jobs.submitted_at(key, job) if tracing.tracer is not None else None
        for pod in action.group.open:
            if pods.is_held(pod):
                self._unhold(pod, job, submitted_at)

    def _unhold(self, pod: group_actions.Pod, job_id: int | None, submitted_at: float | None) -> None:
        self._writer.patch(pod, pods.unhold_patch(pod))
        if tracing.tracer is not None:
            slurm_spans.withdrawn(pod, job_id, submitted_at, self._clock.time())
        log.info("waiting pod released", extra=kv(pod=pods.key(pod), job=job_id))

    def _set_apart(self, action: group_actions.SetApart) -> None:
        pod = self._cache.by_uid(pods.uid(action.pod))
        member = links.membership(pod) if pod is not None else None
        if pod is None or member is None or pods.is_deleted(pod) or not pods.is_open(pod):
            return
        self._writer.patch(pod, pods.group_patch(pod, groups.encode(replace(member, alone=True))))
        self._events.event(pod, "OwnJob", f"the pod gets a Slurm job of its own: {action.why}", action="Scheduling")
        log.info("member set apart", extra=kv(pod=pods.key(pod), group=member.key.key, why=action.why))


def _has_changed(pod: group_actions.Pod, action: group_actions.Bind) -> bool:
    """Return whether the pod requests something else than when its bind was decided, or is of another gang."""
    if pod is action.pod:
        return False
    is_moved = remote_gangs.place_of(pod) != remote_gangs.place_of(action.pod)
    return is_moved or links.shape(pod) != links.shape(action.pod)
