"""Carries out the actions about the jobs of groups: submits, cancels and changes them in Slurm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bridge import errors
from bridge.control.control_loop import Dependencies
from bridge.core import isolation
from bridge.core.retries import Backoff
from bridge.http.fencing import fence
from bridge.logs import kv
from bridge.slurm import states
from bridge.slurm.cancelling import cancel_if_ours, exclude_if_ours, shrink_if_ours
from bridge.slurm.models import JobRequest, SubmissionResult
from bridge.slurm.slurm_answers import UNKNOWN_NODE
from bridge.telemetry import tracing
from bridge.workload import links, pods, slurm_spans
from bridge.workload.annotations import InvalidAnnotationsError
from scheduler import group_actions
from scheduler.devices.claim_store import ClaimMissingError
from scheduler.devices.claims import Claims
from scheduler.excluded_nodes import UpdatePace
from scheduler.group_states import REFUSED, UNAVAILABLE, GroupStates
from scheduler.job_requests import JobRequests, LostJobsError, NoNodeError, traced
from scheduler.nodes.placement import CurrentPlacements
from scheduler.pod_group import Group
from scheduler.pod_writer import PodWriter
from scheduler.rules import is_live

log = logging.getLogger(__name__)

NO_NODE = Backoff(first=1, limit=15)
"""While no node of the pod's partition fits: nodes may change at any time, without an event for the pod."""

NODE_REFUSED = Backoff(first=1, limit=60)
"""After the node of a job was refused, which the next request excludes: other nodes may have room now. The pause grows,
because the pods that wait for a full node must not all submit a job each time that one pod there ends."""

MOST_LOST = 3
"""If Slurm has lost this many jobs of a pod within 10 minutes, the pod is submitted only after a back-off."""


class JobActor:
    """Carries out actions about jobs, once at a time for each group, and stores their results in its state.

    ``check_leadership`` is called right before every write to Slurm.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        states: GroupStates,
        writer: PodWriter,
        claims: Claims,
        placements: CurrentPlacements,
        check_leadership: Callable[[], None],
    ) -> None:
        self._slurm, self._poller = dependencies.slurm, dependencies.poller
        self._cluster, self._cache = dependencies.cluster, dependencies.pods
        self._events, self._clock = dependencies.events, dependencies.clock
        self._states, self._writer, self._placements = states, writer, placements
        self._check_leadership = check_leadership
        self._requests = JobRequests(dependencies, claims)
        self.update_pace = UpdatePace()

    def submit(self, action: group_actions.Submit) -> bool:
        """Submit a job for the group if it still needs one; return false if it is refused."""
        # the action has waited for a worker: meanwhile a pod may be deleted, or bound by another process
        members = self.still_waiting(action.group.waiting, action.group.key)
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

    def submitted_at(self, key: str, job_id: int | None) -> float | None:
        """Return when a job was submitted, by Slurm's record, else by this process."""
        observed = None if job_id is None else self._poller.snapshot.jobs.get(job_id)
        return observed.job.submit_time if observed and observed.job.submit_time else self._states.of(key).submitted_at

    def still_waiting(self, members: list[group_actions.Pod], key: str) -> list[group_actions.Pod]:
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
        key = links.key(pod)
        failure = self._states.of(key).failure
        is_repeated = failure is not None and (failure.reason, failure.message) == (error.reason, str(error))
        # a node that Slurm has deleted since the last list of nodes: the next request does not name it
        retries_soon = isinstance(error, NoNodeError | ClaimMissingError) or getattr(error, "code", 0) == UNKNOWN_NODE
        self._record_failure(key, NO_NODE if retries_soon else REFUSED, error.reason, str(error))
        self._writer.warn(pod, error.reason, str(error))
        level = logging.DEBUG if is_repeated else logging.INFO
        log.log(level, "not submitted", extra=kv(pod=pods.key(pod), reason=error.reason, error=error))

    def _record_failure(self, uid: str, backoff: Backoff, reason: str, message: str) -> None:
        now = self._clock.monotonic()
        self._states.update(uid, lambda state: state.failed(now, backoff, reason, message))

    def cancel(self, key: str, job_id: int) -> None:
        """Cancel a job of the group with this key."""
        cancel_if_ours(self._slurm, job_id, self._cluster, [key], self._check_leadership)
        self._states.update(key, lambda state: replace(state, cancelled=state.cancelled | {job_id}))
        self._poller.wake()

    def _forget_job(self, group: Group) -> None:
        # before the cancellation: the workload controller terminates a pod that has the id of a cancelled job
        for pod in group.waiting:
            if pods.job_id(pod) is not None:
                self._writer.patch(pod, pods.forget_job_patch(pod))

    def withdraw(self, action: group_actions.Withdraw) -> None:
        """Withdraw the jobs of a group that has its grant at a pool."""
        self._forget_job(action.group)
        for job_id in action.job_ids:
            self.cancel(action.group.key, job_id)
        log.info("job withdrawn", extra=kv(pod=pods.key(action.pod), jobs=action.job_ids))

    def cancel_and_resubmit(self, action: group_actions.CancelAndResubmit) -> None:
        """Cancel a job that cannot be used; the group gets another one."""
        self._forget_job(action.group)
        # a kill here leaves a live job: the next decision finds it by its comment, and refuses it again
        key = action.group.key
        self.cancel(key, action.job_id)
        now, backoff = self._clock.monotonic(), NODE_REFUSED if action.soon else REFUSED
        self._states.update(key, lambda state: state.unusable(now, backoff, action.reason, action.why))
        self._writer.warn(action.pod, action.reason, f"Slurm job {action.job_id} was cancelled: {action.why}")

    def shrink(self, action: group_actions.Shrink) -> None:
        """Take nodes from a running job; one that Slurm refuses is not asked again for a while."""
        key = action.group.key
        try:
            released = shrink_if_ours(
                self._slurm,
                action.job_id,
                action.component or action.job_id,
                {*action.nodes},
                self._cluster,
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

    def exclude(self, action: group_actions.Exclude) -> None:
        """Change the excluded nodes of a pending job."""
        key = action.group.key
        try:
            with self.update_pace.measured(self._clock):
                is_ours = exclude_if_ours(
                    self._slurm,
                    action.job_id,
                    action.component or action.job_id,
                    action.nodes,
                    self._cluster,
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
                self.cancel_and_resubmit(group_actions.CancelAndResubmit(action.group, action.job_id, text, soon=True))
                return
            # the job has started meanwhile, or all nodes are excluded now: the node is checked again before the bind
            retry_at = self._clock.monotonic() + UNAVAILABLE.limit
            self._states.update(key, lambda state: replace(state, exclude_retry_at=retry_at))
            log.info("excluded nodes not changed", extra=kv(pod=pods.key(action.pod), error=error))
            return
        self._states.update(key, lambda state: state.excluding(action.part, action.nodes))
