"""The clients of a command and the objects that it has read from Kubernetes and Slurm."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from bridge import names
from bridge.apps.cli import hub_config
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.clock import duration, rfc3339
from bridge.config.hub import Config, jwt_source
from bridge.core.grouping import grouped
from bridge.errors import BridgeError, KubeError, KubeForbiddenError
from bridge.kube.discovery import cluster_id
from bridge.kube.kube_access import current_namespace
from bridge.kube.kube_client import KubeClient
from bridge.kube.namespaces import read_from
from bridge.kube.object_store import Object
from bridge.kube.prune import prune_claim, prune_storage_class, prune_volume
from bridge.kube.resources import (
    CONFIGMAPS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_EVENTS,
    PODS,
    STORAGE_CLASSES,
)
from bridge.slurm import cluster_sums, node_holders, states
from bridge.slurm.cluster_sums import ClusterSums
from bridge.slurm.models import Job, Node
from bridge.slurm.node_holders import Holder
from bridge.slurm.slurm_client import SlurmClient
from bridge.workload import links, pods, resources
from bridge.workload.devices import extended_claims
from bridge.workload.pods import Pod, uid
from bridge.workload.resources import Resources
from scheduler.nodes import occupancy

SLURM = "Slurm"
"""The name of Slurm in ``CommandSession.not_read``."""
PATIENCE = 2.0
"""Seconds within which Slurm must answer a small request, else a command goes on without it."""
T = TypeVar("T")


class CommandSession:
    """The clients and the objects of one command. Properties are read at the first access and kept."""

    reads_slurm = True
    """Whether Slurm is read, if there is one. If not, it is unknown which jobs and nodes Slurm has."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self.kube = KubeClient.load(connection.kubeconfig, connection.context, user_agent="podbridge-cli", pool_size=4)
        config, self.config_source = hub_config.of(connection, self.kube)
        self.config: Config = config
        self.slurm = SlurmClient(self.config, jwt_source(self.config), pool_size=4)

    @property
    def has_file(self) -> bool:
        """Whether the configuration is that of a file, as podbridge itself has it."""
        return self._connection.config is not None

    def hurry(self, seconds: float) -> None:
        """Wait at most ``seconds`` for each answer of Kubernetes and of Slurm."""
        self.kube = self.kube.hurried(seconds)
        self.slurm = self._hurried_slurm(seconds)

    def _hurried_slurm(self, seconds: float) -> SlurmClient:
        limits = self.config.slurm.model_copy(update={"connect_timeout": seconds, "read_timeout": seconds})
        config = self.config.model_copy(update={"slurm": limits})
        return SlurmClient(config, jwt_source(config), pool_size=4)

    @functools.cached_property
    def slurm_answers(self) -> bool:
        """True. Raises :class:`SlurmError` if Slurm does not answer a small request soon.

        A list of many jobs may take longer than a user waits for a Slurm that does not answer at all.
        """
        self._hurried_slurm(PATIENCE).ping()
        return True

    @functools.cached_property
    def not_read(self) -> dict[str, str]:
        """What :meth:`attempt` could not read, with the error."""
        return {}

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; if it fails, note the error in ``not_read`` and return ``None``.

        Slurm is not asked again once it has not answered: each time-out would take seconds.
        """
        if what == SLURM and SLURM in self.not_read:
            return None
        try:
            return read()
        except BridgeError as error:
            self.not_read[what] = error.with_hint
            return None

    def shared(self, what: Hashable, read: Callable[[], T]) -> T:
        """Return what ``read`` returns: large objects that do not depend on one pod, which a subclass may cache."""
        return read()

    @property
    def knows_slurm(self) -> bool:
        """Whether the jobs and nodes of Slurm are known, if there is a Slurm."""
        return self.reads_slurm and SLURM not in self.not_read

    @property
    def gaps(self) -> list[str]:
        """A line for each part that could not be read."""
        return [f"{what}: {error}" for what, error in self.not_read.items()]

    def forget(self) -> None:
        """Read jobs and nodes again at the next access."""
        for name in ("slurm_answers", "all_jobs", "jobs", "jobs_by_uid", "slurm_nodes", "not_read", "published"):
            self.__dict__.pop(name, None)

    @functools.cached_property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, else ``default``."""
        return current_namespace(self._connection.kubeconfig, self._connection.context)

    @functools.cached_property
    def cluster(self) -> str:
        """The owner of this installation's jobs."""
        return cluster_id(self.kube, self.config.installation)

    @functools.cached_property
    def all_jobs(self) -> list[Job]:
        """All jobs of Slurm, sorted by id; empty without a colocated Slurm."""
        if not self.config.slurm_rest_api:
            return []
        return sorted(self.slurm.jobs(all_nodes=True), key=lambda job: job.job_id) if self.slurm_answers else []

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """The placeholder jobs of this installation, sorted by id."""
        return [job for job in self.all_jobs if job.link is not None and job.link.cluster == self.cluster]

    @functools.cached_property
    def jobs_by_uid(self) -> dict[str, Job]:
        """The job of each pod UID and of each key of a group: one that lives before ended ones, then the newest.

        After ``MaxJobId``, a newer job has a lower id.
        """
        ordered = sorted(self.jobs, key=lambda job: (states.end_of(job.states) is None, job.submit_time, job.job_id))
        return {key: job for job in ordered if job.link is not None for key in job.link.keys}

    def job_of(self, pod: Pod) -> Job | None:
        """Return the job of a pod or of its group; ``None`` without one, and if Slurm cannot be read."""
        return (self.attempt(SLURM, lambda: self.jobs_by_uid) or {}).get(links.key(pod))

    @functools.cached_property
    def slurm_nodes(self) -> dict[str, Node]:
        """Slurm's nodes by name; empty without a colocated Slurm."""
        if not self.config.slurm_rest_api:
            return {}
        return {node.name: node for node in self.slurm.nodes()} if self.slurm_answers else {}

    @functools.cached_property
    def published(self) -> ClusterSums | None:
        """What the hub publishes of Slurm, for users without its token; ``None`` if it does not, or not for them."""
        path = CONFIGMAPS.path(self.config.leader_election.namespace, names.slurm_sums(self.config.installation))
        try:
            sums = cluster_sums.from_config_map(self.kube.get(path))
        except (KubeError, ValueError):
            return None
        if sums is not None:
            old = f", {duration(time.time() - sums.at)} ago: does it run?" if time.time() > sums.expires else ""
            shown = f"shown is what the hub wrote at {rfc3339(sums.at)}{old}"
            self.not_read[SLURM] = "; ".join(filter(None, (self.not_read.get(SLURM), shown)))
        return sums

    @property
    def known_nodes(self) -> Mapping[str, Node]:
        """Slurm's nodes by name, as far as they are known: as Slurm says, else as the hub publishes."""
        nodes = self.attempt(SLURM, lambda: self.slurm_nodes) if self.reads_slurm else None
        if nodes is None and self.published is not None:
            nodes = cluster_sums.as_nodes(self.published)
        return nodes or {}

    @property
    def known_partitions(self) -> set[str]:
        """The names of Slurm's partitions, as far as they are known; see :attr:`known_nodes`."""
        listed = self.attempt(SLURM, self.slurm.partitions) if self.knows_slurm else None
        if listed is None and self.published is not None:
            return {each.name for each in self.published.partitions} - {""}
        return {each.name for each in listed or ()}

    @property
    def node_holders(self) -> Mapping[str, Sequence[Holder]]:
        """Who holds what on each of these nodes."""
        if self.knows_slurm:
            return node_holders.by_node(self.all_jobs)
        return cluster_sums.as_holders(self.published) if self.published is not None else {}

    def listed(self, path: str, **selectors: str) -> list[dict[str, Any]]:
        """List objects. ``selectors`` are parameters of the API, as ``labelSelector``; an empty one is not sent."""
        items: list[dict[str, Any]] = self.kube.get(path, {k: v for k, v in selectors.items() if v} or None)["items"]
        return items

    @functools.cached_property
    def namespaces(self) -> list[dict[str, Any]]:
        """The metadata of all namespaces; empty if the user may not list them: podbridge's own accounts may not."""
        try:
            return [item["metadata"] for item in self.listed(NAMESPACES.path())]
        except KubeForbiddenError:
            return []

    def pods(self, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        """List the scheduler's pods in a namespace, or in all namespaces (``None``)."""
        fields = f"spec.schedulerName={self.config.scheduler_name}"
        return self.listed(PODS.path(namespace), fieldSelector=fields, labelSelector=selector)

    def group_counts(self, pod: Pod) -> tuple[int, int, int]:
        """Return how many pods of the pod's group exist, are bound and have not ended, and have ended."""
        members = self._members(pod)
        ended = sum(map(pods.is_finished, members))
        return len(members), sum(pods.is_bound(one) and not pods.is_finished(one) for one in members), ended

    def waiting_members(self, pod: Pod) -> list[Pod]:
        """Return the pods of the pod's group that wait for a place, in the form that rules about places read."""
        return [one for one in self._members(pod) if pods.is_open(one) and not pods.is_deleted(one)]

    def _members(self, pod: Pod) -> list[Pod]:
        """Return the pods of the pod's group. A command lists the pods of a namespace for this once."""
        namespace = pod["metadata"]["namespace"]
        if namespace not in self._members_by_namespace:
            by_key: dict[str, list[Pod]] = grouped((links.key(one), one) for one in self.pods(namespace))
            self._members_by_namespace[namespace] = by_key
        return self._members_by_namespace[namespace].get(links.key(pod), [])

    @functools.cached_property
    def _members_by_namespace(self) -> dict[str, dict[str, list[Pod]]]:
        return {}

    def other_pods(self) -> list[dict[str, Any]]:
        """List the pods of other schedulers that have a node and have not ended."""
        return self.listed(PODS.path(), fieldSelector=occupancy.selector(self.config.scheduler_name))

    def requested_on(self, node: str) -> Resources | None:
        """Return the requests of the pods on a node that have not ended; ``None`` if the user may not list them."""
        try:
            there = self.listed(PODS.path(), fieldSelector=f"spec.nodeName={node}")
        except KubeForbiddenError:
            return None
        return resources.total(resources.node_requests(pod["spec"]) for pod in there if not pods.is_finished(pod))

    def nodes(self, selector: str = "") -> list[dict[str, Any]]:
        """List the Kubernetes nodes."""
        return self.listed(NODES.path(), labelSelector=selector)

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """List the claims of a namespace, all PersistentVolumes and StorageClasses, as the scheduler keeps them."""

        def read(path: str, prune: Callable[[Object], Object]) -> list[Object]:
            return self.shared(path, lambda: list(map(prune, self.listed(path))))

        claims = read(PERSISTENT_VOLUME_CLAIMS.path(namespace), prune_claim)
        volumes = read(PERSISTENT_VOLUMES.path(), prune_volume)
        return [*claims, *volumes, *read(STORAGE_CLASSES.path(), prune_storage_class)]

    def device_names(self) -> Mapping[str, str]:
        """Return the DeviceClass of each extended resource; empty if the user may not list the classes."""
        try:
            classes = self.shared(DEVICE_CLASSES.path(), lambda: self.listed(DEVICE_CLASSES.path()))
        except KubeError:
            return {}
        return extended_claims.names(classes, self.config.gres, self.config.device_classes)

    def annotations(self, namespace: str) -> Mapping[str, str] | None:
        """Return the annotations of a namespace; ``None`` if the user may not read it."""
        try:
            return read_from(self.kube)(namespace).annotations
        except KubeForbiddenError:
            return None

    def events(self, pod: Pod) -> list[dict[str, Any]]:
        """List the Events of a pod, oldest first, with the fields of ``events.k8s.io/v1``."""
        # the API server selects by UID in the core group only; a namespace with 10,000 pods has 20,000 Events
        path = POD_EVENTS.path(pod["metadata"]["namespace"])
        listed = self.listed(path, fieldSelector=f"involvedObject.uid={uid(pod)}")
        ours = [{**event, "note": event.get("message"), "regarding": event.get("involvedObject")} for event in listed]
        return sorted(ours, key=lambda event: event.get("eventTime") or event["metadata"]["creationTimestamp"])
