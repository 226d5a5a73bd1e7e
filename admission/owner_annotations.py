"""The job annotations of a pod's owners: of its Job, of that Job's JobSet, and so on; and the deadline of its Job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from admission import owner_reads, raw_pods
from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import KubeForbiddenError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import JOBS, resource_of
from bridge.logs import kv
from bridge.workload.annotations import LONGEST_DEADLINE, Layers, merge

log = logging.getLogger(__name__)

MAX_DEPTH = 6
REMEMBER = 5.0
"""Seconds to cache an owner's metadata: the pods of a Job are created in quick succession."""

Read = Callable[[Mapping[str, Any], str], Mapping[str, Any] | None]
"""``read(owner reference, namespace)`` returns the owner's metadata, None if it does not exist or is forbidden."""


def read_from(client: KubeClient) -> Read:
    """Return a function that reads owners from the API server. Forbidden owners are logged and count as absent."""

    def read(reference: Mapping[str, Any], namespace: str) -> Mapping[str, Any] | None:
        resource = resource_of(str(reference["apiVersion"]), str(reference["kind"]))
        scope = namespace if resource.namespaced else None
        try:
            owner = owner_reads.read(client, resource, scope, str(reference["name"]), metadata_only=resource != JOBS)
        except KubeForbiddenError as error:
            log.warning("reading an owner is forbidden: its annotations are ignored", extra=kv(error=error))
            return None
        if owner is None:
            return None
        metadata: Mapping[str, Any] = owner.get("metadata") or {}
        return _with_deadline(metadata, owner) if resource == JOBS else metadata

    return read


def _with_deadline(metadata: Mapping[str, Any], job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a Job with its deadline as an annotation."""
    seconds = (job.get("spec") or {}).get("activeDeadlineSeconds")
    if not seconds:
        return metadata
    deadline = str(min(int(seconds), LONGEST_DEADLINE))
    return {**metadata, "annotations": {**(metadata.get("annotations") or {}), names.JOB_DEADLINE: deadline}}


@dataclass(frozen=True, slots=True)
class Owners:
    """The job annotations of a pod's controlling owners, and the references to these owners, the nearest first.

    ``layers`` has kind and name of each owner that exists, and its annotations.
    """

    annotations: dict[str, str] = field(default_factory=dict)
    references: tuple[Mapping[str, Any], ...] = ()
    layers: Layers = ()


class OwnerAnnotations:
    """Reads the chain of controlling owners of a pod, with a cache."""

    def __init__(self, read: Read, clock: Clock = SYSTEM_CLOCK) -> None:
        self._read = read
        self._cache: SingleFlightCache[Mapping[str, Any] | None] = SingleFlightCache(clock)

    def annotations(self, pod: raw_pods.Pod, namespace: str) -> dict[str, str]:
        """Return the job annotations of the owners; the nearest owner wins. Raises ``Kube*`` errors."""
        return self.find(pod, namespace).annotations

    def find(self, pod: raw_pods.Pod, namespace: str) -> Owners:
        """Return the controlling owners of a pod and their job annotations. Raises ``Kube*`` errors."""
        layers: list[tuple[str, Mapping[str, str]]] = []
        references: list[Mapping[str, Any]] = []
        reference = raw_pods.controller(pod)
        while reference is not None and len(layers) < MAX_DEPTH:
            references.append(reference)
            metadata = self._metadata(reference, namespace)
            if metadata is None:
                break
            layers.append((f"{reference.get('kind')} {reference.get('name')}", metadata.get("annotations") or {}))
            reference = raw_pods.controller({"metadata": metadata})
        return Owners(merge([annotations for _, annotations in layers]), tuple(references), tuple(layers))

    def _metadata(self, reference: Mapping[str, Any], namespace: str) -> Mapping[str, Any] | None:
        # the pod's author may write any reference, so the whole reference is the key of the cache
        claim = (namespace, *(str(reference.get(part)) for part in ("apiVersion", "kind", "name", "uid")))

        def load() -> tuple[Mapping[str, Any] | None, float]:
            metadata = self._read(reference, namespace)
            # the name may belong to another object now, or the reference may be forged
            if metadata is not None and metadata.get("uid") != reference.get("uid"):
                metadata = None
            return metadata, REMEMBER if metadata is None or owner_reads.may_be_cached(metadata) else 0.0

        return self._cache.get(claim, load)
