"""Reads and writes the ResourceClaims of pods; ``kube`` is fenced.

Each write has the resource version of the object that was read as its precondition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge.errors import KubeConflictError, KubeNotFoundError, KubeUnavailableError, UntranslatableError
from bridge.kube.discovery import is_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.paging import pages
from bridge.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from bridge.workload import pods
from bridge.workload.devices import claimed_devices, extended_claims
from bridge.workload.devices.claimed_devices import Device, DevicesNotReadyError, UnsupportedClaimError
from scheduler.devices.taken_devices import TakenDevices

Object = dict[str, Any]
Pod = Mapping[str, Any]


class ClaimMissingError(UntranslatableError):
    """A claim of the pod does not exist yet."""

    reason = "ResourceClaimMissing"


class ClaimStore:
    """The claims of pods in the API server. Thread-safe."""

    def __init__(
        self, kube: KubeClient, applied: Callable[[Object], object] = lambda _: None, taken: TakenDevices | None = None
    ) -> None:
        self._kube = kube
        self._taken = taken or TakenDevices()
        self._applied = applied
        """Gets each changed pod: its new resource version is the precondition of the binding."""

    def of_pod(self, pod: Pod) -> list[tuple[Object, bool]]:
        """Read the claims that ``spec.resourceClaims`` names; true for a claim that was created for this pod alone.

        Raises :class:`ClaimMissingError`, and :class:`~bridge.workload.devices.claimed_devices.UnsupportedClaimError`
        if the API server does not serve claims.
        """
        created = {
            entry["name"]: entry.get("resourceClaimName")
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        claims = []
        for entry in pod["spec"].get("resourceClaims") or ():
            named = entry.get("resourceClaimName")
            if named is None and entry["name"] in created and created[entry["name"]] is None:
                continue  # the API server says that no claim is needed
            name = named or created.get(entry["name"])
            if not name:
                raise ClaimMissingError(
                    f"spec.resourceClaims: the ResourceClaim of {entry['name']!r} is not created yet"
                )
            try:
                claim = self._kube.get(RESOURCE_CLAIMS.path(pod["metadata"]["namespace"], name))
            except KubeNotFoundError as error:
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} does not exist") from error
            except KubeUnavailableError as error:
                if error.status == 404 and not is_served(self._kube, RESOURCE_CLAIMS):
                    raise UnsupportedClaimError(
                        f"spec.resourceClaims: the API server does not serve {RESOURCE_CLAIMS.api_version}; needed: "
                        "Kubernetes 1.34 or later"
                    ) from error
                raise
            if claim["metadata"].get("deletionTimestamp"):
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} is being deleted")
            if not named and not _is_owned(claim, pod):
                raise ClaimMissingError(f"spec.resourceClaims: ResourceClaim {name} was not created for this pod")
            claims.append((claim, not named))
        return claims

    def existing(self, desired: Object, pod: Pod) -> Object | None:
        """Return the claim of extended resources if an earlier call has created it."""
        try:
            claim = self._kube.get(_path(desired))
        except KubeNotFoundError:
            return None
        if not _is_owned(claim, pod):
            raise ClaimMissingError(f"ResourceClaim {claim['metadata']['name']} exists, but not for this pod")
        return claim

    def create(self, desired: Object, pod: Pod) -> Object:
        """Create the claim of extended resources, or return it if an earlier call has created it."""
        if (claim := self.existing(desired, pod)) is not None:
            if claimed_devices.requests(claim) != claimed_devices.requests(desired):
                raise UnsupportedClaimError(
                    f"ResourceClaim {claim['metadata']['name']} has requests for another node; allowed: a new pod"
                )
            return claim
        try:
            return self._kube.create(RESOURCE_CLAIMS.path(desired["metadata"]["namespace"]), desired)
        except KubeConflictError as error:
            raise DevicesNotReadyError(f"ResourceClaim {desired['metadata']['name']} was just created") from error

    def report(self, pod: Pod, classes: Mapping[str, str]) -> None:
        """Write ``extendedResourceClaimStatus``.

        Raises :class:`UnsupportedClaimError` if the API server has no such field (before Kubernetes 1.36).
        """
        status = extended_claims.status(pod, classes)
        if (pod.get("status") or {}).get("extendedResourceClaimStatus") == status:
            return
        answer = self._patch_status(pod, status)
        # an API server without the field drops it without an error
        if not answer["status"].get("extendedResourceClaimStatus"):
            raise UnsupportedClaimError(
                "extended resources by device class need the feature DRAExtendedResource of the API server (Kubernetes "
                "1.36, or its feature gate); allowed: spec.resourceClaims"
            )

    def withdraw(self, pod: Pod) -> None:
        """Remove ``extendedResourceClaimStatus``, which was written for another node."""
        self._patch_status(pod, None)

    def _patch_status(self, pod: Pod, status: Object | None) -> Object:
        patch = {"metadata": {"uid": pods.uid(pod)}, "status": {"extendedResourceClaimStatus": status}}
        # a former leader must not change the devices of a pod that its successor has bound
        answer = self._kube.patch(PODS.path_of(pod, "status"), pods.conditional(patch, pod), kind="strategic")
        self._applied(answer)
        return answer

    def protect(self, claim: Object) -> Object:
        """Add the finalizer that keeps an allocated claim; return the claim."""
        finalizers = claim["metadata"].get("finalizers") or []
        if extended_claims.FINALIZER in finalizers:
            return claim
        metadata = {**claim["metadata"], "finalizers": [*finalizers, extended_claims.FINALIZER]}
        return self._kube.replace(_path(claim), {**claim, "metadata": metadata})

    def write(self, claim: Object, status: Mapping[str, Any]) -> Object:
        """Replace fields of the status of the claim; return the claim."""
        return self._replaced(claim, {**claim.get("status", {}), **status})

    def deallocate(self, claim: Object) -> Object:
        """Remove the allocation and the reservation of the claim, as kube-controller-manager does; return it."""
        status = {
            key: value for key, value in claim["status"].items() if key not in ("allocation", "reservedFor", "devices")
        }
        return self._replaced(claim, status)

    def _replaced(self, claim: Object, status: Mapping[str, Any]) -> Object:
        answer = self._kube.replace(_path(claim, "status"), {**claim, "status": status})
        self._taken.written(answer)
        return answer

    def device_class(self, name: str) -> Object:
        """Read a DeviceClass; raises :class:`UnsupportedClaimError` if it does not exist."""
        try:
            return self._kube.get(DEVICE_CLASSES.path(name=name))
        except KubeNotFoundError as error:
            raise UnsupportedClaimError(f"DeviceClass {name} does not exist") from error

    def devices(self, node: str) -> Sequence[Device]:
        """Return the devices in the ResourceSlices of a node."""
        slices = self._kube.get(RESOURCE_SLICES.path(), {"fieldSelector": f"spec.nodeName={node}"})["items"]
        return claimed_devices.of_node(slices, node)

    def taken(self, offered: Iterable[Device]) -> dict[tuple[str, str, str], str]:
        """Return those of the devices that are allocated to claims: key of the device -> UID of its claim.

        From the cache of claims. While it is not current, list all claims of the cluster.
        """
        if self._taken.is_current:
            return self._taken.of(device.key for device in offered)
        return {
            key: claim["metadata"]["uid"]
            for page in pages(self._kube, RESOURCE_CLAIMS.path())
            for claim in page["items"]
            for key in claimed_devices.results(claim)
        }


def _is_owned(claim: Object, pod: Pod) -> bool:
    return any(
        reference.get("controller") and reference.get("uid") == pods.uid(pod)
        for reference in claim["metadata"].get("ownerReferences") or ()
    )


def _path(claim: Object, sub: str | None = None) -> str:
    return RESOURCE_CLAIMS.path(claim["metadata"]["namespace"], claim["metadata"]["name"], sub)
