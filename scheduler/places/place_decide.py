"""The choice of a place for each waiting group that may go to a pool. Pure.

A pod may go to the pools whose taints it tolerates. The policy selects among those that have room now: by the order in
the annotation, by load, or by weight. If the pod may go to the colocated Slurm too, the nodes of this Slurm count as
one more pool. A pool to which the pod's namespace does not send its Secrets is skipped. A pod or group that races is
not bound: it gets places at several pools (:func:`scheduler.places.candidates.select`).

A group of more than one pod gets one pool, which must run groups and have room for all waiting members. Later members
go to the same pool (:mod:`scheduler.gang_ranks`), as do the others once one has won a race. If a later leader could
choose other members for the job, their places are recorded first. If none of the
selected pools runs groups, each member goes to a pool on its own. The colocated Slurm keeps the groups that may have a
job there, unless they race, and those with a member that runs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bridge import names
from bridge.workload import links, places, pods, remote_gangs, resources
from bridge.workload.pool_selection import NO_POOL, PoolSelector
from bridge.workload.remote_gangs import Place
from scheduler import conditions, gang_ranks, member_places, pod_group
from scheduler.decision import Decision, Local, decide_each
from scheduler.gang_ranks import Gang
from scheduler.group_actions import Action, BindToPool, Join, SetPlaces
from scheduler.group_states import Pod, Wait
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.places import candidates
from scheduler.places.place_view import PlaceView, Shape, Shapes
from scheduler.pod_group import Group

DIFFERS = conditions.differs_from_next()
_Results = list[Action | Local]
_Placed = Sequence[tuple[Pod, Place | None]]


def decide(view: PlaceView) -> Decision:
    """Decide for every group that may go to a pool, in the order of their priority; at most one action for each pod."""
    occupancy, shapes = PlannedOccupancy(view.occupancy), Shapes(view)
    results: _Results = []

    def decide_one(group: Group) -> None:
        if not _has_binding(view, group):
            results.extend(_decide_group(view, group, occupancy, shapes))

    results += decide_each(view, lambda group: group.waiting, decide_one)
    actions = [result for result in results if isinstance(result, Action)]
    return Decision(actions, occupancy.planned, local=[result for result in results if isinstance(result, Local)])


def _has_binding(view: PlaceView, group: Group) -> bool:
    """Whether the API server has accepted a Binding that the cache does not show yet."""
    for pod in group.waiting:  # no generator: most groups are bare pods
        state = view.states.get(pods.uid(pod))
        if state is not None and state.bound_at is not None:
            return True
    return False


def _decide_group(view: PlaceView, group: Group, occupancy: PlannedOccupancy, shapes: Shapes) -> _Results:
    if group.ref is None:
        return _choose(view, group, occupancy, shapes.of(group.waiting))
    if (gang := gang_ranks.present(group)) is not None:
        return _join(view, group, gang, occupancy, shapes)
    shape = shapes.of(group.waiting)
    # as long as members without a place in a job run, the others have none to join
    if not candidates.has_gangs(view, shape) or any(not pods.is_deleted(pod) for pod in group.running):
        singles = map(pod_group.of_one, group.waiting)
        return [result for one in singles for result in _choose(view, one, occupancy, shapes.of(one.waiting))]
    if candidates.stays_in_slurm(view, shape, group.waiting[0]) and (group.running or not _requests_race(view, group)):
        return _stay(view, group)
    if pod_group.is_replaced(group):
        return [Join(group)]
    is_at_slurm = any(names.LOCAL_POOL in places.recorded(pod) for pod in group.waiting)
    if (wait := conditions.incomplete(group)) is not None:
        return _leave(view, group, wait.message) if is_at_slurm else [*conditions.due(view, group.waiting, wait)]
    chosen, strangers = member_places.choose_members(group)
    results = _choose(view, chosen, occupancy, shapes.of(chosen.waiting), strangers)
    if is_at_slurm:  # the decision about the job there writes the conditions
        return [
            *[one for one in results if not isinstance(one, Local)],
            *_leave(view, group, "the group has a place there"),
        ]
    return [*conditions.due(view, strangers, DIFFERS), *results]


def _choose(
    view: PlaceView, group: Group, occupancy: PlannedOccupancy, shape: Shape, strangers: Sequence[Pod] = ()
) -> _Results:
    """Choose one pool for all waiting members; ``strangers`` are waiting pods of the group that get no place."""
    pod, selector, members = group.waiting[0], shape.selector, group.waiting
    if not selector.remote:
        return [] if view.colocated else [*conditions.due(view, members, conditions.no_room(NO_POOL, may_open=False))]
    if _wants_race(view, group):
        kept = next(filter(None, map(places.recorded, members)), ())
        selection = _places(view, group, kept, shape, occupancy)
        if kept or len(selection.selected) > 1:
            return _race(view, group, kept, selection, strangers)
    if candidates.stays_in_slurm(view, shape, pod):
        return _stay(view, group)
    # a pod that may have a job at Slurm stays there, if it has no other place
    if pods.uid(pod) in view.at_slurm:
        return []
    # Slurm may start this job at any moment; on a pool, the pod would get a second one
    if shape.local and (pods.job_id(pod) is not None or view.has_job(pods.uid(pod))):
        return []
    if shape.no_room is not None:
        return [*conditions.due(view, members, shape.no_room)]
    return _place(view, group, occupancy, shape, strangers)


def _place(
    view: PlaceView, group: Group, occupancy: PlannedOccupancy, shape: Shape, strangers: Sequence[Pod]
) -> _Results:
    """Bind all waiting members to the pool that the policy chooses, or say why none takes them."""
    members = group.waiting
    found = candidates.of(view, shape, occupancy)
    is_refused = all(each.why for each in found)
    found = candidates.with_consent(view, members, found, lambda each: not each.why)
    refused = {each.name: why for each in found if (why := each.why)}
    open_pools = [each.name for each in found if each.name not in refused]
    if open_pools:
        pool = candidates.choose(view, open_pools, shape.requested, occupancy)
        reason = candidates.explain(view, refused, open_pools)
        if pool == names.LOCAL_POOL:
            return _leave(view, group, reason)
        placed, unrecorded = _begin(view, group, strangers)
        if unrecorded:
            return [SetPlaces(group.key, tuple(unrecorded), (), f"pool {pool}: {reason}")]
        return [_bind(group, placed, pool, reason, occupancy)]
    if any(each.name == names.LOCAL_POOL and not each.problem for each in found):
        return _leave(view, group, "no pool has room now; Slurm queues the pod")
    whom = "the pod" if len(members) == 1 else f"the {len(members)} pods of the group"
    waits = any(each.name != names.LOCAL_POOL and each.may_open for each in found)
    none = f"no pool takes {whom}{' now' if waits else ''}"
    message = f"{none}: {candidates.listed(refused)}" if refused else _nothing(shape.selector)
    wait = conditions.no_room(message, may_open=waits)
    if is_refused:
        shape.no_room = wait
    return [*conditions.due(view, members, wait)]


def _begin(view: PlaceView, group: Group, strangers: Sequence[Pod]) -> tuple[_Placed, _Placed]:
    """Return the members with their places in a new job, and the places to be recorded before the first Binding.

    If the group needs all its pods, each leader binds the oldest first, and one of these Bindings is accepted. If it
    needs fewer, the first Binding of a former leader may be that of another pod, which would wait for others alone.
    """
    members = group.waiting
    if group.ref is None:
        return [(members[0], None)], []
    if len(members) == 1:
        return [(members[0], None)], _unrecorded(strangers, [])
    placed = _ranked(view, group, whole=True)
    if not strangers and group.minimum >= group.size and not any(map(remote_gangs.has_record, members)):
        return placed, []
    # as in a race, the Binding of the pod with rank 0 is the first one, and its successor makes another gang
    placed.sort(key=lambda each: each[1].rank)
    return placed, _unrecorded(strangers, placed)


def _unrecorded(strangers: Sequence[Pod], placed: Iterable[tuple[Pod, Place]]) -> _Placed:
    """Return the places that the pods do not have yet; the strangers get none, so they come first."""
    wanted = [*[(pod, remote_gangs.NOWHERE) for pod in strangers], *placed]
    return [(pod, place) for pod, place in wanted if places.recorded(pod) or not place.is_recorded(pod)]


def _join(view: PlaceView, group: Group, gang: Gang, occupancy: PlannedOccupancy, shapes: Shapes) -> _Results:
    """Bind the waiting members to the pool where the others have their job, whether it has room now or not."""
    if gang.is_ending:
        wait = conditions.ending(len(gang.members), f"the group's last job at pool {gang.pool}")
        return [*conditions.due(view, group.waiting, wait)]
    results, fitting = _Results(), list[Pod]()
    for pod in group.waiting:
        if (obstacle := _obstacle(view, pod, gang, shapes.of([pod]), occupancy)) is None:
            fitting.append(pod)
        else:
            results += conditions.due(view, [pod], obstacle)
    placed = gang_ranks.assign(fitting, group.slots, gang)
    bound = {pods.uid(pod) for pod, _ in placed}
    wait = conditions.full(f"the group's job at pool {gang.pool} ({gang.size} pods)")
    results += conditions.due(view, [pod for pod in fitting if pods.uid(pod) not in bound], wait)
    if placed:
        bind = _bind(group, placed, gang.pool, "the group's job is there", occupancy)
        results.append(replace(bind, grant=gang.grant))
    return results


def _obstacle(view: PlaceView, pod: Pod, gang: Gang, shape: Shape, occupancy: PlannedOccupancy) -> Wait | None:
    """Return why the pod cannot join the group's job now; ``None`` if it can."""
    if not _has_shape(pod, gang, shape):
        return conditions.differs(f"than the pods of the group's job at pool {gang.pool}")
    if gang.pool not in view.pools:
        return conditions.no_room(f"the group's job is at pool {gang.pool}, which has no node", may_open=True)
    # there is room: its place in the job is free
    found = candidates.of_pool(view, gang.pool, shape, occupancy)._replace(full="")
    (found,) = candidates.with_consent(view, [pod], [found], lambda each: not each.why)
    if not (why := found.why):
        return None
    text = f"the group's job is at pool {gang.pool}, which does not take the pod: {why}"
    return conditions.no_room(text, may_open=found.may_open)


def _has_shape(pod: Pod, gang: Gang, shape: Shape) -> bool:
    """Whether the job has a rank for a pod that requests what this one does."""
    if gang.shapes:
        return links.shape(pod) in gang.shapes
    return shape.requested == resources.node_requests(next(iter(gang.members.values()))["spec"])


def _bind(
    group: Group, placed: Sequence[tuple[Pod, Place | None]], pool: str, why: str, occupancy: PlannedOccupancy
) -> BindToPool:
    """Bind pods with their places in the group's job."""
    for pod, _ in placed:
        occupancy.plan(occupancy.occupant(pod, pool))
    return BindToPool(group.key, tuple(placed), pool, why)


def _leave(view: PlaceView, group: Group, why: str) -> _Results:
    """Leave the open members to the colocated Slurm that are not left to it yet: it decides for all of them at once."""
    return [Local(pod, why) for pod in group.open if pods.uid(pod) not in view.at_slurm]


def _stay(view: PlaceView, group: Group) -> _Results:
    """Leave the group to the colocated Slurm, without places at pools."""
    recorded, why = [pod for pod in group.waiting if places.recorded(pod)], candidates.stays_because(group.waiting)
    if not recorded:
        return _leave(view, group, why)
    # the pod whose Binding is the grant first: if a pool has won meanwhile, the others keep their places for it
    recorded.sort(key=gang_ranks.rank)
    return [SetPlaces(group.key, tuple([(pod, None) for pod in recorded]), (), why)]


def _requests_race(view: PlaceView, group: Group) -> bool:
    return bool(view.most_places) and all(map(places.wants_race, group.waiting))


def _wants_race(view: PlaceView, group: Group) -> bool:
    """Whether all waiting members request a race. A member of a group does not race on its own."""
    is_alone = len(group.waiting) == 1 and links.group_of(group.waiting[0]) is not None
    return not is_alone and _requests_race(view, group)


def _places(
    view: PlaceView, group: Group, kept: tuple[str, ...], shape: Shape, occupancy: PlannedOccupancy
) -> candidates.Places:
    """Select the places of a group that races. The colocated Slurm keeps its place: the group may have a job there."""
    if view.has_job(group.key) or any(pods.job_id(pod) is not None for pod in group.waiting):
        kept = *kept, names.LOCAL_POOL  # it had a job there before it raced
    found = candidates.of(view, shape, occupancy, race=True)
    found = candidates.with_consent(view, group.waiting, found, lambda each: not each.problem and not each.silent)
    stays = names.LOCAL_POOL in kept
    found = [each._replace(problem="") if stays and each.name == names.LOCAL_POOL else each for each in found]
    return candidates.select(found, kept, view.most_places)


def _race(
    view: PlaceView,
    group: Group,
    kept: tuple[str, ...],
    selection: candidates.Places,
    strangers: Sequence[Pod],
) -> _Results:
    wait = conditions.racing(selection.selected, candidates.listed(selection.refused))
    if unrecorded := _unrecorded(strangers, []):  # before the others get places: a stranger may be the first of a gang
        return [SetPlaces(group.key, tuple(unrecorded), (), DIFFERS.message)]
    members = [(pod, None) for pod in group.waiting] if len(group.waiting) == 1 else _ranked(view, group)
    changed = [
        (pod, place)
        for pod, place in members
        if places.recorded(pod) != selection.selected or (place is not None and remote_gangs.place_of(pod) != place)
    ]
    if changed:
        return [SetPlaces(group.key, tuple(changed), selection.selected, wait.message)]
    if names.LOCAL_POOL in kept:  # the decision about the job there writes the condition
        return _leave(view, group, wait.message)
    ranked = {pods.uid(pod) for pod, _ in members}
    full = conditions.full(f"the group's job ({len(members)} pods)")
    return [
        *conditions.due(view, [pod for pod in group.waiting if pods.uid(pod) in ranked], wait),
        *conditions.due(view, [pod for pod in group.waiting if pods.uid(pod) not in ranked], full),
    ]


def _ranked(view: PlaceView, group: Group, *, whole: bool = False) -> list[tuple[Pod, Place]]:
    """Return waiting members with their places in the job that is recorded for them, or in a new one.

    The sites may have begun the recorded job, so it must need what these members request; ``whole``: all of them.
    """
    gang = gang_ranks.offered(group.waiting)
    if gang is not None and (not whole or gang.size == len(group.waiting)):
        placed = gang_ranks.assign(group.waiting, group.slots, gang)
        if len(placed) == gang.size and placed[0][1].shapes == gang.shapes:
            return placed
    return gang_ranks.assign(group.waiting, group.slots, Gang("", view.new_gang(), len(group.waiting), {}))


def _nothing(selector: PoolSelector) -> str:
    pools = [name for name in selector.named if name not in (names.LOCAL_POOL, names.ANY_POOL)]
    return f"none of the pools {', '.join(pools)} has a node" if pools else "there is no pool"
