"""What a pod whose job is allocated waits for: the start of its node, room there, volumes; and for how long. Pure.

``docs/developers/architecture.md`` has the states. Volumes are checked before the submission, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.slurm import states
from bridge.slurm.models import Job, Snapshot
from bridge.workload import pods, resources
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.group_actions import Action, CancelAndResubmit, Pod
from scheduler.group_states import NODE, NODE_START, GroupState, NodeWait, Wait
from scheduler.nodes.occupancy import Occupant, PlannedOccupancy
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView, Steps
from scheduler.volumes.volume_nodes import Write

WAKE_LIMIT = 900.0
"""Seconds for which a job keeps a node that Slurm starts until its kubelet is ready. Slurm itself requeues or ends the
job after its ResumeTimeout."""
NAMED = 3
"""Largest number of pods in a message."""
RESERVE = (
    "Slurm counts more room than Kubernetes: for CPUs and memory, set CoreSpecCount and MemSpecLimit in slurm.conf"
)
NOT_READY, IN_USE, BINDING = "VolumeNotReady", "VolumeInUse", "VolumeBinding"
"""Reasons of the condition PodScheduled=False."""


# --- for how long -----------------------------------------------------------------------------------------------------
def starting(view: SchedulerView, state: GroupState, nodes: Iterable[str]) -> tuple[str, GroupState]:
    """Return what is missing until the allocated Slurm nodes can run a pod, and the next state; empty if nothing is.

    Only for nodes that Slurm's power saving starts, and for ``WAKE_LIMIT`` seconds.
    """
    for node in nodes:
        missing = view.placements.starting(node)
        # a node that has started is no longer asleep in Slurm, but its kubelet may need longer: the state remembers it
        if missing and (state.starting_since is not None or view.placements.comes_and_goes(node)):
            since = state.starting_since if state.starting_since is not None else view.now
            if state.node_wait is None or state.node_wait.what != NODE_START:
                state = replace(state.allocated(view.now, NodeWait(NODE_START, view.now)), starting_since=since)
            if view.now - since < WAKE_LIMIT:
                return missing, state
    return "", state


def busy(view: SchedulerView, state: GroupState, until: float = 0) -> tuple[bool, GroupState]:
    """Return whether an allocated job has waited too long for its pods, and the next state.

    The time counts from the start of the wait, or from ``until`` (seconds since the epoch), the end of the last grace
    period of the pods that have to end. The user of such a pod can choose a grace period of years: no more than
    ``maxGracePeriod`` from the start of the wait counts.
    """
    wait = state.node_wait
    if wait is None or wait.what != NODE:
        wait = NodeWait(NODE, view.now)
        state = state.allocated(view.now, wait)
    # `until` comes from deletionTimestamp, so the comparison is in time of day
    wait_began = view.time - (view.now - wait.since)
    grace_end = min(max(until, wait_began), wait_began + view.config.max_grace_period)
    is_overdue = view.time >= grace_end + view.config.busy_node_timeout
    return is_overdue, state


def keep_job(
    view: SchedulerView, group: Group, state: GroupState, job: Job, actions: list[Action], text: str, until: float = 0
) -> Steps:
    """Return the ``actions`` of a wait; after a limited time, cancel the allocated job instead."""
    is_overdue, state = busy(view, state, until)
    if is_overdue:
        text = f"after {view.config.busy_node_timeout:.0f} s: {text}"
        return [CancelAndResubmit(group, job.job_id, text)], state
    return actions, state


# --- room -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FullNode:
    """A node without room for a pod.

    ``lacking`` are resources and host ports, with what the pods there take of them. ``ending`` are the pods on the node
    that are about to end, ``others`` the other pods there that request any of these resources.
    """

    node: str
    lacking: Resources
    ending: tuple[Occupant, ...]
    others: tuple[Occupant, ...]

    @property
    def until(self) -> float:
        """The end of the last grace period in seconds since the epoch; 0 if no pod is deleted."""
        return max((occupant.until for occupant in self.ending), default=0)

    def lack(self) -> str:
        """Return what the node lacks as text, e.g. ``too little cpu, pods``."""
        ports = [f"{name} in use" for name in self.lacking if resources.is_host_port(name)]
        little = ", ".join(name for name in self.lacking if not resources.is_host_port(name))
        return ", ".join([f"too little {little}", *ports] if little else ports)

    def names(self) -> str:
        """Return the names of the pods whose end would make room, at most ``NAMED`` of them."""
        named = self.ending or self.others
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        return ", ".join(occupant.key for occupant in named[:NAMED]) + more

    def message(self) -> str:
        """Return the message of the pod's condition."""
        if self.ending:
            return f"{self.lack()} until these pods have ended: {self.names()}"
        return f"{self.lack()} beside {self.names()}. {RESERVE}"

    def is_full_without(self, members: Iterable[Pod]) -> bool:
        """Whether other pods than these are on the node too."""
        return bool({occupant.uid for occupant in (*self.ending, *self.others)} - set(map(pods.uid, members)))

    def refusal(self) -> str:
        """Return why the job of a pod is cancelled although no pod of the node is about to end."""
        return f"node {self.node} has {self.lack()} beside {self.names()}"


def find_full(pod: Occupant, node: NodeView, occupancy: PlannedOccupancy, snapshot: Snapshot) -> FullNode | None:
    """Return the node as full if its kubelet would reject the pod; ``None`` if the pod fits."""
    lacking = occupancy.lacking(pod.node, pod.requests, node.offered or {})
    if not lacking:
        return None
    occupants = [
        occupant
        for occupant in occupancy.of(node.name)
        if occupant.uid != pod.uid and any(name in occupant.requests for name in lacking)
    ]
    occupants.sort(key=lambda occupant: occupant.key)
    ending = tuple(occupant for occupant in occupants if _ends(occupant, snapshot))
    return FullNode(node.name, lacking, ending, tuple(occupant for occupant in occupants if occupant not in ending))


def _ends(occupant: Occupant, snapshot: Snapshot) -> bool:
    """Whether a pod is about to end: it is deleted, or its Slurm job is over."""
    if occupant.until or not occupant.ours:
        return occupant.until > 0
    jobs = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(occupant.link_key, ())]
    # true without any job: Slurm forgets ended ones after MinJobAge
    return all(observed.missing or states.end_of(observed.job.states) is not None for observed in jobs)


def is_better_elsewhere(view: SchedulerView, members: Sequence[Pod], nodes: int, full: FullNode) -> bool:
    """Whether a job of so many nodes is requested again without its full node: other nodes may have room now.

    Slurm packs jobs, and knows nothing of what the node lacks: it would allocate the full node to each next job. A node
    whose pods are about to end is waited for. The members of a group that do not fit together fit on no node.
    """
    if full.ending or not full.is_full_without(members) or not view.version.exclude_nodes:
        return False
    return len(view.placements.of_all(members, view.config.partition).eligible) > nodes


# --- volumes ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class VolumeWait:
    """Why a pod waits for a volume, and the ``writes`` that bind its claims, if they are due."""

    wait: Wait
    writes: tuple[Write, ...] = ()


def volumes_before_submission(view: SchedulerView, members: Sequence[Pod], occupancy: PlannedOccupancy) -> Wait | None:
    """Return why no job may be submitted for the members of a group; ``None`` if one may be."""
    for pod in members:
        if problem := view.placements.needs(pod).problem:
            return Wait(NOT_READY, problem)
        if used := _in_use(view, pod, occupancy):
            return used
    shared = Counter(claim for pod in members for claim in view.placements.needs(pod).exclusive)
    for claim, count in shared.items():
        if count > 1:
            text = f"{count} pods of one group use PersistentVolumeClaim {claim}, whose access mode is ReadWriteOncePod"
            return Wait(IN_USE, text)
    return None


def _volumes_before_bind(
    view: SchedulerView, pod: Pod, slurm_node: str, occupancy: PlannedOccupancy
) -> VolumeWait | None:
    """Return what the pod waits for on the allocated node, which its claims allow; ``None`` if it can be bound."""
    needs = view.placements.needs(pod)
    if needs.problem:
        return VolumeWait(Wait(NOT_READY, needs.problem))
    if used := _in_use(view, pod, occupancy):
        return VolumeWait(used)
    names = (*(claim.key[1] for claim in needs.unbound), *needs.binding)
    if not names:
        return None
    node = view.placements.by_slurm_name[slurm_node].name
    text = f"waits until PersistentVolumeClaim {', '.join(sorted(names))} is bound to a volume on node {node}"
    return VolumeWait(Wait(BINDING, text), view.placements.volume_writes(pod, slurm_node))


def volumes_before_bind(
    view: SchedulerView, members: Iterable[Pod], nodes: Mapping[str, str], occupancy: PlannedOccupancy
) -> list[tuple[Pod, VolumeWait]]:
    """Return the members of a group that wait for a volume; ``nodes`` are their Slurm nodes by UID."""
    waits = ((pod, _volumes_before_bind(view, pod, nodes[pods.uid(pod)], occupancy)) for pod in members)
    return [(pod, wait) for pod, wait in waits if wait is not None]


def _in_use(view: SchedulerView, pod: Pod, occupancy: PlannedOccupancy) -> Wait | None:
    for claim in view.placements.needs(pod).exclusive:
        users = [occupant.key for occupant in occupancy.users(claim) if occupant.uid != pods.uid(pod)]
        if users:
            text = f"PersistentVolumeClaim {claim} is for one pod (ReadWriteOncePod), and {users[0]} uses it"
            return Wait(IN_USE, text)
    return None
