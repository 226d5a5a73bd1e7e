"""``podbridge dashboard``: the web page."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import click

from bridge import logs
from bridge.apps.cli import explain
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.session import CommandSession
from bridge.apps.dashboard.dashboard_server import Dashboard, PageSettings
from bridge.apps.dashboard.page_access import Viewer
from bridge.apps.view.pod_view import PodView
from bridge.clock import SystemClock
from bridge.config import hub as configuration
from bridge.config.hub import Config
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import KubeForbiddenError
from bridge.kube.object_store import Object
from bridge.slurm.models import Job, Node
from bridge.workload import links, resources
from bridge.workload.pods import Pod
from bridge.workload.resources import Resources

REMEMBER = 10.0
"""Seconds for which a user sees the same volumes, DeviceClasses and requests of other pods: an open page of a waiting
pod asks for them up to once a second."""
MOST_READS = 256
"""Cached reads of all users, at most."""
T = TypeVar("T")
SharedReads = SingleFlightCache[Any]


class PageSession(CommandSession):
    """The session of one page, without a connection to Slurm.

    It has the client of the user, the nodes (``None`` if the user may not list them), and the rows of the page for what
    pods request and the counts of a group. ``reads`` are those of all sessions; each is only for the user who made it.
    """

    reads_slurm = False
    all_jobs: list[Job]
    slurm_nodes: dict[str, Node]

    def __init__(
        self,
        config: Config,
        viewer: Viewer,
        nodes: Sequence[Object] | None,
        rows: Sequence[PodView],
        reads: SharedReads,
    ) -> None:
        self.config, self.kube, self._nodes, self._rows = config, viewer.client, nodes, rows
        self._identity, self._reads = viewer.identity, reads
        self.all_jobs, self.slurm_nodes = [], {}
        self._events: dict[str, list[dict[str, Any]]] = {}

    def shared(self, what: Hashable, read: Callable[[], T]) -> T:
        """Return what ``read`` has returned to this user in the last seconds. A refusal is cached too."""

        def load() -> tuple[T | KubeForbiddenError, float]:
            try:
                return read(), REMEMBER
            except KubeForbiddenError as error:
                return error, REMEMBER

        answer: T | KubeForbiddenError = self._reads.get((self._identity, what), load)
        if isinstance(answer, KubeForbiddenError):
            raise answer.with_traceback(None)
        return answer

    def requested_on(self, node: str) -> Resources:
        """Return the requests of the pods on a node that have not ended."""
        amounts: Iterable[Resources] = (
            {resources.PODS: Decimal(1), "cpu": Decimal(row.cpu), "memory": Decimal(row.memory)}
            | {name: Decimal(amount) for name, amount in row.devices}
            for row in self._rows
            if row.open and row.node == node
        )
        return resources.total(amounts)

    def nodes(self, selector: str = "") -> list[dict[str, Any]]:
        """Return the nodes; raises :class:`KubeForbiddenError` if the user may not list them."""
        if self._nodes is None:
            raise KubeForbiddenError("you may not list nodes", status=403)
        return list(self._nodes)

    def group_counts(self, pod: Pod) -> tuple[int, int, int]:
        """Return how many pods of the pod's group exist, are bound and have not ended, and have ended."""
        members = self._group_rows(pod)
        return len(members), sum(row.open and bool(row.node) for row in members), sum(not row.open for row in members)

    def waiting_members(self, pod: Pod) -> list[Pod]:
        """Return the pods of the pod's group that wait for a place: what they select is known of ``pod`` alone."""
        waiting = (row for row in self._group_rows(pod) if row.open and not row.node and not row.deleted)
        return [_requesting(pod, row) for row in waiting]

    def _group_rows(self, pod: Pod) -> list[PodView]:
        key = links.key(pod)
        return [row for row in self._rows if row.group == key]

    def events(self, pod: Pod) -> list[dict[str, Any]]:
        """List the Events of a pod, oldest first; none if the user may not list them."""
        key = pod["metadata"]["uid"]
        if key not in self._events:
            try:
                self._events[key] = super().events(pod)
            except KubeForbiddenError:
                self._events[key] = []
        return self._events[key]


def _requesting(pod: Pod, row: PodView) -> Pod:
    amounts = {"cpu": row.cpu, "memory": row.memory, **dict(row.devices)}
    requests = {name: f"{Decimal(amount):f}" for name, amount in amounts.items()}
    containers = [{"name": "all", "resources": {"requests": requests}}]
    return {**pod, "spec": {**pod["spec"], "containers": containers, "initContainers": []}}


def run(connection: ConnectionOptions, settings: Mapping[str, Any]) -> int:
    """Serve the page until a signal arrives; return the exit status."""
    config = configuration.load(connection.config)
    logs.setup(config.logging.level if settings["sign_in"] else "WARNING", config.logging.format)

    reads = SharedReads(SystemClock(), MOST_READS)

    def explained(
        viewer: Viewer, pod: Object, nodes: Sequence[Object] | None, rows: Sequence[PodView]
    ) -> tuple[Object, list[Object]]:
        session = PageSession(config, viewer, nodes, rows, reads)
        return explain.describe(session, pod), session.events(pod)

    chosen = PageSettings(**settings, kubeconfig=connection.kubeconfig, context=connection.context)
    return Dashboard(config, chosen, explained).run(lambda url: click.echo(f"The page is at {url}"))
