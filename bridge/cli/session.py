"""What the commands for people share: both clients, the namespace, and one look at both sides."""

from __future__ import annotations

import functools
from typing import Any

from bridge import config as configuration
from bridge.cli.hub import cluster_id
from bridge.cli.main import Where
from bridge.config import Config, jwt_source
from bridge.errors import KubeForbiddenError
from bridge.kube.access import current_namespace
from bridge.kube.client import KubeClient
from bridge.kube.resources import EVENTS, NAMESPACES, NODES, PODS
from bridge.slurm.client import SlurmClient
from bridge.slurm.models import Job, Node
from bridge.workload.pods import Pod, uid
from scheduler import occupancy


class Session:
    """One command's view; everything is asked for at most once."""

    def __init__(self, where: Where) -> None:
        self.config: Config = configuration.load(where.config)
        self._where = where
        self.kube = KubeClient.load(where.kubeconfig, where.context, user_agent="podbridge-cli", pool_size=4)
        self.slurm = SlurmClient(self.config, jwt_source(self.config), pool_size=4)

    @functools.cached_property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, else ``default``."""
        return current_namespace(self._where.kubeconfig, self._where.context)

    @functools.cached_property
    def cluster(self) -> str:
        """UID of kube-system."""
        return cluster_id(self.kube)

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """Slurm's jobs that belong to this cluster's pods, by id; none where no Slurm is colocated."""
        if not self.config.slurm_rest_api:
            return []
        ours = [job for job in self.slurm.jobs() if job.link is not None and job.link.cluster == self.cluster]
        return sorted(ours, key=lambda job: job.job_id)

    @functools.cached_property
    def jobs_by_uid(self) -> dict[str, Job]:
        """The newest job of each pod UID."""
        return {ref.uid: job for job in self.jobs if job.link is not None for ref in job.link.pods}

    @functools.cached_property
    def slurm_nodes(self) -> dict[str, Node]:
        """Slurm's nodes by name."""
        if not self.config.slurm_rest_api:
            return {}
        return {node.name: node for node in self.slurm.nodes()}

    def pods(self, namespace: str | None, selector: str = "") -> list[dict[str, Any]]:
        """List the scheduler's pods of a namespace, or of all (``None``)."""
        params = {"fieldSelector": f"spec.schedulerName={self.config.scheduler_name}"}
        if selector:
            params["labelSelector"] = selector
        items: list[dict[str, Any]] = self.kube.get(PODS.path(namespace), params)["items"]
        return items

    def other_pods(self) -> list[dict[str, Any]]:
        """List the pods of other schedulers that have a node and have not ended."""
        params = {"fieldSelector": occupancy.selector(self.config.scheduler_name)}
        items: list[dict[str, Any]] = self.kube.get(PODS.path(), params)["items"]
        return items

    def nodes(self, selector: str = "") -> list[dict[str, Any]]:
        """List Kubernetes' nodes."""
        items: list[dict[str, Any]] = self.kube.get(NODES.path(), {"labelSelector": selector} if selector else None)[
            "items"
        ]
        return items

    def annotations(self, namespace: str) -> dict[str, str] | None:
        """Return a namespace's annotations; ``None`` if the user may not read the namespace."""
        try:
            found = self.kube.get(NAMESPACES.path(name=namespace), metadata_only=True)
        except KubeForbiddenError:
            return None
        annotations: dict[str, str] = found["metadata"].get("annotations") or {}
        return annotations

    def events(self, pod: Pod) -> list[dict[str, Any]]:
        """List the Events of a pod, oldest first."""
        found = self.kube.get(EVENTS.path(pod["metadata"]["namespace"]))["items"]
        ours = [event for event in found if (event.get("regarding") or {}).get("uid") == uid(pod)]
        return sorted(ours, key=lambda event: event.get("eventTime") or event["metadata"]["creationTimestamp"])
