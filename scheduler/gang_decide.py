"""The scheduler's decision for a gang: one job for all members, all of them are bound or none. Pure.

The order of writes is that of :mod:`scheduler.pod_decide`, with these differences. The job is submitted when
``minimum`` members exist. Every member has the finalizer before the first is bound. The members are bound by one
decision, after it has checked the node of each. A crash between two bindings leaves some members bound; the next
decision binds the others to the places that :func:`scheduler.gang_states.assign` returns for them. If members have
resource claims, one action allocates the claims of all and then binds the members.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.slurm import states
from bridge.slurm.models import Job, ObservedJob
from bridge.workload import pods
from scheduler import gang_apart, gang_binding, gang_shrink, gang_states, pod_actions, rules, volume_waits
from scheduler.gang_actions import INCOMPLETE, OTHERS, Steps, count_text, hold, keep_job, label, set_conditions
from scheduler.gang_states import Gang
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.pod_states import Pending, PodState, Submitted, failure_of

_ENDING = "{} pods of the last Slurm job of this group have not ended yet"
"""Members of two jobs would run at the same time."""


def decide(view: rules.SchedulerView, gang: Gang, state: PodState, occupancy: PlannedOccupancy) -> Steps:
    """Decide for all members of a gang."""
    snapshot, phase = view.snapshot, state.phase
    gang = gang_states.without(gang, gang_apart.lost(view, gang))
    observed_jobs = rules.jobs_of(view, gang.key)
    live = [observed for observed in observed_jobs if rules.is_live(observed, state.cancelled | view.cancelled)]
    if isinstance(phase, Submitted):
        is_seen = any(observed.job.job_id == phase.job_id for observed in observed_jobs)
        if not is_seen and rules.is_unread(snapshot, phase):
            return hold(gang, phase.job_id), state
        state = state if is_seen else state.seen()
    deleted = [pod for pod in gang.open if pods.is_deleted(pod)]
    if deleted and not gang.waiting and not gang.running and not gang.gated:
        is_unsettled, state = rules.unsettled(view, state.seen(), gang.pods)
        has_held = any(map(pods.is_held, deleted))
        if not live and (is_unsettled or not has_held):
            return [], state
        return [pod_actions.Release(deleted[0], tuple(observed.job.job_id for observed in live), tuple(deleted))], state
    # no job ids: the job stays for the other members, or for the successors of these
    releases: list[pod_actions.Action] = [pod_actions.Release(pod, ()) for pod in deleted if pods.is_held(pod)]
    if (shrink := gang_shrink.decide(view, gang, state, live)) is not None:
        return [*releases, shrink], state.seen()
    if not gang.waiting:
        return releases, state.seen()
    if (
        gang.replacement is not None
        and not gang.running
        and any(gang_states.may_join(pod, gang.ref) for pod in gang.open)
    ):
        return [*releases, pod_actions.Join(gang.waiting[0], gang)], state.seen()
    if live and rules.may_predate_cancellation(view, gang, state):
        return releases, state
    actions, state = (
        _decide_with_job(view, gang, state, live, occupancy)
        if live
        else _decide_without_job(view, gang, state, observed_jobs, occupancy)
    )
    # a pod that has changed since it got the id of the job is no member of the job, but must lose the id too
    job_actions = [
        replace(action, gang=gang)
        if isinstance(action, pod_actions.CancelAndResubmit | pod_actions.BindTogether | pod_actions.Exclude)
        else action
        for action in actions
    ]
    return releases + job_actions, state


def _decide_with_job(
    view: rules.SchedulerView, gang: Gang, state: PodState, live: list[ObservedJob], occupancy: PlannedOccupancy
) -> Steps:
    kept_job, present = gang_states.job_of(gang, live), len(gang.waiting)
    extra: list[pod_actions.Action] = [
        pod_actions.Cancel(gang.waiting[0], observed.job.job_id) for observed in live if observed is not kept_job
    ]
    if extra:
        return extra[:1], state.seen()
    job = kept_job.job
    ending = [pod for pod in gang.running if pods.job_id(pod) not in (None, job.job_id)]
    if ending:
        text = _ENDING.format(len(ending))
        conditions = set_conditions(view, gang.waiting, "GangEnding", text)
        return (
            keep_job(view, gang, state, job, conditions, text)
            if states.is_allocated(job.states)
            else (conditions, state)
        )
    gang, strangers = gang_states.matching_members(gang, job)
    state = gang_apart.with_start(gang, state, job)
    text = (
        f"the pod requests other resources or settings than the members for which Slurm job {job.job_id} was submitted"
    )
    stranger_actions = set_conditions(view, strangers, "GangDiffers", text)
    # The first bind follows the decision to bind the minimum. Its time tells less: the pod may be of the same second.
    if strangers and gang_apart.others_run(gang, job):
        stranger_actions = [pod_actions.SetApart(pod, text) for pod in strangers]
    if not gang.waiting:
        return (
            (stranger_actions, state)
            if gang.running
            else ([pod_actions.CancelAndResubmit(strangers[0], job.job_id, text, gang)], state)
        )
    if states.is_allocated(job.states):
        actions, state = gang_binding.decide(view, gang, state, job, present, occupancy)
    else:
        actions, state = _decide_pending(view, gang, state, job, present)
    return stranger_actions + actions, state


def _decide_without_job(
    view: rules.SchedulerView,
    gang: Gang,
    state: PodState,
    observed_jobs: list[ObservedJob],
    occupancy: PlannedOccupancy,
) -> Steps:
    waiting = gang.waiting
    for pod in () if gang.running else waiting:
        last = rules.last_job(pod, state, observed_jobs)
        if last is not None and not last.is_confirmed:
            return [], state
        if last is not None and rules.is_cancelled(pod, state, last):
            # the workload controller terminates these pods, but not those that are created in their place
            members, _ = gang_states.matching_members(gang, last.job)
            labels = label(members, last.job.job_id) if isinstance(state.phase, Submitted | Pending) else []
            # else each new member would get the id too, as long as Slurm lists the cancelled job
            return labels, state.without_job()
    if rules.is_doubtful(state, observed_jobs):
        return [], state
    if gang.running:
        state = state.without_job()
        return set_conditions(view, waiting, "GangEnding", _ENDING.format(len(gang.running))), state
    state = rules.without_job(view, state, observed_jobs)
    if len(waiting) + gang.succeeded() < gang.minimum:
        return set_conditions(view, waiting, INCOMPLETE, count_text(gang, len(waiting) + gang.succeeded())), state
    # the oldest of all pods counts in obstacle(): a former leader may have submitted the job for any of them
    all_pods = gang.pods
    gang, strangers = gang_states.choose_members(gang)
    text = "the next Slurm job of the group is for members that request other resources or settings than the pod"
    differs = set_conditions(view, strangers, "GangDiffers", text)
    condition, state = rules.obstacle(view, state, all_pods)
    if condition is not None:
        return (set_conditions(view, gang.waiting, *condition) + differs if condition[0] else []), state
    if (wait := volume_waits.before_submission(view, gang.waiting, occupancy)) is not None:
        return set_conditions(view, gang.waiting, wait.reason, wait.message) + differs, state
    must_wait, state = rules.awaits_alike(view, gang, state)
    if must_wait:
        seconds = f"{rules.ALIKE_AFTER:.0f} s"
        text = f"the pods request different resources: podbridge waits {seconds} for more pods of the group"
        return set_conditions(view, gang.waiting, INCOMPLETE, text) + differs, state
    return [pod_actions.Submit(gang.waiting[0], gang), *differs], state


def _decide_pending(view: rules.SchedulerView, gang: Gang, state: PodState, job: Job, present: int) -> Steps:
    since = state.waiting_since if state.waiting_since is not None else view.now
    if not isinstance(state.phase, Pending) or state.waiting_since is None:
        state = replace(state, phase=Pending(failure_of(state.phase)), waiting_since=since, claim_wait=None)
    parts = gang_states.parts(gang, job)
    if job.link is not None and present >= job.link.size and not all(members for _, members in parts):
        return [pod_actions.CancelAndResubmit(gang.waiting[0], job.job_id, OTHERS.format(job.job_id), gang)], state
    if holds := hold(gang, job.job_id):
        return holds, state
    if rules.may_exclude(view, state, job.job_id):
        for number, (component, members) in enumerate(parts):
            if not members:
                continue
            nodes_to_exclude = view.placements.of_all(members, view.config.partition).excluded
            updated = rules.with_excluded(view, state, component, nodes_to_exclude, number)
            if updated is None:
                before = rules.excluded_now(state, component, number)
                return [
                    pod_actions.Exclude(gang.waiting[0], job.job_id, nodes_to_exclude, number, component.job_id, before)
                ], state
            state = updated
    text = rules.pending_text(job, view.now - since, view.time)
    if not text:
        return [], state
    return label(gang, job.job_id) or set_conditions(view, gang.waiting, "SlurmPending", text), state
