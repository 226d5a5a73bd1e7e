"""The decision for a group whose job is allocated: its members are bound together, later ones one by one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from bridge.slurm import states
from bridge.slurm.models import Job, Snapshot
from bridge.workload import allotted, pods
from bridge.workload.devices import extended_claims
from scheduler import conditions, gang_ranks, member_places, node_waits, pod_group, running_group
from scheduler.group_actions import (
    Action,
    Bind,
    BindTogether,
    BindVolumes,
    CancelAndResubmit,
    Hold,
    Pod,
    SetApart,
    hold,
)
from scheduler.group_states import NEW, GroupState, Wait
from scheduler.node_waits import FullNode, VolumeWait, keep_job
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView, Steps

_Places = Mapping[str, str]
"""The Slurm node of each waiting member that has a place, by UID."""


def decide(
    view: SchedulerView, group: Group, state: GroupState, job: Job, present: int, occupancy: PlannedOccupancy
) -> Steps:
    """Return the actions for the members and the next state; ``present`` members of any shape wait."""
    state = state.allocated(view.now, state.node_wait)
    if not job.nodes:
        return [], state
    # each member needs the finalizer before the first one is bound; the binding of a bare pod sets its own
    if group.ref is not None and (holds := hold(group, job.job_id)):
        return holds, state
    racing = gang_ranks.racing(group)
    if racing is not None:
        members = {pods.uid(pod) for pod in racing}
        group = pod_group.without(group, [pod for pod in group.waiting if pods.uid(pod) not in members])
    assigned = member_places.assign_places(group, job, racing[0] if racing else None)
    unplaced = [pod for pod in group.waiting if pods.uid(pod) not in assigned]
    no_place = conditions.full(f"Slurm job {job.job_id} ({len(job.nodes)} nodes)", " of the group")
    # started_job is in memory only; after a restart, times of the API server tell, which are in whole seconds
    if racing is None and (state.started_job == job.job_id or group.has_started(job.job_id, _placed(group, assigned))):
        apart: list[Pod] = []
        if running_group.others_run(group, job):
            unplaced, apart = running_group.without_place(view, group, job, unplaced)
        actions, state = _bind_replacements(view, group, state, job, assigned, occupancy)
        set_apart = [SetApart(pod, no_place.message) for pod in apart]
        return [*conditions.due(view, unplaced, no_place), *set_apart, *actions], state
    waits = conditions.due(view, unplaced, no_place)
    started, needed = running_group.started(group, job), running_group.needed(group, job)
    if job.parts and not started and present >= needed > len(assigned):
        return [CancelAndResubmit(group, job.job_id, member_places.OTHERS.format(job.job_id))], state
    if started + len(assigned) < needed:
        wait = conditions.too_few(group, started + len(assigned), needed, f"; Slurm job {job.job_id} is allocated")
        wait_actions = conditions.due_with_job(view, group, job.job_id, _placed(group, assigned), wait)
        actions, state = keep_job(view, group, state, job, wait_actions, wait.message)
        return waits + actions, state
    actions, state = _bind_all(view, group, state, job, assigned, occupancy)
    return waits + actions, state


def _bind_all(
    view: SchedulerView, group: Group, state: GroupState, job: Job, assigned: _Places, occupancy: PlannedOccupancy
) -> Steps:
    """Bind all members that have a place, or none of them."""
    placed = _placed(group, assigned)
    if short := _shortage(view, group, job, assigned):
        text = f"Slurm has allocated {short}"
        return [CancelAndResubmit(group, job.job_id, text, reason=allotted.REASON)], state
    missing, state = node_waits.starting(view, state, sorted(set(assigned.values())))
    if missing:
        wait = conditions.node_starting(job.job_id, missing)
        return conditions.due_with_job(view, group, job.job_id, placed, wait), state
    for pod in placed:
        node = assigned[pods.uid(pod)]
        if why := view.placements.refusal(pod, node):
            whom = "the pod" if group.ref is None else f"pod {pods.key(pod)}"
            text = f"Slurm allocated node {node}, which Kubernetes refuses for {whom}: {why}"
            return [CancelAndResubmit(group, job.job_id, text, soon=view.version.exclude_nodes)], state
    binds, full = _plan_binds(view, group, job, placed, assigned, occupancy)
    if full is not None:
        # none of them starts: the rest of this decision may use the room that was planned for them
        occupancy.withdraw(len(binds))
        return _wait_for_room(view, group, state, job, placed, full, occupancy)
    if waits := node_waits.volumes_before_bind(view, placed, assigned, occupancy):
        occupancy.withdraw(len(binds))
        # a pod without the finalizer could be gone before the bind, and its claims would stay bound to this node
        wait_actions = hold(group, job.job_id) or _bind_volumes(view, job, waits)
        return keep_job(view, group, state, job, wait_actions, waits[0][1].wait.message)
    actions = _bind_actions(view, group, binds)
    if state.claim_wait is not None:
        wait, message = conditions.of_job(job.job_id, state.claim_wait), state.claim_wait.message
        wait_actions = conditions.due_with_job(view, group, job.job_id, placed, wait)
        # without news, the bind tries again to allocate the devices
        waiting, state = keep_job(view, group, state, job, wait_actions or actions, message)
        if waiting is not actions:
            occupancy.withdraw(len(binds))
        return waiting, state
    return actions, state.allocated(view.now)


def _wait_for_room(
    view: SchedulerView,
    group: Group,
    state: GroupState,
    job: Job,
    placed: list[Pod],
    full: FullNode,
    occupancy: PlannedOccupancy,
) -> Steps:
    """Keep the job until its node has room, for a limited time; cancel it if other nodes may have room now."""
    if node_waits.is_better_elsewhere(view, placed, len(job.nodes), full):
        occupancy.refuse(full.node, full.lacking)
        return [CancelAndResubmit(group, job.job_id, full.refusal(), soon=True)], state
    text = f"node {full.node}: {full.message()}"
    wait = Wait(conditions.NODE_BUSY, f"Slurm job {job.job_id} has {text}")
    wait_actions = conditions.due_with_job(view, group, job.job_id, placed, wait)
    waiting, state = keep_job(view, group, state, job, wait_actions, text, full.until)
    # members that do not fit together fit on no node: to exclude this one would not help
    if waiting is not wait_actions and full.is_full_without(placed):
        occupancy.refuse(full.node, full.lacking)
    return waiting, state


def _bind_actions(view: SchedulerView, group: Group, binds: list[Bind]) -> list[Action]:
    nodes = view.placements.by_slurm_name
    if gang_ranks.racing(group) is not None:
        return [BindTogether(group, tuple(sorted(binds, key=lambda bind: gang_ranks.rank(bind.pod))))]
    # single Bind actions run side by side, and one could bind its pod before the claims of another are allocated
    if len(binds) > 1 and any(
        extended_claims.wants_devices(bind.pod, nodes[bind.slurm_node].by_devices()) for bind in binds
    ):
        return [BindTogether(group, tuple(binds))]
    return [*binds]


def _shortage(view: SchedulerView, group: Group, job: Job, assigned: _Places) -> str:
    """Return what the job, or one of its components, has too little of for its members; empty if nothing."""
    for part, placed in member_places.by_node(group, job, assigned):
        if short := allotted.shortage(part.allotment, placed, view.config.gres):
            return short
    return ""


def _shortage_by_node(view: SchedulerView, group: Group, job: Job, assigned: _Places) -> dict[str, str]:
    """Return what nodes with a place have too little of for the members there, by node."""
    allotments = (job.allotment, *(part.allotment for part in job.parts))
    if not assigned or not any(allotment is not None and allotment.nodes for allotment in allotments):
        return {}
    shortage_by_node, assigned_nodes = dict[str, str](), {*assigned.values()}
    for part, placed in member_places.by_node(group, job, assigned):
        members_by_node = {node: members for node, members in placed.items() if node in assigned_nodes}
        shortage_by_node |= allotted.on_nodes(part.allotment, members_by_node, view.config.gres)
    return shortage_by_node


def _bind_replacements(
    view: SchedulerView, group: Group, state: GroupState, job: Job, assigned: _Places, occupancy: PlannedOccupancy
) -> Steps:
    """Bind members of a group that has started, each as soon as its node has room for it.

    A member gets a job of its own if its node is refused, or has no room for a while. The job is cancelled if no
    member runs and none can be bound for a while.
    """
    actions: list[Action] = []
    blocked: list[Action] = []
    text, until, binds_some = "", 0.0, False
    others_run, shortage_by_node = running_group.others_run(group, job), _shortage_by_node(view, group, job, assigned)
    for pod in _placed(group, assigned):
        node = assigned[pods.uid(pod)]
        if node in shortage_by_node:
            text = f"Slurm has allocated {shortage_by_node[node]}"
            actions += [SetApart(pod, text)] if others_run else conditions.due(view, [pod], Wait(allotted.REASON, text))
            continue
        if why := view.placements.refusal(pod, node):
            text = f"Slurm job {job.job_id} has a place on node {node}, which Kubernetes refuses: {why}"
            wait = Wait(conditions.NODE_REFUSED, text)
            actions += [SetApart(pod, text)] if others_run else conditions.due(view, [pod], wait)
            continue
        binds, full = _plan_binds(view, group, job, [pod], assigned, occupancy)
        if full is not None:
            text, until = f"Slurm job {job.job_id} has node {full.node}: {full.message()}", max(until, full.until)
            actions += conditions.due(view, [pod], Wait(conditions.NODE_BUSY, text))
            blocked.append(SetApart(pod, text))
        elif waits := node_waits.volumes_before_bind(view, [pod], assigned, occupancy):
            occupancy.withdraw(len(binds))
            text = waits[0][1].wait.message
            actions += _bind_volumes(view, job, waits)
        elif (claims := view.states.get(pods.uid(pod), NEW).claim_wait) is not None:
            text = claims.message
            actions += conditions.due(view, [pod], conditions.of_job(job.job_id, claims)) or _as_later(binds)
        else:
            actions += _as_later(binds)
            binds_some = True
    if text and not group.running and not binds_some:
        return keep_job(view, group, state, job, actions, text, until)
    if blocked and others_run:
        is_overdue, state = node_waits.busy(view, state, until)
        return (blocked if is_overdue else actions), state
    return actions, state.allocated(view.now)


def _as_later(binds: list[Bind]) -> list[Bind]:
    return [replace(bind, later=True) for bind in binds]


def _bind_volumes(view: SchedulerView, job: Job, waits: list[tuple[Pod, VolumeWait]]) -> list[Action]:
    """Return the actions that bind the claims of the members, or that say what each member waits for."""
    actions: list[Action] = []
    for pod, wait in waits:
        if wait.writes:
            actions.append(BindVolumes(pod, wait.writes))
        elif pods.job_id(pod) != job.job_id:
            actions.append(Hold(pod, job.job_id))
        else:
            actions += conditions.due(view, [pod], conditions.of_job(job.job_id, wait.wait))
    return actions


def _placed(group: Group, assigned: _Places) -> list[Pod]:
    return [pod for pod in group.waiting if pods.uid(pod) in assigned]


def _plan_binds(
    view: SchedulerView, group: Group, job: Job, members: list[Pod], assigned: _Places, occupancy: PlannedOccupancy
) -> tuple[list[Bind], FullNode | None]:
    """Plan the bindings of the members; stop at the first node without room, and return it."""
    binds: list[Bind] = []
    sharing = member_places.sharing(job, members)
    for pod in members:
        slurm_node = assigned[pods.uid(pod)]
        node = view.placements.by_slurm_name[slurm_node]
        occupant = occupancy.occupant(pod, node.name)
        full = node_waits.find_full(occupant, node, occupancy, view.snapshot)
        if full is not None:
            return binds, full
        occupancy.plan(occupant)
        component = job.component_on(slurm_node) if job.parts else 0
        share = sharing[pods.uid(pod)]
        binds.append(Bind(pod, job.job_id, node.name, job.start_time, slurm_node, component, share))
    return binds, None


def lost_allocation(bind: Bind, key: str, snapshot: Snapshot, cancelled: Set[int]) -> str:
    """Return why the pod must not be bound to the node any more; empty if it may be. Called right before each Binding.

    A bind waits in the queue of the workers, and for the claims of the pod. Meanwhile, its job may be cancelled by a
    user or by podbridge itself, or preempted, or one of its nodes fails.

    ``key`` is the key of the pod's job, ``snapshot`` the newest one, and ``cancelled`` holds the jobs that this process
    has cancelled since.
    """
    observed = snapshot.jobs.get(bind.job_id)
    if bind.job_id in cancelled:
        return "podbridge has cancelled the job"
    if observed is None or observed.missing:
        return "Slurm does not list the job"
    if observed.job.link is None or key not in observed.job.link.keys:
        return "the job is that of another pod"
    if not states.is_allocated(observed.job.states):
        return f"the job is {'+'.join(sorted(observed.job.states))}"
    if bind.slurm_node not in observed.job.nodes:
        return f"the job no longer has node {bind.slurm_node}"
    return ""
