"""What all pages share: their sources, the pods that a user may see, and the rendering of a template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flask

from bridge.apps.dashboard.changes import Changes
from bridge.apps.dashboard.page_access import Viewer
from bridge.apps.dashboard.selection import Row, Table
from bridge.apps.dashboard.slurm_reader import SlurmState
from bridge.apps.view import node_view
from bridge.apps.view.node_view import NodeUse
from bridge.apps.view.pod_view import PodView
from bridge.clock import Clock
from bridge.kube.object_store import Object
from bridge.slurm.day_history import Sample

Explain = Callable[[Viewer, Object, Sequence[Object] | None, Sequence[PodView]], tuple[Object, list[Object]]]
"""``explain(viewer, pod, nodes, rows)``: the client of ``viewer`` reads, ``rows`` are those of all pods.

``nodes``: ``None`` if the viewer may not list them. It returns the report of ``podbridge explain pod``, and the Events
of the pod."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the pages read. ``pods`` returns objects of :func:`~bridge.apps.view.pod_view.keep`."""

    pods: Callable[[], list[Object]]
    nodes: Callable[[], list[Object]]
    problem: Callable[[], str]
    """Returns why the objects may be incomplete or old; empty if they are not."""
    explain: Explain
    slurm: Callable[[], SlurmState] = SlurmState
    pool_day: Callable[[], Sequence[Sample]] = tuple


class PageBase:
    """Pages; ``flask.g.viewer`` is the user of the request. ``scope`` names the namespace of the page, or none."""

    def __init__(self, sources: Sources, changes: Changes, clock: Clock, scope: str = "") -> None:
        self._sources, self._changes, self._clock, self._scope = sources, changes, clock, scope

    def _slurm(self) -> SlurmState:
        """Return the state of Slurm that the user may see."""
        may = self._viewer().sums()
        return self._sources.slurm() if may else SlurmState(None, "You may not read the state of Slurm.")

    def _rows(self) -> list[PodView]:
        return [obj["view"] for obj in self._sources.pods()]

    def _seen(self) -> tuple[list[PodView], dict[str, Any]]:
        """Return the pods that the user may list, and for a template their namespaces and whether it is ``limited``.

        A user with the right to list the pods of the namespace of the filter alone sees these.
        """
        everything = self._rows()
        allowed = self._viewer().namespaces({entry.namespace for entry in everything})
        namespace = flask.request.args.get("namespace", "")
        if allowed is not None and namespace and self._viewer().may("pods", namespace):
            allowed = {namespace}
        seen = [entry for entry in everything if allowed is None or entry.namespace in allowed]
        return seen, {"namespaces": sorted({entry.namespace for entry in seen}), "limited": allowed is not None}

    def _may_nodes(self) -> bool:
        return self._viewer().may("nodes", None)

    def _uses(self) -> tuple[list[NodeUse], list[NodeUse]]:
        """Return the pools and the other nodes, none for a user who may not list nodes."""
        return node_view.nodes(self._sources.nodes() if self._may_nodes() else [], self._rows())

    def begin(self) -> None:
        """Note the number of the last change before a page reads the objects."""
        flask.g.number = self._changes.number

    def _list(self, table: Table[Row], rows: Iterable[Row], **context: Any) -> str:
        """Render the page of a list, which has the name of its path."""
        name, chosen = table.path.removeprefix("/"), table.chosen(flask.request.args)
        context |= {"title": name.capitalize(), "filters": chosen, "page": chosen.page(rows)}
        return self._render(f"{name}.html", **context)

    def _render(self, template: str, **context: Any) -> str:
        return flask.render_template(
            template,
            number=flask.g.number,
            viewer=self._viewer().name,
            problem=self._sources.problem(),
            scope=self._scope,
            time=self._clock.time(),
            **context,
        )

    @staticmethod
    def _viewer() -> Viewer:
        viewer: Viewer = flask.g.viewer
        return viewer
