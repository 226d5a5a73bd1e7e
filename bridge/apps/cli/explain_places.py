"""Where a pod or group may run, for ``podbridge explain`` and the web page: pools, and the colocated nodes.

It is judged by the rules of the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge import names
from bridge.apps.cli.session import SLURM, CommandSession
from bridge.apps.view import node_room, place_list, pod_view
from bridge.apps.view.node_room import Room, SlurmSide
from bridge.apps.view.place_list import PoolFacts
from bridge.apps.view.records import PlaceRecord
from bridge.errors import KubeError
from bridge.slurm import job_words, states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job
from bridge.workload import eligibility, links, places, pods, pool_selection, queue_wait, resources
from bridge.workload.places import Offer
from bridge.workload.resources import Resources
from scheduler.nodes.occupancy import Occupancy, PlannedOccupancy
from scheduler.places import candidates, place_view
from scheduler.places.candidates import Candidate
from scheduler.places.place_view import NamespaceView, PlaceView, Shapes
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import NodeFilter


class _ReadOccupancy(Occupancy):
    """The occupancy of pools as a user may read it: that of a pool is read when a rule needs it."""

    def __init__(self, read: Callable[[str], Resources | None]) -> None:
        super().__init__("")
        self._read = read
        self.known: set[str] = set()

    def used(self, node: str) -> Resources:
        """Return the requests of the pods on a node; nothing if the user may not list them."""
        found = self._read(node)
        if found is not None:
            self.known.add(node)
        return found or {}


class PoolReader:
    """The pools of the cluster, as one command reads them. Raises :class:`~bridge.errors.KubeError`."""

    def __init__(self, session: CommandSession, nodes: Iterable[Mapping[str, Any]] | None = None) -> None:
        """``nodes``: those of the cluster, if they were read already."""
        self._session, self._occupancy = session, _ReadOccupancy(session.requested_on)
        self._messages: dict[str, str] = {}
        self.pools: dict[str, place_view.PoolView] = {}
        for node in filter(pool_selection.is_virtual, session.nodes() if nodes is None else nodes):
            view = eligibility.view(node)
            self.pools[view.name] = place_view.pool_view(node, view)
            self._messages[view.name] = str(eligibility.readiness(node).get("message") or "")
        # the values that only the policy of the scheduler needs are not read
        self._view = PlaceView(
            groups=(),
            pools=self.pools,
            nodes=(),
            occupancy=self._occupancy,
            states={},
            policy="order",
            weights={},
            now=0.0,
            namespace=self._namespace,
            colocated=bool(session.config.slurm_rest_api),
        )
        self._shapes, self._planned = Shapes(self._view), PlannedOccupancy(self._occupancy)

    def candidates(self, pod: pods.Pod) -> dict[str, Candidate]:
        """Return the pools that the pod selects by name, in the order of preference, as the scheduler judges them.

        A pod of a group that gets one job is judged with the other members; those that do not exist yet request the
        same.
        """
        shape, member = self._shapes.of([pod]), links.membership(pod)
        races, stays_because = bool(places.recorded(pod)), ""
        stays = candidates.stays_in_slurm(self._view, shape, pod) and not races
        if member is not None and (stays or candidates.has_gangs(self._view, shape)):
            members = self._session.waiting_members(pod)
            shape = self._shapes.of([*members, *[pod] * (member.minimum - len(members))])
            if stays:
                stays_because = candidates.stays_because([*members, pod])
                races = stays_because == candidates.STAYS_WITHOUT_RACE
                if races and not _is_left_to_slurm(pod):
                    stays_because = ""  # it gets its places once its pods are present
        found = candidates.of(self._view, shape, self._planned, race=races)
        found = [each._replace(problem=each.problem or stays_because) for each in found]
        found = candidates.with_consent(self._view, [pod], found, lambda each: not each.problem)
        return {each.name: each for each in found if each.name != names.LOCAL_POOL}

    def facts(self, pod: pods.Pod) -> dict[str, PoolFacts]:
        """Return what is known of the pools that a pod selects, and of those where it has or had a place."""
        offers = places.offers(self._session.attempt("Events", lambda: self._session.events(pod)) or ())
        found = self.candidates(pod) if not pods.is_bound(pod) else {}
        there = (*found, *places.recorded(pod), str(pod["spec"].get("nodeName") or ""))
        return {
            name: PoolFacts(
                found.get(name),
                name in self._occupancy.known,
                self._messages.get(name, ""),
                self.pools[name].wait if name in self.pools else 0.0,
                offers.get(name, Offer()),
            )
            for name in dict.fromkeys(there)
            if name in self.pools or name in places.recorded(pod)
        }

    def _namespace(self, name: str) -> NamespaceView:
        annotations = self._session.annotations(name)
        # a user who may not read the namespace sees no refusal; the condition of the pod has it
        return NamespaceView({names.POOL_SECRETS: names.ANY_POOL} if annotations is None else annotations)


def _is_left_to_slurm(pod: pods.Pod) -> bool:
    """Whether the scheduler waits for a Slurm job of the pod."""
    return pods.job_id(pod) is not None or pod_view.of(pod).reason.startswith("Slurm")


def of(session: CommandSession, pod: pods.Pod) -> list[PlaceRecord]:
    """Return the places of a pod as :func:`describe` does; empty for a pod of another scheduler."""
    if pod["spec"].get("schedulerName") != session.config.scheduler_name:
        return []
    job, is_here = session.job_of(pod), not pods.is_bound(pod) and pool_selection.of(pod).local
    return describe(session, pod, job, of_nodes(session, pod, storage(session, pod), job) if is_here else ())


def describe(session: CommandSession, pod: pods.Pod, job: Job | None, rooms: Sequence[Room]) -> list[PlaceRecord]:
    """Return the places of a pod that waits, or has waited at several; empty for any other.

    ``rooms`` are the answers of the colocated nodes to a pod that may go there.
    """
    selector, recorded, now = pool_selection.of(pod), places.recorded(pod), time.time()
    row = pod_view.of(pod)
    if not (row.state == pod_view.WAITING or recorded or (row.state == pod_view.STARTING and selector.remote)):
        return []
    reader = session.attempt("pools", lambda: PoolReader(session)) if selector.remote or recorded else None
    found = reader.facts(pod) if reader is not None else dict.fromkeys(recorded, PoolFacts())
    waits_here = selector.local and not row.node
    order = selector.ordered(found) if not row.node else list(found)
    result: list[PlaceRecord] = []
    for name in dict.fromkeys((*order, *found)):
        if name != names.LOCAL_POOL:
            result.append(place_list.pool(pod, name, found[name], now))
        elif not row.node and not session.config.slurm_rest_api:
            result.append(place_list.no_slurm())
        else:
            wait = _slurm_wait(session, now) if waits_here and job is None else 0.0
            result.append(place_list.local(pod, job, rooms, wait, now))
    return result


def _slurm_wait(session: CommandSession, now: float) -> float:
    """Return the expected wait in the colocated Slurm in seconds, from the jobs of this installation; 0: not known."""
    jobs = session.attempt(SLURM, lambda: session.jobs) if session.knows_slurm else None
    return queue_wait.of_slurm(jobs or (), now)


# --- the answers of the colocated nodes ------------------------------------------------------------------------------
def storage(session: CommandSession, pod: pods.Pod) -> Storage | None:
    """Return the storage objects of a pod with claims; ``None`` for any other, or if the user may not list them."""
    if not pod_volumes.claims(pod):
        return None
    try:
        return Storage(session.storage(pod["metadata"]["namespace"]))
    except KubeError:
        return None


def of_nodes(session: CommandSession, pod: pods.Pod, stored: Storage | None, job: Job | None) -> list[Room]:
    """Return the answer of each node, as far as it is known; ``stored`` are the objects of :func:`storage`.

    A job that has its nodes leaves no question: it holds on them what the pod would need.
    """
    if job is not None and states.is_allocated(job.states):
        return []
    requests, slurm = resources.kubelet_requests(pod["spec"]), _slurm_side(session, pod, job)
    nodes = session.attempt("nodes", session.nodes)
    if nodes is None:
        return node_room.rooms_in_slurm(requests, slurm, time.time()) if slurm is not None else []
    allows = NodeFilter(pod_volumes.needs(pod, stored), stored).refusal if stored is not None else lambda _: ""
    own, extended = [node for node in nodes if not pool_selection.is_virtual(node)], session.device_names()
    views = [eligibility.with_devices(view, extended) for view in eligibility.views(own, _taken(session))]
    return node_room.rooms(pod["spec"], requests, views, slurm, time.time(), allows)


def _slurm_side(session: CommandSession, pod: pods.Pod, job: Job | None) -> SlurmSide | None:
    """Return what is known of Slurm for the nodes' answers; ``None`` if nothing is, although there is a Slurm."""
    slurm_nodes = session.known_nodes
    if not slurm_nodes and not session.knows_slurm:
        return None
    # the job of a group has several nodes, and what it has on each is not known before its start
    is_alone = job.link is None or job.link.size == 1 if job is not None else links.membership(pod) is None
    named = job.partition if job is not None else pods.partitions(pod, session.config.partition)
    partitions = frozenset(named.split(",")) - {""}
    return SlurmSide(slurm_nodes, session.node_holders, asks(pod, job) if is_alone else None, partitions)


def asks(pod: pods.Pod, job: Job | None) -> Allotment | None:
    """Return what the job of a pod asks for, by Slurm or by the condition of the pod; ``None``: not known."""
    message = str(pods.condition(pod, names.POD_SCHEDULED).get("message", ""))
    return job.request if job is not None else job_words.read_asked(message)


def _taken(session: CommandSession) -> dict[str, Resources]:
    """Return by node the requests of other schedulers' pods; empty if the user may not list these pods."""

    def count() -> dict[str, Resources]:
        there = Occupancy(session.config.scheduler_name, max_grace=session.config.max_grace_period)
        for pod in session.other_pods():
            there.changed("add", None, pod)
        return there.lasting(0)

    try:
        return session.shared("requests of other pods", count)
    except KubeError:
        return {}
