"""The scheduler's decision for a gang: one job for all members, all of them are bound or none. Pure.

The order of writes is that of :mod:`scheduler.decide`, with these differences. The job is submitted when ``minimum``
members exist. Every member has the finalizer before the first is bound. The members are bound by one decision, after it
has checked the node of each. A crash between two bindings leaves some members bound; the next decision binds the others
to the places that :func:`scheduler.gangs.assign` returns for them. If members have resource claims, one action
allocates the claims of all and then binds the members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bridge.slurm import states
from bridge.slurm.models import Job, ObservedJob
from bridge.workload import allotted, extended_claims, links, pods
from scheduler import full_nodes, gang_apart, gang_shrink, gangs, volume_waits
from scheduler.actions import (
    Action,
    Bind,
    BindTogether,
    BindVolumes,
    Cancel,
    Exclude,
    GiveBack,
    Hold,
    Join,
    Pod,
    Release,
    SetApart,
    Submit,
)
from scheduler.gangs import Gang
from scheduler.occupancy import PlannedOccupancy
from scheduler.pod_states import (
    NEW,
    Allocated,
    NodeBusy,
    NodeStarting,
    Pending,
    PodState,
    Submitted,
    failure_of,
)
from scheduler.rules import (
    ALIKE_AFTER,
    SchedulerView,
    awaits_alike,
    busy,
    excluded_now,
    is_better_elsewhere,
    is_cancelled,
    is_doubtful,
    is_unread,
    jobs_of,
    last_job,
    lives,
    may_exclude,
    obstacle,
    outruns,
    pending_text,
    starting,
    tell,
    unsettled,
    with_excluded,
    without_job,
)
from scheduler.volume_waits import VolumeWait

INCOMPLETE = "GangIncomplete"
"""Reason of the condition of a member that waits for other members."""

_ENDING = "{} pods of the last Slurm job of this group have not ended yet"
"""Members of two jobs would run at the same time."""
_OTHERS = "Slurm job {} was submitted for pods that request something else than the pods that exist now"
"""All members of a heterogeneous job are present, but a component has none or too few of them."""

_Steps = tuple[list[Action], PodState]
"""The actions for the members, and the next state of the gang."""
_Places = Mapping[str, str]
"""The Slurm node of each waiting member that has a place, by UID."""


def decide(view: SchedulerView, gang: Gang, state: PodState, occupancy: PlannedOccupancy) -> _Steps:
    """Decide for all members of a gang."""
    snapshot, phase = view.snapshot, state.phase
    gang = gangs.without(gang, gang_apart.lost(view, gang))
    known = jobs_of(view, gang.key)
    live = [entry for entry in known if lives(entry, state.cancelled | view.cancelled)]
    if isinstance(phase, Submitted):
        seen = any(entry.job.job_id == phase.job_id for entry in known)
        if not seen and is_unread(snapshot, phase):
            return _hold(gang, phase.job_id), state
        state = state if seen else state.seen()
    deleted = [pod for pod in gang.open if pods.is_deleted(pod)]
    if deleted and not gang.waiting and not gang.running and not gang.gated:
        waits, state = unsettled(view, state.seen(), gang.pods)
        held = any(map(pods.is_held, deleted))
        if not live and (waits or not held):
            return [], state
        return [Release(deleted[0], tuple(entry.job.job_id for entry in live), tuple(deleted))], state
    leave: list[Action] = [Release(pod, ()) for pod in deleted if pods.is_held(pod)]
    if (shrink := gang_shrink.decide(view, gang, state, live)) is not None:
        return [*leave, shrink], state.seen()
    if not gang.waiting:
        return leave, state.seen()
    if gang.replacement is not None and not gang.running and any(gangs.may_join(pod, gang.ref) for pod in gang.open):
        return [*leave, Join(gang.waiting[0], gang)], state.seen()
    if live and outruns(view, gang, state):
        return leave, state
    actions, state = (
        _with_job(view, gang, state, live, occupancy) if live else _without_job(view, gang, state, known, occupancy)
    )
    # a pod that has changed since it got the id of the job is no member of the job, but must lose the id too
    whole = [
        replace(action, gang=gang) if isinstance(action, GiveBack | BindTogether | Exclude) else action
        for action in actions
    ]
    return leave + whole, state


def _with_job(
    view: SchedulerView, gang: Gang, state: PodState, live: list[ObservedJob], occupancy: PlannedOccupancy
) -> _Steps:
    kept, present = gangs.job_of(gang, live), len(gang.waiting)
    extra: list[Action] = [Cancel(gang.waiting[0], entry.job.job_id) for entry in live if entry is not kept]
    if extra:
        return extra[:1], state.seen()
    job = kept.job
    ending = [pod for pod in gang.running if pods.job_id(pod) not in (None, job.job_id)]
    if ending:
        text = _ENDING.format(len(ending))
        told = _tell(view, gang.waiting, "GangEnding", text)
        return _wait(view, gang, state, job, told, text) if states.is_allocated(job.states) else (told, state)
    gang, strangers = gangs.without_strangers(gang, job)
    state = gang_apart.with_start(gang, state, job)
    text = (
        f"the pod requests other resources or settings than the members for which Slurm job {job.job_id} was submitted"
    )
    told = _tell(view, strangers, "GangDiffers", text)
    if strangers:
        has_started = state.started_job == job.job_id or gang.has_started(job.job_id, strangers)
        if has_started and gang_apart.others_run(gang, job):
            told = [SetApart(pod, text) for pod in strangers]
    if not gang.waiting:
        return (told, state) if gang.running else ([GiveBack(strangers[0], job.job_id, text, gang)], state)
    if states.is_allocated(job.states):
        actions, state = _allocated(view, gang, state, job, present, occupancy)
    else:
        actions, state = _pending(view, gang, state, job, present)
    return told + actions, state


def _hold(gang: Gang, job_id: int) -> list[Action]:
    """Return the actions for the members that a binding alone does not hold."""
    return [Hold(pod, job_id) for pod in gang.waiting if pods.lacks_hold(pod, job_id)]


def _label(gang: Gang, job_id: int) -> list[Action]:
    """Return the actions that set the job on the members that wait for longer, or whose job was cancelled."""
    return [Hold(pod, job_id) for pod in gang.waiting if pods.job_id(pod) != job_id]


def _tell(view: SchedulerView, members: Iterable[Pod], reason: str, message: str) -> list[Action]:
    said = (tell(view, pod, view.states.get(pods.uid(pod), NEW), reason, message) for pod in members)
    return [action for action in said if action is not None]


def _without_job(
    view: SchedulerView, gang: Gang, state: PodState, known: list[ObservedJob], occupancy: PlannedOccupancy
) -> _Steps:
    waiting = gang.waiting
    for pod in () if gang.running else waiting:
        entry = last_job(pod, state, known)
        if entry is not None and not entry.is_confirmed:
            return [], state
        if entry is not None and is_cancelled(pod, state, entry):
            # the workload controller terminates these pods, but not those that are created in their place
            members, _ = gangs.without_strangers(gang, entry.job)
            labels = _label(members, entry.job.job_id) if isinstance(state.phase, Submitted | Pending) else []
            return labels, state.without_job()
    if is_doubtful(state, known):
        return [], state
    if gang.running:
        state = state.without_job()
        return _tell(view, waiting, "GangEnding", _ENDING.format(len(gang.running))), state
    state = without_job(view, state, known)
    if len(waiting) + gang.succeeded() < gang.minimum:
        return _tell(view, waiting, INCOMPLETE, _count_text(gang, len(waiting) + gang.succeeded())), state
    everyone = gang.pods
    gang, strangers = gangs.chosen(gang)
    text = "the next Slurm job of the group is for members that request other resources or settings than the pod"
    differs = _tell(view, strangers, "GangDiffers", text)
    why, state = obstacle(view, state, everyone)
    if why is not None:
        return (_tell(view, gang.waiting, *why) + differs if why[0] else []), state
    if (wait := volume_waits.before_submission(view, gang.waiting, occupancy)) is not None:
        return _tell(view, gang.waiting, wait.reason, wait.message) + differs, state
    waits, state = awaits_alike(view, gang, state)
    if waits:
        text = f"the pods request different resources: podbridge waits {ALIKE_AFTER:.0f} s for more pods of the group"
        return _tell(view, gang.waiting, INCOMPLETE, text) + differs, state
    return [Submit(gang.waiting[0], gang), *differs], state


def _count_text(gang: Gang, count: int, needed: int = 0) -> str:
    return f"{count} of {needed or gang.minimum} pods of {gang.ref.kind} {gang.ref.name} are present"


def _pending(view: SchedulerView, gang: Gang, state: PodState, job: Job, present: int) -> _Steps:
    since = state.waiting_since if state.waiting_since is not None else view.now
    if not isinstance(state.phase, Pending) or state.waiting_since is None:
        state = replace(state, phase=Pending(failure_of(state.phase)), waiting_since=since, claim_wait=None)
    parts = gangs.parts(gang, job)
    if job.link is not None and present >= job.link.size and not all(members for _, members in parts):
        return [GiveBack(gang.waiting[0], job.job_id, _OTHERS.format(job.job_id), gang)], state
    if holds := _hold(gang, job.job_id):
        return holds, state
    if may_exclude(view, state, job.job_id):
        for part, (one, members) in enumerate(parts):
            if not members:
                continue
            wanted = view.placements.of_all(members, view.config.partition).excluded
            known = with_excluded(view, state, one, wanted, part)
            if known is None:
                before = excluded_now(state, one, part)
                return [Exclude(gang.waiting[0], job.job_id, wanted, part, one.job_id, before)], state
            state = known
    text = pending_text(job, view.now - since)
    if not text:
        return [], state
    return _label(gang, job.job_id) or _tell(view, gang.waiting, "SlurmPending", text), state


def _allocated(
    view: SchedulerView, gang: Gang, state: PodState, job: Job, present: int, occupancy: PlannedOccupancy
) -> _Steps:
    if not isinstance(state.phase, Allocated | NodeStarting | NodeBusy):
        state = replace(state, phase=Allocated(failure_of(state.phase)))
    if not job.nodes:
        return [], state
    if holds := _hold(gang, job.job_id):
        return holds, state
    assigned = gangs.assign_places(gang, job)
    late = [pod for pod in gang.waiting if pods.uid(pod) not in assigned]
    text = f"every place of Slurm job {job.job_id} ({len(job.nodes)} nodes) is taken by another pod of the group"
    if state.started_job == job.job_id or gang.has_started(job.job_id, _placed(gang, assigned)):
        late, apart = (
            gang_apart.without_place(view, gang, job, late) if gang_apart.others_run(gang, job) else (late, [])
        )
        actions, state = _replacements(view, gang, state, job, assigned, occupancy)
        return _tell(view, late, "GangFull", text) + [SetApart(pod, text) for pod in apart] + actions, state
    told = _tell(view, late, "GangFull", text)
    started, needed = gang_apart.started(gang, job), gang_apart.needed(gang, job)
    if job.parts and not started and present >= needed > len(assigned):
        return [GiveBack(gang.waiting[0], job.job_id, _OTHERS.format(job.job_id), gang)], state
    if started + len(assigned) < needed:
        text = f"{_count_text(gang, started + len(assigned), needed)}; Slurm job {job.job_id} is allocated"
        said = _label(gang, job.job_id) or _tell(view, _placed(gang, assigned), INCOMPLETE, text)
        actions, state = _wait(view, gang, state, job, said, text)
        return told + actions, state
    actions, state = _start(view, gang, state, job, assigned, occupancy)
    return told + actions, state


def _start(
    view: SchedulerView, gang: Gang, state: PodState, job: Job, assigned: _Places, occupancy: PlannedOccupancy
) -> _Steps:
    """Bind all members that have a place, or none."""
    placed = _placed(gang, assigned)
    failure = failure_of(state.phase)
    if short := _shortage(view, gang, job, placed):
        text = f"Slurm has allocated {short}"
        return [GiveBack(placed[0], job.job_id, text, gang, reason=allotted.REASON)], state
    missing, state = starting(view, state, sorted(set(assigned.values())))
    if missing:
        text = f"Slurm job {job.job_id} is allocated; {missing}"
        return _label(gang, job.job_id) or _tell(view, placed, "SlurmNodeStarting", text), state
    for pod in placed:
        node = assigned[pods.uid(pod)]
        if why := view.placements.refusal(pod, node):
            text = f"Slurm allocated node {node}, which Kubernetes refuses for pod {pods.key(pod)}: {why}"
            return [GiveBack(placed[0], job.job_id, text, gang, soon=view.version.exclude_nodes)], state
    binds, full = _bind(view, gang, job, placed, assigned, occupancy)
    if full is not None:
        occupancy.withdraw(len(binds))
        if is_better_elsewhere(view, placed, len(job.nodes), full):
            occupancy.refuse(full.node, full.lacking)
            return [GiveBack(placed[0], job.job_id, full.refusal(), gang, soon=True)], state
        text = f"Slurm job {job.job_id} has node {full.node}: {full.message()}"
        said = _label(gang, job.job_id) or _tell(view, placed, "NodeBusy", text)
        waiting, state = _wait(view, gang, state, job, said, text, full.until)
        if full.is_full_without(placed) and any(isinstance(action, GiveBack) for action in waiting):
            occupancy.refuse(full.node, full.lacking)
        return waiting, state
    waits = volume_waits.of_members(view, placed, assigned, occupancy)
    if waits:
        occupancy.withdraw(len(binds))
        return _wait(view, gang, state, job, _bind_volumes(view, waits), waits[0][1].message)
    nodes = view.placements.by_slurm_name
    actions: list[Action] = [*binds]
    if any(extended_claims.wants_devices(bind.pod, nodes[bind.slurm_node].by_devices()) for bind in binds):
        actions = [BindTogether(placed[0], gang, tuple(binds))]
    if state.claim_wait is not None:
        reason, text = state.claim_wait
        said = _label(gang, job.job_id) or _tell(view, placed, reason, text)
        if said:
            occupancy.withdraw(len(binds))
        return _wait(view, gang, state, job, said or actions, text)
    if not isinstance(state.phase, Allocated):
        state = replace(state, phase=Allocated(failure))
    return actions, state


def _shortage(view: SchedulerView, gang: Gang, job: Job, placed: list[Pod]) -> str:
    """Return what the job, or one of its components, has too little of for its members; empty if nothing."""
    running = [pod for pod in gang.running if pods.job_id(pod) == job.job_id]
    uids = set(map(pods.uid, placed))
    for part, members in gangs.parts(gang, job):
        there = [pod for pod in members if pods.uid(pod) in uids]
        there += running if isinstance(part, Job) else [pod for pod in running if links.shape(pod) == part.shape]
        if short := allotted.shortage(part.allotment, there, view.config.gres):
            return short
    return ""


def _replacements(
    view: SchedulerView, gang: Gang, state: PodState, job: Job, assigned: _Places, occupancy: PlannedOccupancy
) -> _Steps:
    """Bind members of a gang that has started, each as soon as its node takes it.

    A member gets a job of its own if its node is refused, or has no room for a while. The job is given back if no
    member runs and none can be bound for a while.
    """
    actions: list[Action] = []
    blocked: list[Action] = []
    text, until, binds_some = "", 0.0, False
    others = gang_apart.others_run(gang, job)
    for pod in _placed(gang, assigned):
        node = assigned[pods.uid(pod)]
        if why := view.placements.refusal(pod, node):
            text = f"Slurm job {job.job_id} has a place on node {node}, which Kubernetes refuses: {why}"
            actions += [SetApart(pod, text)] if others else _tell(view, [pod], "NodeRefused", text)
            continue
        binds, full = _bind(view, gang, job, [pod], assigned, occupancy)
        if full is not None:
            text, until = f"Slurm job {job.job_id} has node {full.node}: {full.message()}", max(until, full.until)
            actions += _tell(view, [pod], "NodeBusy", text)
            blocked.append(SetApart(pod, text))
        elif waits := volume_waits.of_members(view, [pod], assigned, occupancy):
            occupancy.withdraw(len(binds))
            text = waits[0][1].message
            actions += _bind_volumes(view, waits)
        elif (claims := view.states.get(pods.uid(pod), NEW).claim_wait) is not None:
            text = claims[1]
            actions += _tell(view, [pod], *claims) or _later(binds)
        else:
            actions += _later(binds)
            binds_some = True
    if text and not gang.running and not binds_some:
        return _wait(view, gang, state, job, actions, text, until)
    if blocked and others:
        over, state = busy(view, state, until)
        return (blocked if over else actions), state
    if not isinstance(state.phase, Allocated):
        state = replace(state, phase=Allocated(failure_of(state.phase)))
    return actions, state


def _later(binds: list[Bind]) -> list[Bind]:
    return [replace(bind, later=True) for bind in binds]


def _bind_volumes(view: SchedulerView, waits: list[tuple[Pod, VolumeWait]]) -> list[Action]:
    """Return the actions that bind the claims of the members, or that say what each member waits for."""
    actions: list[Action] = []
    for pod, wait in waits:
        if wait.writes:
            actions.append(BindVolumes(pod, wait.writes))
        else:
            actions += _tell(view, [pod], wait.reason, wait.message)
    return actions


def _placed(gang: Gang, assigned: _Places) -> list[Pod]:
    return [pod for pod in gang.waiting if pods.uid(pod) in assigned]


def _bind(
    view: SchedulerView, gang: Gang, job: Job, members: list[Pod], assigned: _Places, occupancy: PlannedOccupancy
) -> tuple[list[Bind], full_nodes.FullNode | None]:
    """Plan the bindings of the members; stop at the first node without room, and return it."""
    binds: list[Bind] = []
    sharing = gangs.sharing(gang, job, members)
    for pod in members:
        slurm_node = assigned[pods.uid(pod)]
        node = view.placements.by_slurm_name[slurm_node]
        occupant = occupancy.occupant(pod, node.name)
        full = full_nodes.find(occupant, node, occupancy, view.snapshot)
        if full is not None:
            return binds, full
        occupancy.plan(occupant)
        component = job.component_on(slurm_node) if job.parts else 0
        share = sharing[pods.uid(pod)]
        binds.append(Bind(pod, job.job_id, node.name, job.start_time, slurm_node, component, share))
    return binds, None


def _wait(
    view: SchedulerView, gang: Gang, state: PodState, job: Job, actions: list[Action], text: str, until: float = 0
) -> _Steps:
    """Return the ``actions`` of a wait; give the allocated job back after a limited time."""
    over, state = busy(view, state, until)
    if over:
        text = f"after {view.config.busy_node_timeout:.0f} s: {text}"
        return [GiveBack(gang.waiting[0], job.job_id, text, gang)], state
    return actions, state
