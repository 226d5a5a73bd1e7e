"""Carries out the scheduler's actions. No other module of the scheduler writes to Slurm or to Kubernetes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bridge import clock, errors, names
from bridge.control.control_loop import Dependencies
from bridge.core import isolation
from bridge.core.backoff import Backoff
from bridge.http.fencing import fence
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.slurm import states
from bridge.slurm.cancelling import cancel_if_ours, exclude_if_ours, shrink_if_ours
from bridge.slurm.models import JobRequest, SubmissionResult
from bridge.slurm.slurm_answers import UNKNOWN_NODE
from bridge.telemetry import tracing
from bridge.telemetry.metrics import SCHEDULER_ACTIONS, START_TO_BIND_SECONDS, counted, label_of
from bridge.workload import groups, links, pods, slurm_spans
from bridge.workload.annotations import InvalidAnnotationsError
from bridge.workload.devices.claimed_devices import DevicesNotReadyError, UnsupportedClaimError, WrongDevicesError
from scheduler import allocation_check, group_actions, pod_group
from scheduler.devices.claim_store import ClaimMissingError
from scheduler.devices.claims import Claims
from scheduler.devices.device_names import DeviceNames
from scheduler.devices.taken_devices import TakenDevices
from scheduler.group_states import REFUSED, UNAVAILABLE, GroupState, GroupStates, ReportedCondition
from scheduler.job_requests import JobRequests, LostJobsError, NoNodeError, traced
from scheduler.nodes.current_placements import CurrentPlacements
from scheduler.pod_group import Group
from scheduler.pod_writer import PodWriter
from scheduler.rules import is_live
from scheduler.update_pace import UpdatePace
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_writer import VolumeWriter

log = logging.getLogger(__name__)

NO_NODE = Backoff(first=1, limit=15)
"""While no node of the pod's partition fits: nodes may change at any time, without an event for the pod."""

NODE_REFUSED = Backoff(first=1, limit=60)
"""After the node of a job was refused, which the next request excludes: other nodes may have room now. The pause grows,
because the pods that wait for a full node must not all submit a job each time that one pod there ends."""

MOST_LOST = 3
"""If Slurm has lost this many jobs of a pod within 10 minutes, the pod is submitted only after a back-off."""


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
        self._dependencies = dependencies
        self._config = dependencies.config
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.pods
        self._events = dependencies.events
        self._clock = dependencies.clock
        self._states = states
        self._writer, self._placements = writer, placements
        self._check_leadership = check_leadership
        self._device_names = device_names
        self._claims = Claims(
            self._kube, self._slurm, self._config, self._clock, self._class_by_resource, self._cache.apply, taken
        )
        self._requests = JobRequests(dependencies, self._claims)
        self._volumes = VolumeWriter(self._kube, storage)
        self.update_pace = UpdatePace()

    def act(self, action: group_actions.Action) -> None:
        """Carry out one action and store its result in the state of the pod.

        Raises :class:`~bridge.errors.BridgeError` if the workers are to repeat or to report the action.
        """
        name = label_of(type(action))
        with counted(SCHEDULER_ACTIONS, name) as outcome:
            match action:
                case group_actions.Submit():
                    outcome.result = "ok" if self._submit(action) else "refused"
                case group_actions.Hold():
                    self._hold(action.pod, action.job_id)
                case group_actions.Bind():
                    self._bind(action)
                case group_actions.BindTogether():
                    self._bind_together(action)
                case group_actions.BindVolumes():
                    self._volumes.write(action.writes)
                case group_actions.Release():
                    self._release(action)
                case group_actions.Unhold():
                    self._unhold(action.pod, None, None)
                case group_actions.Cancel():
                    self._cancel(action.group.key, action.job_id)
                    log.warning("cancelled a second job", extra=kv(pod=pods.key(action.pod), job=action.job_id))
                case group_actions.CancelAndResubmit():
                    self._cancel_and_resubmit(action)
                case group_actions.Exclude():
                    self._exclude(action)
                case group_actions.Shrink():
                    self._shrink(action)
                case group_actions.Join():
                    self._writer.join(action.group)
                case group_actions.SetApart():
                    self._set_apart(action)
                case group_actions.SetCondition():
                    self._writer.set_condition(action.pod, action.reason, action.message)

    def _submit(self, action: group_actions.Submit) -> bool:
        """Submit a job for the group if it still needs one; return false if it is refused."""
        # the action has waited for a worker: meanwhile a pod may be deleted, or bound by another process
        members = self._still_waiting(action.group.waiting, action.group.key)
        if not members:
            return True
        pod, key = members[0], action.group.key
        snapshot = self._poller.snapshot
        # a snapshot that was requested before a cancellation shows the job as live
        cancelled = self._states.of(key).cancelled | self._slurm.cancellations.since(snapshot.began)
        observed_jobs = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(key, ())]
        if any(is_live(observed, cancelled) for observed in observed_jobs):
            return True  # the job of another process's request has appeared since the decision
        lost_count = sum(observed.missing and states.end_of(observed.job.states) is None for observed in observed_jobs)
        if lost_count >= MOST_LOST:
            self._record_refusal(pod, LostJobsError(f"Slurm lost {lost_count} jobs of this pod, or their comments"))
            return False
        try:
            request = self._build(members, action.group)
            if tracing.tracer is not None:
                request = traced(request, slurm_spans.traceparent(members))
            began = self._clock.time()
            # after a crash from here on, the successor finds the job by the UID or the group in its comment
            submitted = self._send(pod, request)
        except errors.SlurmUnknownOutcomeError as error:
            now, reason, message = self._clock.monotonic(), error.reason, str(error)
            self._states.update(key, lambda state: state.without_answer(now, reason, message))
            self._poller.wake()
            raise
        except errors.SlurmUnavailableError as error:
            self._record_failure(key, UNAVAILABLE, error.reason, str(error))
            raise
        except (
            errors.SlurmError,
            errors.UntranslatableError,
            InvalidAnnotationsError,
            errors.UnexpectedError,
        ) as error:
            self._record_refusal(pod, error)
            return False
        now = self._clock.monotonic()
        excluded = [part.excluded_nodes for part in (request, *request.components)]
        self._states.update(key, lambda state: state.submitted(submitted.job_id, now, *excluded))
        if tracing.tracer is not None:
            self._trace_submission(key, members, submitted.job_id, began)
        log.info("job submitted", extra=kv(pod=pods.key(pod), job=submitted.job_id))
        # a poll that began before the submission is published later, and its list lacks the job
        self._poller.expect(submitted.job_id, request.link)
        if submitted.warning:
            self._events.event(pod, "SlurmWarning", f"Slurm job {submitted.job_id}: {submitted.warning}", warning=True)
        return True

    def _build(self, members: list[group_actions.Pod], group: Group) -> JobRequest:
        try:
            return self._requests.of(members, group, self._placements.current)
        except errors.BridgeError:
            raise
        except Exception as error:
            raise isolation.report("scheduler", pods.key(members[0]), error) from error

    def _send(self, pod: group_actions.Pod, request: JobRequest) -> SubmissionResult:
        try:
            with fence(self._check_leadership):
                return self._slurm.submit(request)
        except errors.BridgeError:
            raise
        except Exception as error:  # Slurm may have the job
            raise errors.SlurmUnknownOutcomeError(str(isolation.report("scheduler", pods.key(pod), error))) from error

    def _trace_submission(self, key: str, members: list[group_actions.Pod], job_id: int, began: float) -> None:
        now = self._clock.time()
        self._states.update(key, lambda state: replace(state, submitted_at=now))
        slurm_spans.submitted(members, job_id, began, now)

    def _submitted_at(self, key: str, job_id: int | None) -> float | None:
        """Return when a job was submitted, by Slurm's record, else by this process."""
        observed = None if job_id is None else self._poller.snapshot.jobs.get(job_id)
        return observed.job.submit_time if observed and observed.job.submit_time else self._states.of(key).submitted_at

    def _still_waiting(self, members: list[group_actions.Pod], key: str) -> list[group_actions.Pod]:
        """Return the members as the cache has them now; empty if any of them no longer waits in the group ``key``."""
        current_pods = [self._cache.by_uid(pods.uid(pod)) for pod in members]
        waiting = [
            pod
            for pod in current_pods
            if pod is not None and not pods.is_deleted(pod) and not pods.is_bound(pod) and links.key(pod) == key
        ]
        # the job is sized for all of them: the next decision chooses members again
        return [*waiting] if len(waiting) == len(members) else []

    def _record_refusal(self, pod: group_actions.Pod, error: errors.BridgeError) -> None:
        uid, key = pods.uid(pod), links.key(pod)
        failure = self._states.of(key).failure
        is_repeated = failure is not None and (failure.reason, failure.message) == (error.reason, str(error))
        # a node that Slurm has deleted since the last list of nodes: the next request does not name it
        retries_soon = isinstance(error, NoNodeError | ClaimMissingError) or getattr(error, "code", 0) == UNKNOWN_NODE
        self._record_failure(key, NO_NODE if retries_soon else REFUSED, error.reason, str(error))
        self._events.event(pod, error.reason, str(error), warning=True)
        reported = self._states.of(uid).condition
        if reported is None or reported.reason != error.reason:
            # the Event is written: the condition gets no second one
            event = ReportedCondition(error.reason, "", reported.at if reported else -math.inf)
            self._states.update(uid, lambda state: replace(state, condition=event))
        level = logging.DEBUG if is_repeated else logging.INFO
        log.log(level, "not submitted", extra=kv(pod=pods.key(pod), reason=error.reason, error=error))

    def _record_failure(self, uid: str, backoff: Backoff, reason: str, message: str) -> None:
        now = self._clock.monotonic()
        self._states.update(uid, lambda state: state.failed(now, backoff, reason, message))

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
            self._cancel(pods.uid(pod), job_id)

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

    def _bind_now(self, pod: group_actions.Pod, action: group_actions.Bind) -> None:
        pod = self._cache.by_uid(pods.uid(pod)) or pod  # a hold or the claims may have changed it
        if _has_changed(pod, action):
            return
        if action.later:  # the list of states does not show that a running job has lost a node
            self._poller.read(action.job_id)
        snapshot = self._poller.snapshot
        cancelled = self._slurm.cancellations.since(snapshot.began)
        if why := allocation_check.lost(action, links.key(pod), snapshot, cancelled):
            log.info("not bound", extra=kv(pod=pods.key(pod), job=action.job_id, node=action.node, why=why))
            return
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
            submitted_at, now = self._submitted_at(links.key(pod), action.job_id), self._clock.time()
            slurm_spans.bound(pod, action.job_id, action.node, submitted_at, action.started, now)
        # the clocks of slurmctld and of this host may differ
        START_TO_BIND_SECONDS.observe(max(0.0, self._clock.time() - action.started))
        log.info("pod bound", extra=kv(pod=pods.key(pod), job=action.job_id, node=action.node))

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
        members = self._still_waiting([bind.pod for bind in action.binds], action.group.key)
        if any(_has_changed(pod, bind) for pod, bind in zip(members, action.binds, strict=False)):
            return
        binds = [replace(bind, pod=pod) for bind, pod in zip(action.binds, members, strict=False)]
        if binds and self._allocate_claims(binds, action.group):
            for bind in binds:
                self._bind_now(bind.pod, bind)

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
                wait = error.reason, str(error)
                key = together.key if together is not None else pods.uid(pod)
                self._states.update(key, lambda state: replace(state, claim_wait=wait))
                raise
            self._cancel_and_resubmit(group_actions.CancelAndResubmit(together, job_id, str(error)))
            return False
        return True

    def _release(self, action: group_actions.Release) -> None:
        key = action.group.key
        for job_id in action.job_ids:  # before the finalizer is removed: a successor still finds the pod, and cancels
            self._cancel(key, job_id)
        self._states.update(key, GroupState.seen)
        job = action.job_ids[-1] if action.job_ids else None
        submitted_at = self._submitted_at(key, job) if tracing.tracer is not None else None
        for pod in action.group.open:
            if pods.is_held(pod):
                self._unhold(pod, job, submitted_at)

    def _unhold(self, pod: group_actions.Pod, job_id: int | None, submitted_at: float | None) -> None:
        self._writer.patch(pod, pods.unhold_patch(pod))
        if tracing.tracer is not None:
            slurm_spans.withdrawn(pod, job_id, submitted_at, self._clock.time())
        log.info("waiting pod released", extra=kv(pod=pods.key(pod), job=job_id))

    def _cancel(self, key: str, job_id: int) -> None:
        """Cancel a job of the group with this key."""
        cancel_if_ours(self._slurm, job_id, self._dependencies.cluster, [key], self._check_leadership)
        self._states.update(key, lambda state: replace(state, cancelled=state.cancelled | {job_id}))
        self._poller.wake()

    def _cancel_and_resubmit(self, action: group_actions.CancelAndResubmit) -> None:
        # before the cancellation: the workload controller terminates a pod that has the id of a cancelled job
        for pod in action.group.waiting:
            if pods.job_id(pod) is not None:
                self._writer.patch(pod, pods.forget_job_patch(pod))
        # a kill here leaves a live job: the next decision finds it by its comment, and refuses it again
        key = action.group.key
        self._cancel(key, action.job_id)
        now, backoff = self._clock.monotonic(), NODE_REFUSED if action.soon else REFUSED
        self._states.update(key, lambda state: state.unusable(now, backoff, action.reason, action.why))
        self._events.event(
            action.pod, action.reason, f"Slurm job {action.job_id} was cancelled: {action.why}", warning=True
        )

    def _set_apart(self, action: group_actions.SetApart) -> None:
        pod = self._cache.by_uid(pods.uid(action.pod))
        member = links.membership(pod) if pod is not None else None
        if pod is None or member is None or pods.is_deleted(pod) or not pods.is_open(pod):
            return
        self._writer.patch(pod, pods.group_patch(pod, groups.encode(replace(member, alone=True))))
        self._events.event(pod, "OwnJob", f"the pod gets a Slurm job of its own: {action.why}", action="Scheduling")
        log.info("member set apart", extra=kv(pod=pods.key(pod), group=member.key.key, why=action.why))

    def _shrink(self, action: group_actions.Shrink) -> None:
        key = action.group.key
        try:
            released = shrink_if_ours(
                self._slurm,
                action.job_id,
                action.component or action.job_id,
                {*action.nodes},
                self._dependencies.cluster,
                [key],
                self._check_leadership,
            )
        except errors.SlurmRefusedError as error:
            released = ()
            log.info("job not shrunk", extra=kv(group=key, job=action.job_id, nodes=action.nodes, error=error))
        if released:
            text = f"Slurm job {action.job_id} has released {', '.join(released)}: {action.why}"
            self._events.event(next(iter(action.group.running), action.pod), "NodeReleased", text, action="Scheduling")
            log.info("job shrunk", extra=kv(group=key, job=action.job_id, released=released))
        # Slurm does not change the state of a job that loses a node, so no poll would read its nodes
        self._poller.read(action.job_id)
        if not released and not {*action.nodes}.isdisjoint(self._poller.snapshot.jobs[action.job_id].job.nodes):
            retry_at = self._clock.monotonic() + REFUSED.limit  # a batch job keeps the node of its script, for example
            self._states.update(key, lambda state: replace(state, shrink_retry_at=retry_at))

    def _exclude(self, action: group_actions.Exclude) -> None:
        key = action.group.key
        try:
            with self.update_pace.measured(self._clock):
                is_ours = exclude_if_ours(
                    self._slurm,
                    action.job_id,
                    action.component or action.job_id,
                    action.nodes,
                    self._dependencies.cluster,
                    [key],
                    self._check_leadership,
                )
            if not is_ours:
                raise errors.SlurmRefusedError(f"Slurm job {action.job_id} is not the pod's")
        except errors.SlurmRefusedError as error:
            deleted = set(action.before) - self._poller.snapshot.nodes.keys()
            if error.code == UNKNOWN_NODE and deleted:
                # slurmctld (24.11, 26.05) looks up the old names in each update of the job, also in one of its comment
                text = f"it excludes {', '.join(sorted(deleted)[:3])}, which Slurm no longer has: it cannot be updated"
                self._cancel_and_resubmit(group_actions.CancelAndResubmit(action.group, action.job_id, text, soon=True))
                return
            # the job has started meanwhile, or all nodes are excluded now: the node is checked again before the bind
            retry_at = self._clock.monotonic() + UNAVAILABLE.limit
            self._states.update(key, lambda state: replace(state, exclude_retry_at=retry_at))
            log.info("excluded nodes not changed", extra=kv(pod=pods.key(action.pod), error=error))
            return
        self._states.update(key, lambda state: state.excluding(action.part, action.nodes))


def _has_changed(pod: group_actions.Pod, action: group_actions.Bind) -> bool:
    """Return whether the pod requests something else than when its bind was decided."""
    return pod is not action.pod and links.shape(pod) != links.shape(action.pod)
