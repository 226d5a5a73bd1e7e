"""The request for the job of a group, on the nodes that fit now and with the devices of its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.control.control_loop import Dependencies
from bridge.errors import BridgeError, UntranslatableError
from bridge.slurm import states
from bridge.slurm.models import JobRequest
from bridge.workload import job_limits, links, translate
from bridge.workload.devices.claimed_devices import UnsupportedClaimError
from scheduler.devices.claims import Claims
from scheduler.member_places import together
from scheduler.nodes.placement import Placement, Placements
from scheduler.pod_group import Group

Pod = Mapping[str, Any]


class LostJobsError(BridgeError):
    """Slurm lost the last jobs of a pod, or their comments. podbridge would not find another job either."""

    reason = "SlurmJobsLost"
    hint = "does a plugin of slurmctld change admin_comment?"


class NoNodeError(UntranslatableError):
    """Kubernetes would refuse every node that Slurm could allocate."""


class NoRoomNowError(NoNodeError):
    """Each node that could run the pod is closed, or full of what Slurm does not count."""

    reason = "NoRoomNow"


class JobRequests:
    """Builds the requests; ``claims`` remove allocations of earlier jobs. Thread-safe."""

    def __init__(self, dependencies: Dependencies, claims: Claims) -> None:
        self._config, self._cluster = dependencies.config, dependencies.cluster
        self._slurm, self._poller = dependencies.slurm, dependencies.poller
        self._claims = claims

    def of(self, members: Sequence[Pod], group: Group, placements: Placements) -> JobRequest:
        """Return the request for the waiting ``members`` of a group.

        Members of different shapes get a heterogeneous job, with one component for each shape. If members of one shape
        have too few nodes in common, because they select different ones, each kind of them gets a component. Raises
        :class:`NoNodeError`, and the errors of :mod:`bridge.workload.translate`, :mod:`bridge.workload.job_limits` and
        :meth:`Claims.add_to`.
        """
        request = self._build(members, group, placements)
        job_limits.check(request, members)
        return request

    def _build(self, members: Sequence[Pod], group: Group, placements: Placements) -> JobRequest:
        if group.ref is None:
            return self._claims.add_to(self._of_shape(group, members, 1, 1, placements), members)
        succeeded = group.succeeded()
        size, minimum = max(group.size - succeeded, len(members)), max(group.minimum - succeeded, 1)
        shapes = links.by_shape(members)
        # only then: Slurm starts heterogeneous jobs only by backfill, and their components share no node
        if not self._have_nodes(list(shapes.values()), minimum, placements):
            shapes = links.by_shape(members, links.placed_shape)
        if len(shapes) == 1:
            return self._claims.add_to(self._of_shape(group, members, size, minimum, placements), members)
        return self._heterogeneous(group, shapes, placements)

    def _heterogeneous(self, group: Group, shapes: Mapping[str, list[Pod]], placements: Placements) -> JobRequest:
        """Return the request for a job with one component for each shape; ``shapes`` are the members of each."""
        _check_shared_claims(list(shapes.values()))
        components = [
            (_shaped(self._of_shape(group, alike, len(alike), len(alike), placements), shape), alike)
            for shape, alike in shapes.items()
        ]
        # Slurm looks for the nodes of one component after the other and never goes back: the most demanding one first
        components.sort(key=lambda pair: self._demand_key(pair[0], pair[1], placements))
        requests, members = [request for request, _ in components], [alike for _, alike in components]
        joined = translate.heterogeneous(requests, self._config, self._slurm.version)
        self._check_sum(requests, [self._place(alike, placements)[0] for alike in members])
        parts = (replace(joined, components=()), *joined.components)
        with_claims = [self._claims.add_to(part, alike) for part, alike in zip(parts, members, strict=True)]
        return replace(with_claims[0], components=tuple(with_claims[1:]))

    def _have_nodes(self, shapes: Sequence[Sequence[Pod]], minimum: int, placements: Placements) -> bool:
        """Whether each shape has enough nodes that fit all its members; a single one needs ``minimum`` places."""
        for alike in shapes:
            fewest = math.ceil((minimum if len(shapes) == 1 else len(alike)) / together(alike))
            if len(self._place(alike, placements)[0].eligible) < fewest:
                return False
        return True

    def _of_shape(
        self, group: Group, members: Sequence[Pod], size: int, minimum: int, placements: Placements
    ) -> JobRequest:
        """Return the request for ``size`` members of one shape, of which at least ``minimum`` start."""
        version, config, cluster = self._slurm.version, self._config, self._cluster
        placement, longest = self._place(members, placements)
        excluded = placement.excluded if version.exclude_nodes else ()
        if group.ref is None:
            self._check_nodes(placement)
            return translate.request(members[0], config, version, cluster, excluded, longest)
        shape = translate.GangShape(group.ref, size, minimum, together(members), group.succeeded())
        self._check_nodes(placement, shape.fewest)
        return translate.gang_request(members, shape, config, version, cluster, excluded, longest)

    def _demand_key(self, request: JobRequest, members: Sequence[Pod], placements: Placements) -> tuple[object, ...]:
        """Return a key that is smaller the fewer nodes fit, and the more a node of the component has to offer."""
        eligible = len(self._place(members, placements)[0].eligible)
        cpus = request.cpus * request.tasks_per_node
        return eligible, not request.exclusive, not request.gres, -cpus, -request.memory_mib

    def _place(self, members: Sequence[Pod], placements: Placements) -> tuple[Placement, int]:
        """Return the nodes that fit all members, and the largest time limit in minutes."""
        partition = self._config.partition
        return placements.of_all(members, partition), placements.longest(members[0], partition)

    def _check_nodes(self, placement: Placement, fewest: int = 1) -> None:
        """Raise :class:`NoNodeError` if fewer than ``fewest`` nodes fit, or if Slurm could allocate a refused node.

        Slurm can do so only over an API version that cannot exclude nodes.
        """
        if not placement.eligible and placement.may_open():
            raise NoRoomNowError(f"no node is open or has room: {placement.summary()}")
        if not placement.eligible:
            raise NoNodeError(f"no node fits: {placement.summary() or 'Slurm has none in the partition'}")
        if len(placement.eligible) < fewest:
            others = f"; the others: {placement.summary()}" if placement.refused else ""
            raise NoNodeError(f"the group needs {fewest} nodes, but only {len(placement.eligible)} fit{others}")
        if self._slurm.version.exclude_nodes:
            return
        nodes = self._poller.snapshot.nodes
        open_nodes = [n for n in placement.refused if n in nodes and not states.is_drained(nodes[n].states)]
        if open_nodes:
            reasons = ", ".join(f"{name} ({placement.refused[name]})" for name in open_nodes[:5])
            raise NoNodeError(
                f"Slurm could allocate nodes that Kubernetes refuses, and its API {self._slurm.version.name} can't "
                f"exclude them: {reasons}"
            )

    @staticmethod
    def _check_sum(requests: Sequence[JobRequest], placements: Sequence[Placement]) -> None:
        """Raise :class:`NoNodeError` if there are too few nodes: Slurm never puts two components on one node."""
        fewest = sum(request.min_nodes for request in requests)
        fitting = {name for placement in placements for name in placement.eligible}
        if len(fitting) < fewest:
            raise NoNodeError(f"the group needs {fewest} nodes, but only {len(fitting)} fit")


def _shaped(request: JobRequest, shape: str) -> JobRequest:
    """Return the request for a component with this shape in its comment."""
    return replace(request, link=replace(request.link, shape=shape))


def _check_shared_claims(shapes: Sequence[Sequence[Pod]]) -> None:
    """Raise :class:`UnsupportedClaimError` if components share a claim: Slurm never puts them on one node."""
    seen: dict[str, int] = {}
    for number, alike in enumerate(shapes):
        for pod in alike:
            for claim in pod["spec"].get("resourceClaims") or ():
                name = claim.get("resourceClaimName")
                if name and seen.setdefault(name, number) != number:
                    raise UnsupportedClaimError(
                        f"ResourceClaim {name} is shared by members that request different resources: they run on "
                        f"different nodes, and its devices are on one; allowed: members that request the same, or "
                        f"resourceClaimTemplateName"
                    )


def traced(request: JobRequest, traceparent: str) -> JobRequest:
    """Return a request whose comment, and that of each component, has the trace context."""
    components = tuple(traced(component, traceparent) for component in request.components)
    return replace(request, link=replace(request.link, traceparent=traceparent), components=components)
