"""The scheduler's decision: from one view of all waiting groups to actions and the next states of the groups. Pure.

The order of writes ensures that a group never has two jobs, that no pod is bound without an allocation, and that no job
is left behind:

1. Submit, when the minimum of the members exists. The comment of the job names the pod's UID or the group. After a
   crash, the next decision finds the job by it; the workload controller finds a job whose pods are gone. A group is not
   submitted while the outcome of an earlier submission is unknown, or while a former leader may have submitted it
   (:func:`scheduler.rules.unsettled`).
2. Bind all members in one decision, or none (:mod:`scheduler.group_binding`). The nodes are those of a job which
   slurmctld shows as allocated. The UID is the precondition, and the same write sets the job id on the pod. A crash
   between two bindings leaves some members bound; the next decision binds the others to the places that
   :func:`scheduler.member_places.assign` returns for them. In a race with pools, one member goes first: its Binding
   is the grant of the group (:func:`scheduler.gang_ranks.racing`).
3. Release. The job is cancelled first. The finalizer is removed only after Slurm has accepted the cancellation. If a
   group has two jobs (slurmctld carried out a request late), the job on a member is kept, else the older one; the other
   one is cancelled before the bind.

Admission has set the finalizer when a pod was created, so the pod cannot disappear before its job is released. *Hold*
is one patch that sets the finalizer on a pod from before admission, and the job id on a pod that waits for longer than
a few seconds.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.core.job_lifecycle import Event, State
from bridge.slurm import states
from bridge.slurm.models import Job, ObservedJob
from bridge.workload import pods
from scheduler import (
    conditions,
    excluded_nodes,
    gang_ranks,
    group_binding,
    member_places,
    node_waits,
    pod_group,
    rules,
    running_group,
)
from scheduler.decision import Decision, decide_each
from scheduler.group_actions import (
    Action,
    BindTogether,
    CancelAndResubmit,
    CancelSecond,
    Exclude,
    Join,
    Pod,
    Release,
    SetApart,
    Submit,
    Unhold,
    Withdraw,
    hold,
    label,
)
from scheduler.group_states import NEW, GroupState
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.pod_group import Group
from scheduler.rules import Steps

_ABOUT_ALL = (CancelAndResubmit, BindTogether, Exclude)
"""Actions about all members: one that has changed since it got the id of the job must lose the id too."""


def decide(view: rules.SchedulerView) -> Decision:
    """Decide for every group of the view, in the order of their priority."""
    # an older snapshot may lack a job that the former leader submitted: its group would get a second one
    if not rules.is_current(view):
        return Decision([])
    actions: list[Action] = []
    changed: dict[str, GroupState] = {}
    occupancy = PlannedOccupancy(view.occupancy)

    def decide_one(group: Group) -> None:
        before = view.states.get(group.key, NEW)
        steps, after = _decide_group(view, group, before, occupancy)
        actions.extend(steps)
        if after is not before:
            changed[group.key] = after

    actions += decide_each(view, lambda group: group.open or group.running, decide_one)
    return Decision(excluded_nodes.paced(view, actions), occupancy.planned, changed, occupancy.refused)


def _decide_group(view: rules.SchedulerView, group: Group, state: GroupState, occupancy: PlannedOccupancy) -> Steps:
    observed_jobs = rules.jobs_of(view, group.key)
    live = [observed for observed in observed_jobs if rules.is_live(observed, state.cancelled | view.cancelled)]
    if group.running:
        if gang_ranks.present(group) is not None:
            return _withdraw(group, live), state.without_job()
        group = pod_group.without(group, running_group.lost(view, group))
    all_deleted = bool(group.deleted) and not (group.waiting or group.running or group.gated)
    if state.submitted_id and not any(observed.job.job_id == state.submitted_id for observed in observed_jobs):
        if rules.is_unread(view.snapshot, state):
            # slurmctld has returned the id, so the job of deleted pods need not run until a poll shows it
            job_ids = (*(observed.job.job_id for observed in live), state.submitted_id)
            return ([Release(group, job_ids)] if all_deleted else hold(group, state.submitted_id)), state
        state = state.without_job()
    if all_deleted:
        return _decide_deleted(view, group, state.seen(), live)
    releases: list[Action] = [Unhold(pod) for pod in group.deleted if pods.is_held(pod)]
    if (release := running_group.shrink(view, group, state, live)) is not None:
        return [*releases, release], state.seen()
    if not group.waiting:
        return releases, state.seen()
    if pod_group.is_replaced(group):
        return [*releases, Join(group)], state.seen()
    if live and group.ref is not None and rules.may_predate_cancellation(view, group, state):
        return releases, state
    actions, state = (
        _decide_with_job(view, group, state, live, occupancy)
        if live
        else _decide_without_job(view, group, state, observed_jobs, occupancy)
    )
    return [*releases, *(replace(one, group=group) if isinstance(one, _ABOUT_ALL) else one for one in actions)], state


def _withdraw(group: Group, live: list[ObservedJob]) -> list[Action]:
    """Return the actions for a group that a pool has won: no member is bound here, and the jobs here are cancelled."""
    actions: list[Action] = [Unhold(pod) for pod in group.deleted if pods.is_held(pod)]
    labelled = {job_id for pod in group.waiting if (job_id := pods.job_id(pod)) is not None}
    job_ids = labelled | {observed.job.job_id for observed in live}
    return [*actions, Withdraw(group, tuple(sorted(job_ids)))] if job_ids else actions


def _decide_deleted(view: rules.SchedulerView, group: Group, state: GroupState, live: list[ObservedJob]) -> Steps:
    """Release deleted pods. If a job may still appear, keep their finalizers, but cancel the jobs that are known."""
    is_unsettled, state = rules.unsettled(view, state, group.pods)
    if not live and (is_unsettled or not any(map(pods.is_held, group.open))):
        return [], state
    return [Release(group, tuple([observed.job.job_id for observed in live]))], state


def _decide_with_job(
    view: rules.SchedulerView, group: Group, state: GroupState, live: list[ObservedJob], occupancy: PlannedOccupancy
) -> Steps:
    kept_job, present = member_places.job_of(group, live), len(group.waiting)
    # before the bind: the other job may start meanwhile, and its nodes would idle
    for observed in live:
        if observed is not kept_job:
            return [CancelSecond(group, observed.job.job_id)], state.seen()
    job = kept_job.job
    is_allocated = states.is_allocated(job.states)
    ending = [pod for pod in group.running if pods.job_id(pod) not in (None, job.job_id)]
    if ending:
        wait = conditions.ending(len(ending))
        actions = conditions.due(view, group.waiting, wait)
        return node_waits.keep_job(view, group, state, job, actions, wait.message) if is_allocated else (actions, state)
    # the digest of a bare pod costs most of a decision, so it is compared only when the job starts
    strangers = list[Pod]()
    if is_allocated or group.ref is not None:
        group, strangers = member_places.matching_members(group, job)
    state = running_group.with_start(group, state, job) if is_allocated else state
    stranger_actions, text = _decide_strangers(view, group, job, strangers) if strangers else ([], "")
    if not group.waiting:
        if group.running:
            return stranger_actions, state
        return [CancelAndResubmit(group, job.job_id, text)], state
    if is_allocated:
        actions, state = group_binding.decide(view, group, state, job, present, occupancy)
    else:
        actions, state = _decide_pending(view, group, state, job, present)
    return stranger_actions + actions, state


def _decide_strangers(
    view: rules.SchedulerView, group: Group, job: Job, strangers: list[Pod]
) -> tuple[list[Action], str]:
    """Return the actions for the pods that are of another shape than the members of the job, and why they wait."""
    if group.ref is None:
        return [], "the resources or settings of the pod have changed since its submission"
    wait = conditions.differs(f"or settings than the members for which Slurm job {job.job_id} was submitted")
    # The first bind follows the decision to bind the minimum. Its time tells less: the pod may be of the same second.
    if strangers and running_group.others_run(group, job):
        return [SetApart(pod, wait.message) for pod in strangers], wait.message
    return conditions.due(view, strangers, wait), wait.message


def _decide_without_job(
    view: rules.SchedulerView,
    group: Group,
    state: GroupState,
    observed_jobs: list[ObservedJob],
    occupancy: PlannedOccupancy,
) -> Steps:
    if rules.is_doubtful(state, observed_jobs):
        return [], state
    for pod in group.waiting if observed_jobs and not group.running else ():
        last = rules.last_job(pod, state, observed_jobs)
        if last is not None and not last.is_confirmed:
            return [], state
        if last is not None and rules.is_cancelled(pod, state, last):
            # the workload controller terminates these pods, but not those that are created in their place
            members, _ = member_places.matching_members(group, last.job)
            labels = label(members, last.job.job_id) if state.lifecycle.state is State.KNOWN else []
            # else each new member would get the id too, as long as Slurm lists the cancelled job
            return labels, state.without_job(Event.ENDED)
    if group.running:
        return conditions.due(view, group.waiting, conditions.ending(len(group.running))), state.without_job()
    state = rules.without_job(view, state, observed_jobs)
    if (wait := conditions.incomplete(group)) is not None:
        return conditions.due(view, group.waiting, wait), state
    return _decide_submission(view, group, state, occupancy)


def _decide_submission(
    view: rules.SchedulerView, group: Group, state: GroupState, occupancy: PlannedOccupancy
) -> Steps:
    # the oldest of all pods counts in obstacle(): a former leader may have submitted the job for any of them
    all_pods = group.pods
    group, strangers = member_places.choose_members(group)
    differs = conditions.due(view, strangers, conditions.differs_from_next("Slurm job"))
    wait, state = rules.obstacle(view, state, all_pods)
    if wait is conditions.SILENT:
        return [], state
    if wait is None:
        # not after the submission: a job that starts would hold its node idle until the claim exists
        wait = node_waits.volumes_before_submission(view, group.waiting, occupancy)
    if wait is None:
        wait, state = rules.awaits_alike(view, group, state)
    if wait is not None:
        return conditions.due(view, group.waiting, wait) + differs, state
    return [Submit(group), *differs], state


def _decide_pending(view: rules.SchedulerView, group: Group, state: GroupState, job: Job, present: int) -> Steps:
    since = state.waiting_since if state.waiting_since is not None else view.now
    if not state.is_pending or state.waiting_since is None:
        state = state.pending(view.now, since)
    parts = member_places.parts(group, job)
    if job.link is not None and present >= job.link.size and not all(members for _, members in parts):
        return [CancelAndResubmit(group, job.job_id, member_places.OTHERS.format(job.job_id))], state
    if holds := hold(group, job.job_id):
        return holds, state
    update, state = excluded_nodes.next_update(view, group, state, job, parts)
    if update is not None:
        return [update], state
    wait = conditions.pending(job, view.now - since, view.time)
    if wait is conditions.SILENT:
        return [], state
    return conditions.due_with_job(view, group, job.job_id, group.waiting, wait), state
