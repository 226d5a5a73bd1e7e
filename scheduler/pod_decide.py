"""The scheduler's decision: from one view of all waiting pods to actions and the next states of the pods. Pure.

The order of writes ensures that a pod never has two jobs, that no pod is bound without an allocation, and that no job
is left behind:

1. Submit. The comment of the job contains the pod's UID. After a crash, the next decision finds the job by UID; the
   workload controller finds a job whose pod is gone. A pod is not submitted while the outcome of an earlier submission
   is unknown, or while a former leader may have submitted it (:func:`scheduler.rules.unsettled`).
2. Bind. The node is that of a job which slurmctld shows as allocated. The UID is the precondition, and the same write
   sets the job id on the pod. The bind waits while the kubelet would reject the pod because other pods there have not
   ended, and until the claims of the pod are bound. The write that binds a claim fixes its node.
3. Release. The job is cancelled first. The finalizer is removed only after Slurm has accepted the cancellation. If a
   pod has two jobs (slurmctld carried out a request late), the job on the pod is kept, else the older one; the other
   one is cancelled before the bind.

Admission has set the finalizer when the pod was created, so the pod cannot disappear before its job is released. *Hold*
is one patch that sets the finalizer on a pod from before admission, and the job id on a pod that waits for longer than
a few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter

from bridge.core import isolation
from bridge.errors import UnexpectedError
from bridge.slurm import states
from bridge.slurm.models import ObservedJob
from bridge.workload import allotted, links, pods
from bridge.workload.resources import Resources
from scheduler import gang_actions, gang_decide, rules, volume_waits
from scheduler.gang_states import Gang
from scheduler.nodes import full_nodes
from scheduler.nodes.full_nodes import FullNode
from scheduler.nodes.occupancy import Occupant, PlannedOccupancy
from scheduler.pod_actions import (
    Action,
    Bind,
    BindVolumes,
    Cancel,
    CancelAndResubmit,
    Exclude,
    Hold,
    Pod,
    Release,
    SetCondition,
    Submit,
)
from scheduler.pod_states import NEW, Allocated, Bound, NodeBusy, NodeStarting, Pending, PodState, Submitted, failure_of
from scheduler.volume_waits import VolumeWait


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a decision.

    ``states`` are the next states of the pods whose state changes, by UID. ``planned`` are the pods that the actions
    bind: they count on their nodes from now on (:meth:`~scheduler.nodes.occupancy.Occupancy.assume`). ``refused`` are
    the full nodes of jobs that are cancelled (:meth:`~scheduler.nodes.occupancy.Occupancy.refuse`).
    """

    actions: list[Action]
    states: dict[str, PodState]
    planned: list[Occupant]
    refused: list[tuple[str, Resources]] = field(default_factory=list)


_Step = tuple[Action | None, PodState]
"""The action for one pod, and its next state."""


def decide(view: rules.SchedulerView) -> Decision:
    """Decide for every pod and gang of the view, in the order of their priority; at most one action for each pod."""
    # an older snapshot may lack a job that the former leader submitted: its pod would get a second one
    if not rules.is_current(view):
        return Decision([], {}, [])
    actions: list[Action] = []
    changed: dict[str, PodState] = {}
    occupancy = PlannedOccupancy(view.occupancy)
    units: list[tuple[tuple[int, str, str], Pod | Gang]] = []
    all_units: list[Pod | Gang] = [*view.pods, *view.gangs]
    for unit in all_units:
        members = unit.open or unit.running if isinstance(unit, Gang) else [unit] if pods.is_open(unit) else []
        if not members:
            continue
        try:
            units.append((min(map(pods.urgency, members)), unit))
        except Exception as error:
            actions += _report_failure(view, unit, isolation.report("scheduler", pods.key(members[0]), error))
    for _, unit in sorted(units, key=itemgetter(0)):
        key = unit.key if isinstance(unit, Gang) else pods.uid(unit)
        before = view.states.get(key, NEW)
        try:
            if isinstance(unit, Gang):
                unit_actions, after = gang_decide.decide(view, unit, before, occupancy)
                actions += unit_actions
            else:
                action, after = _decide_pod(view, unit, before, occupancy)
                if action is not None:
                    actions.append(action)
        except Exception as error:
            actions += _report_failure(view, unit, isolation.report("scheduler", key, error))
            continue
        if after is not before:
            changed[key] = after
    return Decision(rules.paced(view, actions), changed, occupancy.planned, occupancy.refused)


def _report_failure(view: rules.SchedulerView, unit: Pod | Gang, error: UnexpectedError) -> list[Action]:
    """Return the conditions of the pods of a unit for which the decision has failed."""
    members = unit.open if isinstance(unit, Gang) else [unit]
    return gang_actions.set_conditions(view, members, error.reason, str(error))


def _decide_pod(view: rules.SchedulerView, pod: Pod, state: PodState, occupancy: PlannedOccupancy) -> _Step:
    snapshot, phase = view.snapshot, state.phase
    observed_jobs = rules.jobs_of(view, pods.uid(pod))
    live = [observed for observed in observed_jobs if rules.is_live(observed, state.cancelled | view.cancelled)]
    if isinstance(phase, Submitted):
        is_seen = any(observed.job.job_id == phase.job_id for observed in observed_jobs)
        if not is_seen and rules.is_unread(snapshot, phase):
            # slurmctld has returned the id, so the job of a deleted pod need not run until a poll shows it
            job_ids = [*(observed.job.job_id for observed in live), phase.job_id]
            return (Release(pod, tuple(job_ids)) if pods.is_deleted(pod) else None), state
    if pods.is_deleted(pod):
        return _decide_deleted(view, pod, state.seen(), live)
    if isinstance(phase, Bound) or pods.is_gated(pod):
        return None, state.seen()
    if not live:
        return _decide_without_job(view, pod, state, observed_jobs, occupancy)
    observed_job = _select_job(pod, live)
    # before the bind: the other job may start meanwhile, and its nodes would idle
    for observed in live:
        if observed is not observed_job:
            return Cancel(pod, observed.job.job_id), state.seen()
    if not states.is_allocated(observed_job.job.states):
        return _decide_pending(view, pod, state, observed_job)
    return _decide_allocated(view, pod, state, observed_job, occupancy)


def _select_job(pod: Pod, live: list[ObservedJob]) -> ObservedJob:
    if len(live) == 1:
        return live[0]
    job_id = pods.job_id(pod)
    return next((observed for observed in live if observed.job.job_id == job_id), live[0])


def _decide_deleted(view: rules.SchedulerView, pod: Pod, state: PodState, live: list[ObservedJob]) -> _Step:
    """Release a deleted pod. If a job may still appear, keep its finalizer, but cancel the jobs that are known."""
    is_unsettled, state = rules.unsettled(view, state, [pod])
    if (is_unsettled or not pods.is_held(pod)) and not live:
        return None, state
    return Release(pod, tuple([observed.job.job_id for observed in live])), state


def _decide_without_job(
    view: rules.SchedulerView, pod: Pod, state: PodState, observed_jobs: list[ObservedJob], occupancy: PlannedOccupancy
) -> _Step:
    last = rules.last_job(pod, state, observed_jobs)
    if rules.is_doubtful(state, observed_jobs) or (last is not None and not last.is_confirmed):
        return None, state
    if last is not None and rules.is_cancelled(pod, state, last):
        # the workload controller terminates a pod that has the id of a cancelled job
        return (Hold(pod, last.job.job_id) if pods.job_id(pod) is None else None), state
    state = rules.without_job(view, state, observed_jobs)
    condition, state = rules.obstacle(view, state, [pod])
    if condition is not None:
        return (rules.set_condition(view, pod, state, *condition) if condition[0] else None), state
    # not after the submission: a job that starts would hold its node idle until the claim exists
    if (wait := volume_waits.before_submission(view, [pod], occupancy)) is not None:
        return rules.set_condition(view, pod, state, wait.reason, wait.message), state
    return Submit(pod), state


def _decide_pending(view: rules.SchedulerView, pod: Pod, state: PodState, observed: ObservedJob) -> _Step:
    job = observed.job
    since = view.now if state.waiting_since is None else state.waiting_since
    if not isinstance(state.phase, Pending) or state.waiting_since is None:
        # a requeued job may get other devices, so an earlier failure to allocate them does not count
        state = replace(state, phase=Pending(failure_of(state.phase)), waiting_since=since, claim_wait=None)
    if pods.lacks_hold(pod, job.job_id):
        return Hold(pod, job.job_id), state
    if rules.may_exclude(view, state, job.job_id):
        nodes_to_exclude = view.placements.of(pod, view.config.partition).excluded
        updated = rules.with_excluded(view, state, job, nodes_to_exclude)
        if updated is None:
            return Exclude(pod, job.job_id, nodes_to_exclude, before=rules.excluded_now(state, job)), state
        state = updated
    text = rules.pending_text(job, view.now - since, view.time)
    return (_hold_or_set_condition(view, pod, state, job.job_id, "SlurmPending", text) if text else None), state


def _decide_allocated(
    view: rules.SchedulerView, pod: Pod, state: PodState, observed: ObservedJob, occupancy: PlannedOccupancy
) -> _Step:
    job, failure = observed.job, failure_of(state.phase)
    if not isinstance(state.phase, Allocated | NodeStarting | NodeBusy):
        state = replace(state, phase=Allocated(failure))
    if not job.nodes:
        return None, state
    # a pod may change until it has the id of its job; the comment has a digest of what was requested
    if job.link is not None and job.link.shape not in ("", links.shape(pod)):
        text = "the resources or settings of the pod have changed since its submission"
        return CancelAndResubmit(pod, job.job_id, text), state
    # Slurm lets the owner of a job make it smaller
    if short := allotted.shortage(job.allotment, {job.nodes[0]: [pod]}, view.config.gres):
        return CancelAndResubmit(pod, job.job_id, f"Slurm has allocated {short}", reason=allotted.REASON), state
    missing, state = rules.starting(view, state, job.nodes[:1])
    if missing:
        text = f"Slurm job {job.job_id} is allocated; {missing}"
        return _hold_or_set_condition(view, pod, state, job.job_id, "SlurmNodeStarting", text), state
    why = view.placements.refusal(pod, job.nodes[0])
    if why:
        text = f"Slurm allocated node {job.nodes[0]}, which Kubernetes refuses for the pod: {why}"
        # API v0.0.38 (Slurm 22.05) cannot exclude the node: Slurm could allocate it again at once
        return CancelAndResubmit(pod, job.job_id, text, soon=view.version.exclude_nodes), state
    # a pod that asks for several nodes (min-nodes) runs on the first one
    node = view.placements.by_slurm_name[job.nodes[0]]
    occupant = occupancy.occupant(pod, node.name)
    full = full_nodes.find(occupant, node, occupancy, view.snapshot)
    if full is not None:
        return _wait_for_room(view, pod, state, job.job_id, full, occupancy)
    wait = volume_waits.before_bind(view, pod, job.nodes[0], occupancy)
    if wait is not None:
        return _wait_for_objects(view, pod, state, job.job_id, wait)
    if state.claim_wait is not None:
        action, state = _wait_for_objects(view, pod, state, job.job_id, VolumeWait(*state.claim_wait))
        if action is not None:  # else the bind tries again to allocate the devices
            return action, state
    elif not isinstance(state.phase, Allocated):
        state = replace(state, phase=Allocated(failure))
    occupancy.plan(occupant)
    return Bind(pod, job.job_id, node.name, job.start_time, job.nodes[0]), state


def _wait_for_room(
    view: rules.SchedulerView, pod: Pod, state: PodState, job_id: int, full: FullNode, occupancy: PlannedOccupancy
) -> _Step:
    """Keep the job until its node has room, for a limited time; cancel it if other nodes may have room now."""
    if rules.is_better_elsewhere(view, [pod], 1, full):
        occupancy.refuse(full.node, full.lacking)
        return CancelAndResubmit(pod, job_id, full.refusal(), soon=True), state
    is_overdue, state = rules.busy(view, state, full.until)
    if is_overdue:
        occupancy.refuse(full.node, full.lacking)
        text = f"node {full.node} has had {full.lack()} for {view.config.busy_node_timeout:.0f} s: {full.names()}"
        return CancelAndResubmit(pod, job_id, text), state
    text = f"Slurm job {job_id} has node {full.node}: {full.message()}"
    return _hold_or_set_condition(view, pod, state, job_id, "NodeBusy", text), state


def _wait_for_objects(view: rules.SchedulerView, pod: Pod, state: PodState, job_id: int, wait: VolumeWait) -> _Step:
    """Keep the job until the volumes or devices of the pod are ready, for a limited time; no action: no news."""
    is_overdue, state = rules.busy(view, state)
    if is_overdue:
        return CancelAndResubmit(pod, job_id, f"after {view.config.busy_node_timeout:.0f} s: {wait.message}"), state
    # a pod without the finalizer could be gone before the bind, and its claims would stay bound to this node
    if wait.writes and not pods.lacks_hold(pod, job_id):
        return BindVolumes(pod, wait.writes), state
    return _hold_or_set_condition(view, pod, state, job_id, wait.reason, f"Slurm job {job_id}: {wait.message}"), state


def _hold_or_set_condition(
    view: rules.SchedulerView, pod: Pod, state: PodState, job_id: int, reason: str, message: str
) -> Hold | SetCondition | None:
    """Set the job id on the pod if it is not set yet; else write the reason for the wait."""
    if pods.job_id(pod) != job_id or not pods.is_held(pod):
        return Hold(pod, job_id)
    return rules.set_condition(view, pod, state, reason, message)
