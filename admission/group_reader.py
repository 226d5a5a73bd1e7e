"""The group of a new pod: finds its owner, reads it from the API server, and returns what admission writes on the pod.

The owner's name comes from labels of the pod, which any author of a pod in the namespace may set. So an author may let
a pod join a group in the same namespace, as with the owner's own controller, but in no other namespace.

A name may soon belong to another object: users delete an object and create it again within a second. So an object is
cached only by its UID, which the pod's owner references state. An object that only a label names is read for each pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from admission import owner_reads, raw_pods
from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import KubeForbiddenError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import JOBS, Resource, resource_of
from bridge.logs import kv
from bridge.slurm.models import GroupRef
from bridge.workload import groups
from bridge.workload.annotations import Layers, merge
from bridge.workload.groups import InvalidGroupError, Membership
from bridge.workload.kinds import job_kinds
from bridge.workload.kinds.kind import Kind, controller, label, number
from bridge.workload.kinds.kind_table import check_gang, claimed

log = logging.getLogger(__name__)

REMEMBER = 5.0
"""Seconds to cache an owner whose UID is known: the pods of a group are created in quick succession."""
MAX_DEPTH = 8
"""Kubernetes allows trees of four levels of groups."""
_SCALED = ("ReplicaSet", "StatefulSet")

Read = Callable[[Resource, str, str], Mapping[str, Any] | None]
"""``read(resource, namespace, name)`` returns the object, ``None`` if it does not exist. Raises ``Kube*`` errors."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """The value of the annotation ``bridge.vk.io/group``, ``None`` for a bare pod; annotations of the group's owner.

    ``layers`` has the group's owner and the object from which it was made, each with its annotations.
    """

    value: str | None = None
    inherited: Mapping[str, str] = field(default_factory=dict)
    layers: Layers = field(default=(), compare=False)


BARE = FoundGroup()


def read_from(client: KubeClient) -> Read:
    """Return a function that reads owners from the API server."""

    def read(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            return owner_reads.read(client, resource, namespace, name)
        except KubeForbiddenError as error:
            group = f".{resource.group}" if resource.group else ""
            raise KubeForbiddenError(
                f"podbridge's admission may not read {resource.plural}{group} in namespace {namespace!r}: its account "
                f"needs the permission 'get' on them (config/rbac.yaml): {error}",
                status=error.status,
                kube_reason=error.kube_reason,
            ) from error

    return read


class GroupReader:
    """Finds the group of a pod, with a cache of owners."""

    def __init__(self, read: Read, clock: Clock = SYSTEM_CLOCK) -> None:
        self._read = read
        self._cache: SingleFlightCache[Mapping[str, Any] | None] = SingleFlightCache(clock)
        self._served: dict[str, Resource] = {}
        """The resource in which the last owner of each kind was found."""

    def find(
        self,
        pod: raw_pods.Pod,
        namespace: str,
        inherited: Mapping[str, str],
        namespace_annotations: Mapping[str, str],
        owners: Sequence[Mapping[str, Any]] = (),
    ) -> FoundGroup:
        """Return the group of a new pod; ``inherited`` are the annotations of its controlling ``owners``.

        The annotation ``bridge.vk.io/gang`` of the namespace applies if neither the pod nor its owners have one.
        ``owners`` are references, the nearest first; without any, that of the pod counts. Raises
        :class:`InvalidGroupError` if the pod or its owner is invalid or the owner does not exist, and ``Kube*`` errors.
        """
        owners = owners or [controller(pod)]
        settings = {**inherited, **raw_pods.annotations_of(pod)}
        groups.together(settings)
        gang = settings.get(names.GANG)
        if gang is not None:
            check_gang(gang, "the pod or its owners")
        default = namespace_annotations.get(names.GANG)
        if gang is None and default is not None:
            check_gang(default, f"namespace {namespace!r}")
        claim = claimed(pod)
        if claim is None:
            if gang in ("true", "all"):
                raise InvalidGroupError(
                    f"annotation {names.GANG}: {gang!r} is not allowed: the pod belongs to no Job, JobSet, "
                    f"LeaderWorkerSet or group of pods; allowed: 'false', or no such annotation"
                )
            return BARE
        kind, name = claim
        if gang == "false" or (kind.opt_in and (gang or default) not in ("true", "all")):
            return BARE
        owner = self._owner(kind, namespace, name, _stated_uid(kind, name, owners))
        annotations: Mapping[str, str] = owner["metadata"].get("annotations") or {}
        if gang is None and names.GANG in annotations:
            gang = annotations[names.GANG]
            check_gang(gang, f"{kind.title} {name}")
        gang = gang or default
        layers = ((f"{kind.title} {name}", annotations), *self._template(kind, owner, namespace))
        inherited_annotations = merge([layer for _, layer in layers])
        if gang == "false":
            return FoundGroup(None, inherited_annotations, layers)
        self._check_parents(kind, owner, namespace)
        replicas = self._replicas(pod, namespace, owners) if kind.created_first else 0
        place = kind.place(pod, owner, gang == "all", replicas)
        if place is None or place.size == 1:
            return FoundGroup(None, inherited_annotations, layers)
        groups.together({**inherited_annotations, **settings})
        key = GroupRef(kind.name, namespace, name, str(owner["metadata"].get("uid") or ""), place.index)
        completed = min(self._completed(pod, namespace, place.index, owners), place.size)
        member = Membership(key, place.size, place.minimum, place.slot, completed=completed)
        return FoundGroup(groups.encode(member), inherited_annotations, layers)

    def _owner(self, kind: Kind, namespace: str, name: str, uid: str) -> Mapping[str, Any]:
        if not kind.resources:
            return {"metadata": {}, "spec": {}}
        last = self._served.get(kind.name)
        # a release of Kubernetes serves one of the versions: that of the last owner saves requests
        for resource in sorted(kind.resources, key=lambda resource: resource != last):
            owner = self._get(resource, namespace, name, uid)
            if owner is not None:
                self._served[kind.name] = resource
                return owner
        identity = f"{name!r} with UID {uid!r}" if uid else repr(name)
        problem = f"{kind.title} {identity} ({kind.resources[0].group}) does not exist in namespace {namespace!r}"
        hint = f"create the {kind.title} before its pods" if kind.created_first else "its pods cannot start without it"
        raise InvalidGroupError(f"the group of the pod cannot be determined: {problem}; {hint}")

    def _template(self, kind: Kind, owner: Mapping[str, Any], namespace: str) -> Layers:
        """Return the object from which an owner was made, with its annotations; empty if it may not be read."""
        template = kind.template(owner) if kind.resources else None
        if template is None:
            return ()
        resources, name = template
        last = self._served.get(kind.name)
        for resource in sorted(resources, key=lambda candidate: last is None or candidate.version != last.version):
            try:
                template_object = self._get(resource, namespace, name, "")
            except KubeForbiddenError as error:
                log.warning("reading a template is forbidden: its annotations are ignored", extra=kv(error=error))
                return ()
            if template_object is not None:
                title = resource.plural.removesuffix("s").capitalize()
                return ((f"{title} {name}", template_object["metadata"].get("annotations") or {}),)
        return ()

    def _check_parents(self, kind: Kind, owner: Mapping[str, Any], namespace: str) -> None:
        """Raise :class:`InvalidGroupError` if the group is in a group that podbridge does not support."""
        current = owner
        for _ in range(MAX_DEPTH):
            parent_reference = kind.parent(current)
            if parent_reference is None:
                return
            resource, name = parent_reference
            parent = self._get(resource, namespace, name, "")
            if parent is None:
                raise InvalidGroupError(
                    f"{kind.title} {current['metadata']['name']}: spec.parentCompositePodGroupName: {name!r} is not "
                    f"allowed: there is no such object in namespace {namespace!r}; create it before the pods"
                )
            current = parent

    def _replicas(self, pod: raw_pods.Pod, namespace: str, owners: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of pods that the pod's JobSet, Job, ReplicaSet or StatefulSet creates; 0 if unknown."""
        name = label(pod, job_kinds.JOBSET_NAME)
        if name is not None:
            owner = self._get(
                job_kinds.JOBSET.resources[0], namespace, name, _stated_uid(job_kinds.JOBSET, name, owners)
            )
            return 0 if owner is None else job_kinds.pods_of_jobset(owner)
        reference = controller(pod)
        if reference.get("kind") not in ("Job", *_SCALED):
            return 0
        resource = resource_of(reference["apiVersion"], reference["kind"])
        owner = self._get(resource, namespace, reference["name"], str(reference.get("uid") or ""))
        if owner is None:
            return 0
        spec = owner["spec"]
        return (job_kinds.pods_of_job(spec) if reference["kind"] == "Job" else number(spec.get("replicas", 1))) or 0

    def _completed(self, pod: raw_pods.Pod, namespace: str, index: str, owners: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of pods of the group that have succeeded, from the status of the pod's Job and JobSet.

        Pods of a JobSet that have succeeded in a Job which is not complete count only if that Job is the pod's own.
        """
        reference = controller(pod)
        if (reference.get("apiVersion"), reference.get("kind")) != (JOBS.api_version, "Job"):
            return 0
        own_job = self._get(JOBS, namespace, reference["name"], str(reference.get("uid") or ""))
        completed_pods = job_kinds.completed_of_job(own_job) if own_job is not None else 0
        name = label(pod, job_kinds.JOBSET_NAME)
        if name is None:
            return completed_pods
        job_set = self._get(job_kinds.JOBSET.resources[0], namespace, name, _stated_uid(job_kinds.JOBSET, name, owners))
        return completed_pods if job_set is None else completed_pods + job_kinds.completed_of_jobset(job_set, index)

    def _get(self, resource: Resource, namespace: str, name: str, uid: str) -> Mapping[str, Any] | None:
        """Return an object; ``None`` if there is none, or if it has another UID than the one that is stated."""
        if not uid:
            return self._read(resource, namespace, name)

        def load() -> tuple[Mapping[str, Any] | None, float]:
            owner = self._read(resource, namespace, name)
            if owner is None or owner["metadata"].get("uid") != uid:
                return None, 0.0  # users create a missing owner next, and its pods again
            return owner, REMEMBER if owner_reads.may_be_cached(owner) else 0.0

        return self._cache.get((resource, namespace, name, uid), load)


def _stated_uid(kind: Kind, name: str, owners: Sequence[Mapping[str, Any]]) -> str:
    """Return the UID of the owner of a group that is among the owners of a pod; empty if it is not."""
    groups_of_api = {resource.group for resource in kind.resources}
    for reference in owners:
        group = str(reference.get("apiVersion") or "").rpartition("/")[0]
        if (reference.get("kind"), reference.get("name")) == (kind.title, name) and group in groups_of_api:
            return str(reference.get("uid") or "")
    return ""
