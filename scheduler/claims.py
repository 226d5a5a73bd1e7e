"""Allocates the ResourceClaims of a pod on the devices that Slurm has chosen, before the pod is bound.

podbridge writes what the Kubernetes scheduler writes: the claim of extended resources, the finalizer, the allocation
with the reservation, and ``extendedResourceClaimStatus`` of the pod. The release is the work of the controller
``resourceclaim`` of kube-controller-manager: when the pod has ended or is deleted, it removes the reservation and the
allocation, and deletes claims that were created for the pod.

Crash windows. Each write can be repeated: the name of a created claim follows from the UID of the pod, and an
allocation with the pod's reservation is kept if its devices belong to the pod's job. Otherwise it is removed, here or
by the next submission: the devices of a lost job may belong to another job already.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge import clock as clocks
from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import KubeConflictError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from bridge.slurm.client import SlurmClient
from bridge.slurm.job_resources import NodeResources
from bridge.slurm.models import JobRequest
from bridge.workload import devices, extended_claims, pods
from bridge.workload.devices import Device, DevicesNotReadyError, UnsupportedClaimError, WrongDevicesError
from bridge.workload.translate import UntranslatableError

Object = dict[str, Any]
Pod = Mapping[str, Any]


class ClaimMissingError(UntranslatableError):
    """A claim of the pod does not exist yet."""

    reason = "ResourceClaimMissing"


class Claims:
    """Reads and writes the claims of pods; ``kube`` is fenced. For any thread.

    One allocation runs at a time, so that two pods of one job never get the same device. Each write has the resource
    version of the object that was read as its precondition.
    """

    def __init__(self, kube: KubeClient, slurm: SlurmClient, config: Config, clock: Clock) -> None:
        self._kube = kube
        self._slurm = slurm
        self._table = config.device_classes
        self._clock = clock
        self._lock = threading.Lock()

    def add_to(self, request: JobRequest, members: Sequence[Pod]) -> JobRequest:
        """Return the job request of a pod without a job, with the CPUs and gres of its claims.

        ``members`` is the pod, or the pods of a gang: a gang with claims is refused.

        An allocation of an earlier job of the pod is removed. Raises
        :class:`~bridge.workload.translate.UntranslatableError` if Slurm cannot satisfy the claims.
        """
        if not any(_wants_devices(member) for member in members):
            return request
        if len(members) > 1:
            raise UnsupportedClaimError(
                "resource claims in pods of a group are not supported: one job has all its pods"
            )
        (pod,) = members
        version = self._slurm.version
        if not version.allocations:
            raise UnsupportedClaimError(
                f"resource claims need Slurm's API v0.0.44 or later, which shows the devices of a job; slurmrestd "
                f"serves {version.name}"
            )
        asked: list[devices.Request] = []
        for claim in self._of_pod(pod):
            _check_free(claim, pod)
            asked += devices.requests(claim)
            if (claim.get("status") or {}).get("allocation"):
                self._deallocate(claim)
        if (extended := _extended(pod)) is not None:
            asked += devices.requests(extended)
            if (existing := self._existing(extended, pod)) is not None and devices.results(existing):
                self._deallocate(existing)
        demand = devices.demand(asked, self._table)
        for name in {one.device_class for one in asked}:
            devices.class_selector(self._class(name))
        named = {expression.split(":")[0] for expression in request.gres}
        for kind in demand.gres:
            if kind.split(":")[0] in named:
                raise UnsupportedClaimError(
                    f"gres {kind.split(':')[0]} is requested by a resource claim and by an annotation or an extended "
                    f"resource; allowed: one of them"
                )
        gres = tuple(f"{kind}:{count}" for kind, count in sorted(demand.gres.items()))
        return replace(request, cpus=max(request.cpus, demand.cpus), gres=(*request.gres, *gres))

    def allocate(self, pod: Pod, job_id: int, node: str, slurm_node: str) -> None:
        """Allocate the claims of a pod on its node. Does nothing for a pod without claims.

        Raises :class:`~bridge.workload.devices.WrongDevicesError` or :class:`UnsupportedClaimError` if the job cannot
        be used, :class:`~bridge.workload.devices.DevicesNotReadyError` and ``Kube*``, ``Slurm*`` errors if the same
        call may succeed later.
        """
        if not _wants_devices(pod):
            return
        given = self._slurm.resources(job_id).get(slurm_node)
        if given is None:
            raise WrongDevicesError(f"Slurm job {job_id} has no resources on node {slurm_node}")
        with self._lock:
            slices = self._kube.get(RESOURCE_SLICES.path(), {"fieldSelector": f"spec.nodeName={node}"})["items"]
            found = devices.of_node(slices, node)
            taken = {
                key: claim["metadata"]["uid"]
                for claim in self._kube.get(RESOURCE_CLAIMS.path())["items"]
                for key in devices.results(claim)
            }
            for claim in self._of_pod(pod):
                _check_free(claim, pod)
                self._allocate(claim, pod, node, given, found, taken)
            if (extended := _extended(pod)) is not None:
                self._allocate(self._create(extended, pod), pod, node, given, found, taken)
                self._report(pod)

    def _allocate(
        self,
        claim: Object,
        pod: Pod,
        node: str,
        given: NodeResources,
        found: Sequence[Device],
        taken: dict[tuple[str, str, str], str],
    ) -> None:
        """Allocate one claim, and add its devices to ``taken`` (key of the device -> UID of its claim)."""
        asked, uid = devices.requests(claim), claim["metadata"]["uid"]
        devices.demand(asked, self._table)  # every class is mapped
        classes = {request.name: self._class(request.device_class) for request in asked}
        offered: dict[str, list[Device]] = {}
        for request in asked:
            matches = devices.class_selector(classes[request.name])
            of_class = [device for device in found if matches(device.driver, device.attributes)]
            offered[request.name] = devices.chosen(of_class, self._table[request.device_class], given)
        held = devices.results(claim)
        if held:
            usable = {device.key for listed in offered.values() for device in listed}
            if _is_reserved(claim, pod) and set(held) <= usable:
                return
            claim = self._deallocate(claim)
        others = {key for key, owner in taken.items() if owner != uid}
        picked: dict[str, list[Device]] = {}
        for request in asked:
            picked[request.name] = devices.pick(request, offered[request.name], others, node)
            others |= {device.key for device in picked[request.name]}
        now = clocks.rfc3339(self._clock.time())
        finalizers = claim["metadata"].get("finalizers") or []
        if extended_claims.FINALIZER not in finalizers:
            claim["metadata"]["finalizers"] = [*finalizers, extended_claims.FINALIZER]
            claim = self._kube.replace(_path(claim), claim)
        claim["status"] = {
            "allocation": devices.allocation(picked, claim, classes, node, now),
            "reservedFor": [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pods.uid(pod)}],
        }
        self._kube.replace(_path(claim, "status"), claim)
        taken.update({device.key: uid for listed in picked.values() for device in listed})

    def _deallocate(self, claim: Object) -> Object:
        """Remove the allocation and the reservation of the claim, as kube-controller-manager does; return it."""
        status = {
            key: value for key, value in claim["status"].items() if key not in ("allocation", "reservedFor", "devices")
        }
        return self._kube.replace(_path(claim, "status"), {**claim, "status": status})

    def _of_pod(self, pod: Pod) -> list[Object]:
        """Read the claims that ``spec.resourceClaims`` names; raises :class:`ClaimMissingError`."""
        created = {
            entry["name"]: entry.get("resourceClaimName")
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        claims = []
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName")
            if name is None:
                if entry["name"] in created and created[entry["name"]] is None:
                    continue  # the API server says that no claim is needed
                name = created.get(entry["name"])
            if not name:
                raise ClaimMissingError(
                    f"spec.resourceClaims: the ResourceClaim of {entry['name']!r} is not created yet"
                )
            try:
                claim = self._kube.get(RESOURCE_CLAIMS.path(pod["metadata"]["namespace"], name))
            except KubeNotFoundError as error:
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} does not exist") from error
            if claim["metadata"].get("deletionTimestamp"):
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} is being deleted")
            if not entry.get("resourceClaimName") and not _is_owned(claim, pod):
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} was not created for this pod")
            claims.append(claim)
        return claims

    def _existing(self, wanted: Object, pod: Pod) -> Object | None:
        try:
            found = self._kube.get(_path(wanted))
        except KubeNotFoundError:
            return None
        if not _is_owned(found, pod):
            raise ClaimMissingError(f"ResourceClaim {found['metadata']['name']} exists, but not for this pod")
        return found

    def _create(self, wanted: Object, pod: Pod) -> Object:
        """Create the claim of extended resources, or return it if an earlier call has created it."""
        if (found := self._existing(wanted, pod)) is not None:
            return found
        try:
            return self._kube.create(RESOURCE_CLAIMS.path(wanted["metadata"]["namespace"]), wanted)
        except KubeConflictError as error:
            raise DevicesNotReadyError(f"ResourceClaim {wanted['metadata']['name']} was just created") from error

    def _report(self, pod: Pod) -> None:
        """Write ``extendedResourceClaimStatus``; raises if the API server has no such field (before 1.36)."""
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "status")
        status = extended_claims.status(pod)
        if (pod.get("status") or {}).get("extendedResourceClaimStatus") == status:
            return
        patch = {"metadata": {"uid": pods.uid(pod)}, "status": {"extendedResourceClaimStatus": status}}
        answer = self._kube.patch(path, patch, kind="strategic")
        if not answer["status"].get("extendedResourceClaimStatus"):
            raise UnsupportedClaimError(
                "extended resources by device class need the feature DRAExtendedResource of the API server (Kubernetes "
                "1.36, or its feature gate); allowed: spec.resourceClaims"
            )

    def _class(self, name: str) -> Object:
        try:
            return self._kube.get(DEVICE_CLASSES.path(name=name))
        except KubeNotFoundError as error:
            raise UnsupportedClaimError(f"DeviceClass {name} does not exist") from error


def _wants_devices(pod: Pod) -> bool:
    return bool(pod["spec"].get("resourceClaims")) or _extended(pod) is not None


def _extended(pod: Pod) -> Object | None:
    try:
        return extended_claims.claim(pod)
    except ValueError as error:
        raise UnsupportedClaimError(f"spec.containers: {error}") from error


def _check_free(claim: Object, pod: Pod) -> None:
    """Raise if another pod uses the claim: Slurm would have to allocate its devices to two jobs."""
    others = [
        one.get("name")
        for one in (claim.get("status") or {}).get("reservedFor") or ()
        if one.get("uid") != pods.uid(pod)
    ]
    if others:
        raise UnsupportedClaimError(
            f"ResourceClaim {claim['metadata']['name']} is in use by {', '.join(map(str, others[:5]))}: Slurm "
            f"allocates devices to one pod; allowed: a claim for each pod (resourceClaimTemplateName)"
        )


def _is_reserved(claim: Object, pod: Pod) -> bool:
    return any(one.get("uid") == pods.uid(pod) for one in (claim.get("status") or {}).get("reservedFor") or ())


def _is_owned(claim: Object, pod: Pod) -> bool:
    return any(
        one.get("controller") and one.get("uid") == pods.uid(pod)
        for one in claim["metadata"].get("ownerReferences") or ()
    )


def _path(claim: Object, sub: str | None = None) -> str:
    return RESOURCE_CLAIMS.path(claim["metadata"]["namespace"], claim["metadata"]["name"], sub)
