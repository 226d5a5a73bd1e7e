"""Allocates the ResourceClaims of pods on the devices that Slurm has chosen, before the pods are bound.

podbridge writes what the Kubernetes scheduler writes: the claim of extended resources, the finalizer, the allocation
with the reservation, and ``extendedResourceClaimStatus`` of the pod. The release is the work of the controller
``resourceclaim`` of kube-controller-manager: when the pod has ended or is deleted, it removes the reservation and the
allocation, and deletes claims that were created for the pod.

A claim that a pod names (``resourceClaimName``) is used by this pod alone, or by all members of a gang. All of these
members are on one node, and its devices belong to the job of the gang until the last member has ended.

Crash windows. Each write can be repeated: the name of a created claim follows from the UID of the pod, and an
allocation with the pod's reservation is kept if its devices belong to the pod's job. Otherwise it is removed, here or
by the next submission: the devices of a lost job may belong to another job already. The claims of all members of a gang
are allocated before the first member is bound, so a crash between two bindings leaves claims that are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from bridge import clock as clocks
from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.kube.kube_client import KubeClient
from bridge.slurm.job_resources import NodeResources
from bridge.slurm.models import JobRequest
from bridge.slurm.slurm_client import SlurmClient
from bridge.workload import links, pods
from bridge.workload.devices import claimed_devices, extended_claims
from bridge.workload.devices.claimed_devices import (
    Demand,
    Device,
    DevicesNotReadyError,
    UnsupportedClaimError,
    WrongDevicesError,
)
from scheduler.devices import claim_rules
from scheduler.devices.claim_store import ClaimStore
from scheduler.devices.taken_devices import TakenDevices
from scheduler.group_actions import Bind

Object = dict[str, Any]
Pod = Mapping[str, Any]
Classes = Callable[[str | None], Mapping[str, str]]
"""Returns the classes that provide extended resources on a Slurm node, or on any (``None``): resource -> class."""


@dataclass(slots=True)
class _Plan:
    """One claim, the pods that use it, and the devices that may be allocated to it, by the name of the request."""

    claim: Object
    pods: list[Pod]
    node: str
    requests: Sequence[claimed_devices.DeviceRequest]
    classes: Mapping[str, Object]
    offered: Mapping[str, Sequence[Device]]

    @property
    def uid(self) -> str:
        return str(self.claim["metadata"]["uid"])

    @property
    def is_kept(self) -> bool:
        """Whether the present allocation is of the pods' job and in use by it."""
        allocated = claimed_devices.results(self.claim)
        usable = {device.key for devices in self.offered.values() for device in devices}
        return bool(allocated) and set(allocated) <= usable and bool(claim_rules.users(self.claim))


class Claims:
    """Allocates the claims of pods; ``kube`` is fenced, and ``applied`` gets each pod that it changes. Thread-safe.

    One allocation runs at a time on a node, so that two pods of one job never get the same device. Every device is in
    the ResourceSlice of one node.
    """

    def __init__(
        self,
        kube: KubeClient,
        slurm: SlurmClient,
        config: Config,
        clock: Clock,
        classes: Classes = lambda _: {},
        applied: Callable[[Object], object] = lambda _: None,
        taken: TakenDevices | None = None,
    ) -> None:
        self._classes = classes
        self._store = ClaimStore(kube, applied, taken)
        self._slurm = slurm
        self._table = config.device_classes
        self._clock = clock
        self._locks: dict[str, threading.Lock] = {}
        """Locks of nodes; their own lock guards them."""
        self._lock = threading.Lock()

    def add_to(self, request: JobRequest, members: Sequence[Pod]) -> JobRequest:
        """Return the job request of a pod or of a gang without a job, with the CPUs and gres of its claims.

        ``members`` is the pod, or the waiting pods of the gang. An allocation of an earlier job is removed. Raises
        :class:`~bridge.errors.UntranslatableError` if Slurm cannot satisfy the claims.
        """
        anywhere = self._classes(None)
        if not any(extended_claims.wants_devices(member, anywhere) for member in members):
            return request
        version = self._slurm.version
        if not version.allocations:
            raise UnsupportedClaimError(
                f"resource claims need Slurm's API v0.0.44 or later, which shows the devices of a job; slurmrestd "
                f"serves {version.name}"
            )
        member = links.membership(members[0])
        claim_by_uid: dict[str, Object] = {}
        own_demands: list[Demand] = []
        shared_uids: list[Collection[str]] = []
        for pod in members:
            own_requests, pod_shared_uids = list[claimed_devices.DeviceRequest](), set[str]()
            for claim, is_own in self._store.of_pod(pod):
                claim_by_uid[claim["metadata"]["uid"]] = claim
                if is_own or member is None:
                    own_requests += claimed_devices.requests(claim)
                else:
                    pod_shared_uids.add(claim["metadata"]["uid"])
            # the resources that a class provides are in the request already, by the table of gres
            if (extended := claim_rules.of_extended_resources(pod, {})) is not None:
                own_requests += claimed_devices.requests(extended)
            if (extended := claim_rules.of_extended_resources(pod, anywhere)) is not None and (
                existing := self._store.existing(extended, pod)
            ) is not None:
                claim_by_uid[existing["metadata"]["uid"]] = existing
            own_demands.append(self._demand(own_requests))
            shared_uids.append(pod_shared_uids)
        shared_demand = self._demand(
            [
                device_request
                for uid in sorted(set().union(*shared_uids))
                for device_request in claimed_devices.requests(claim_by_uid[uid])
            ]
        )
        for claim in claim_by_uid.values():
            claim_rules.check_free(claim, members)
        if member is not None:
            claim_rules.check_members(
                request,
                members,
                own_demands,
                shared_uids,
                [claim_by_uid[uid] for uid in shared_uids[0]],
                shared_demand,
                member.size,
            )
        for claim in claim_by_uid.values():
            if (claim.get("status") or {}).get("allocation"):  # Slurm may have given these devices to another job
                self._store.deallocate(claim)
        demand = claim_rules.sum_of(own_demands[0], shared_demand, 1 if member is None else request.tasks_per_node)
        named_gres = {expression.split(":")[0] for expression in request.gres}
        for kind in demand.gres:
            if kind.split(":")[0] in named_gres:
                raise UnsupportedClaimError(
                    f"gres {kind.split(':')[0]} is requested by a resource claim and by an annotation or an extended "
                    f"resource; allowed: one of them"
                )
        gres = tuple(f"{kind}:{count}" for kind, count in sorted(demand.gres.items()))
        return replace(request, cpus=max(request.cpus, demand.cpus), gres=(*request.gres, *gres))

    def allocate(self, binds: Sequence[Bind]) -> None:
        """Allocate the claims of pods of one job, each on the node of its binding; all of them before the first bind.

        Does nothing for pods without claims. Raises
        :class:`~bridge.workload.devices.claimed_devices.WrongDevicesError` or :class:`UnsupportedClaimError` if the
        job cannot be used, :class:`~bridge.workload.devices.claimed_devices.DevicesNotReadyError` and ``Kube*``,
        ``Slurm*`` errors if the same call may succeed later.
        """
        for bind in binds:
            if (bind.pod.get("status") or {}).get("extendedResourceClaimStatus") and self._extended_of(bind) is None:
                self._store.withdraw(bind.pod)
        binds = [bind for bind in binds if extended_claims.wants_devices(bind.pod, self._classes(bind.slurm_node))]
        if not binds:
            return
        resources_by_node: dict[str, NodeResources] = {}
        for job_id in sorted({bind.component or bind.job_id for bind in binds}):
            resources_by_node |= self._slurm.resources(job_id)  # two components share no node
        for bind in binds:
            if bind.slurm_node not in resources_by_node:
                raise WrongDevicesError(f"Slurm job {bind.job_id} has no resources on node {bind.slurm_node}")
        nodes = sorted({bind.node for bind in binds})  # every call locks several nodes in the same order
        with ExitStack() as locks:
            for node in nodes:
                with self._lock:
                    lock = self._locks.setdefault(node, threading.Lock())
                locks.enter_context(lock)
            devices_by_node = {node: self._store.devices(node) for node in nodes}
            # under the locks: another worker may just have allocated devices of these nodes
            taken = self._store.taken(device for devices in devices_by_node.values() for device in devices)
            plans: dict[str, _Plan] = {}
            for bind in binds:
                self._plan(bind, resources_by_node[bind.slurm_node], devices_by_node[bind.node], plans)
            # all are released first: a member may have to get the devices that another one had in an earlier place
            for plan in plans.values():
                if not plan.is_kept and claimed_devices.results(plan.claim):
                    _check_left(plan)
                    plan.claim = self._store.deallocate(plan.claim)
                    taken = {key: uid for key, uid in taken.items() if uid != plan.uid}
            for plan in plans.values():
                self._allocate(plan, taken)
            for bind in binds:
                if self._extended_of(bind) is not None:
                    self._store.report(bind.pod, self._classes(bind.slurm_node))

    def _extended_of(self, bind: Bind) -> Object | None:
        return claim_rules.of_extended_resources(bind.pod, self._classes(bind.slurm_node))

    def _plan(self, bind: Bind, resources: NodeResources, devices: Sequence[Device], plans: dict[str, _Plan]) -> None:
        """Add the claims of one pod to ``plans`` (UID of a claim -> plan)."""
        pod, member = bind.pod, links.membership(bind.pod)
        own_plans, shared_plans = list[_Plan](), list[_Plan]()
        claims = self._store.of_pod(pod)
        if (extended := self._extended_of(bind)) is not None:
            # may be repeated after a crash: the name of the claim follows from the UID of the pod
            claims.append((self._store.create(extended, pod), True))
        for claim, is_own in claims:
            plan = plans.get(claim["metadata"]["uid"]) or self._planned(claim, bind.node, resources, devices)
            if plan.node != bind.node:
                raise WrongDevicesError(
                    f"ResourceClaim {claim['metadata']['name']} has its devices on node {plan.node}, and pod "
                    f"{pods.key(pod)} is on node {bind.node}"
                )
            if is_own or member is None:
                claim_rules.check_free(claim, [pod])
                own_plans.append(plan)
            else:
                shared_plans.append(plan)
            plan.pods.append(pod)
            plans[plan.uid] = plan
        if member is not None:
            self._check_share(pod, own_plans, shared_plans, bind.sharing)

    def _planned(self, claim: Object, node: str, resources: NodeResources, devices: Sequence[Device]) -> _Plan:
        requests = claimed_devices.requests(claim)
        claimed_devices.demand(requests, self._table)  # every class is mapped
        classes = {request.name: self._store.device_class(request.device_class) for request in requests}
        offered: dict[str, list[Device]] = {}
        for request in requests:
            matches = claimed_devices.class_selector(classes[request.name])
            of_class = [device for device in devices if matches(device)]
            offered[request.name] = claimed_devices.chosen(of_class, self._table[request.device_class], resources)
        return _Plan(claim, [], node, requests, classes, offered)

    def _check_share(self, pod: Pod, own_plans: Sequence[_Plan], shared_plans: Sequence[_Plan], places: int) -> None:
        """Raise if the pod would take devices of other members on its node, of which there are ``places``."""
        own_demand = claimed_devices.demand((request for plan in own_plans for request in plan.requests), self._table)
        shared_demand = claimed_devices.demand(
            (request for plan in shared_plans for request in plan.requests), self._table
        )
        offered: dict[str, set[tuple[str, str, str]]] = {}
        for plan in (*own_plans, *shared_plans):
            for request in plan.requests:
                keys = {device.key for device in plan.offered[request.name]}
                offered.setdefault(self._table[request.device_class], set()).update(keys)
        for kind, keys in offered.items():
            needed = own_demand.of(kind) * places + shared_demand.of(kind)
            if needed > len(keys):
                raise WrongDevicesError(
                    f"the claims of pod {pods.key(pod)} request {own_demand.of(kind)} devices ({kind}), and its place "
                    f"in the job has {(len(keys) - shared_demand.of(kind)) // places}"
                )

    def _allocate(self, plan: _Plan, taken: dict[tuple[str, str, str], str]) -> None:
        """Allocate one claim, and add its devices to ``taken`` (key of the device -> UID of its claim)."""
        claim = plan.claim
        users = list((claim.get("status") or {}).get("reservedFor") or ())
        user_uids = claim_rules.users(claim)
        new_users = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pods.uid(pod)}
            for pod in plan.pods
            if pods.uid(pod) not in user_uids
        ]
        if len(users) + len(new_users) > claim_rules.MOST_USERS:
            raise DevicesNotReadyError(
                f"ResourceClaim {claim['metadata']['name']} has {claim_rules.MOST_USERS} users already"
            )
        if plan.is_kept:
            if new_users:
                self._store.write(claim, {"reservedFor": [*users, *new_users]})
            return
        unavailable = {key for key, owner in taken.items() if owner != plan.uid}
        picked: dict[str, list[Device]] = {}
        for request in plan.requests:
            picked[request.name] = claimed_devices.pick(request, plan.offered[request.name], unavailable, plan.node)
            unavailable |= {device.key for device in picked[request.name]}
        now = clocks.rfc3339(self._clock.time())
        # before the allocation: without the finalizer, a claim can be deleted while its devices are in use
        claim = self._store.protect(claim)
        allocation = claimed_devices.allocation(picked, claim, plan.classes, plan.node, now)
        self._store.write(claim, {"allocation": allocation, "reservedFor": [*users, *new_users]})
        taken.update({device.key: plan.uid for devices in picked.values() for device in devices})

    def _demand(self, requests: Sequence[claimed_devices.DeviceRequest]) -> Demand:
        for name in {request.device_class for request in requests}:
            claimed_devices.class_selector(self._store.device_class(name))
        return claimed_devices.demand(requests, self._table)


def _check_left(plan: _Plan) -> None:
    """Raise while pods of an earlier job of the gang use the claim."""
    if others := claim_rules.users(plan.claim) - {pods.uid(pod) for pod in plan.pods}:
        name = plan.claim["metadata"]["name"]
        raise DevicesNotReadyError(f"ResourceClaim {name} is still reserved for {len(others)} pods of another job")
