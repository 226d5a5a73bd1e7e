"""The pages: each reads the caches and the request, and renders a template. Errors leave them as exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flask

from bridge.apps.dashboard import plots, selection, timeline
from bridge.apps.dashboard.changes import Changes, Feed
from bridge.apps.dashboard.page_access import Viewer
from bridge.apps.dashboard.selection import Row, Table
from bridge.apps.dashboard.slurm_reader import SlurmState
from bridge.apps.view import node_map, node_view, pod_counts, pod_view, queue_view
from bridge.apps.view.node_view import NodeUse
from bridge.apps.view.pod_view import STATES, PodView, containers
from bridge.clock import Clock
from bridge.kube.object_store import Object
from bridge.kube.resources import PODS
from bridge.serving.http_error import AnswerError
from bridge.serving.log_body import log_response
from bridge.serving.streaming import ON_HANG_UP
from bridge.slurm.day_history import Sample

TAIL = 500
"""Lines of a log that its page begins with."""
MOST_TAIL = 100_000
LOG_BYTES = 8 * 2**20
"""Bytes of a log that is not followed, at most."""
SILENCE = 4 * 3600.0
"""Seconds that a followed log may be silent; the kubelet has the same limit."""


MOST_NODES = 50
"""Nodes on the overview, and pools."""


def foremost(uses: Sequence[NodeUse]) -> list[NodeUse]:
    """Return the nodes of the overview: those with a problem, then the busiest of the others, each sorted by name."""
    good = {use.name: not (use.problem or use.slurm) for use in uses}
    chosen = sorted(uses, key=lambda use: (good[use.name], -use.share, use.name))[:MOST_NODES]
    return sorted(chosen, key=lambda use: (good[use.name], use.name))


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


class Pages:
    """All pages; ``flask.g.viewer`` is the user of the request. ``scope`` names the namespace of the page, or none."""

    def __init__(self, sources: Sources, changes: Changes, clock: Clock, scope: str = "") -> None:
        self._sources, self._changes, self._clock, self._scope = sources, changes, clock, scope

    def begin(self) -> None:
        """Note the number of the last change before a page reads the objects."""
        flask.g.number = self._changes.number

    def overview(self) -> str:
        """Render the numbers of all pods, and the pools and nodes with a problem or much use."""
        seen, about = self._seen()
        may_nodes = self._may_nodes()
        pools, nodes = self._uses()
        return self._render(
            "overview.html",
            title="Overview",
            counts=pod_counts.counts(seen),
            reasons=pod_counts.reasons(seen),
            pools=pools,
            nodes=nodes,
            foremost=foremost,
            days=[day for day in self._days(may_nodes) if day[1]],
            may_nodes=may_nodes,
            **about,
        )

    def _days(self, may_nodes: bool) -> list[tuple[str, list[plots.Plot]]]:
        """Return the plots of Slurm and of the pools that the user may see."""
        now = self._clock.time()
        pool_day = self._sources.pool_day() if may_nodes else ()
        return [("Slurm", plots.of(self._slurm().day, now)), ("pools", plots.of(pool_day, now, what="pods"))]

    def nodes(self) -> str:
        """Render one page of the selected pools and nodes."""
        pools, nodes = self._uses()
        shown = {"states": node_view.NODE_STATES, "kinds": node_view.KINDS, "may_nodes": self._may_nodes()}
        return self._list(selection.NODES, [*pools, *nodes], **shown)

    def map(self) -> str:
        """Render the map of Slurm's nodes and of the pools."""
        slurm, filters = self._slurm(), selection.MAP.chosen(flask.request.args)
        cells = node_map.of_slurm(slurm.sums.nodes if slurm.sums is not None else ())
        pools = node_map.of_pools(self._uses()[0])
        return self._list(
            selection.MAP,
            cells,
            slurm=slurm,
            totals=node_map.totals(cells),
            pools=list(filter(filters.selects, pools)),
            pool_totals=node_map.totals(pools) if pools else None,
            chosen=next((cell for cell in (*cells, *pools) if cell.name == filters["node"]), None),
            states=node_map.CELL_STATES,
            partitions=sorted({name for cell in cells for name in cell.partitions}),
            may_nodes=self._may_nodes(),
        )

    def queue(self) -> str:
        """Render what waits at each place, and one page of the waiting pods that the user may see."""
        slurm, (seen, about) = self._slurm(), self._seen()
        pools = {use.name for use in self._uses()[0]}
        return self._list(
            selection.QUEUE,
            queue_view.waiting_pods(seen, pools, slurm.sums),
            slurm=slurm,
            places=queue_view.places(self._rows(), pools, slurm.sums),
            may_nodes=self._may_nodes(),
            **about,
        )

    def workloads(self) -> str:
        """Render one page of the selected workloads."""
        seen, about = self._seen()
        return self._list(selection.WORKLOADS, pod_counts.workloads(seen), **about)

    def pods(self) -> str:
        """Render one page of the selected pods."""
        seen, about = self._seen()
        now = self._clock.time()
        return self._list(
            selection.PODS,
            seen,
            states=STATES,
            axis_of=lambda rows: timeline.axis(rows, now),
            bar_of=lambda entry, over: timeline.segments(entry.times, entry.state, over, now),
            **about,
        )

    def pod(self, namespace: str, name: str) -> str:
        """Render one pod: its timeline and why it waits."""
        now = self._clock.time()
        pod = self._read(namespace, name)
        entry = pod_view.of(pod)
        may_nodes = self._may_nodes()
        nodes = self._sources.nodes() if may_nodes else None
        report, events = self._sources.explain(self._viewer(), pod, nodes, self._rows())
        report = report if may_nodes else {**report, "nodes": []}
        over = timeline.axis([entry], now)
        return self._render(
            "pod.html",
            title=f"{namespace}/{name}",
            row=entry,
            uid=pod["metadata"]["uid"],
            containers=containers(pod),
            report=report,
            steps=timeline.steps(pod, entry, events),
            axis=over,
            bar=timeline.segments(entry.times, entry.state, over, now),
        )

    def logs(self, namespace: str, name: str) -> str:
        """Render the page of a log; its script reads :meth:`log`."""
        names = containers(self._read(namespace, name))
        chosen = flask.request.args.get("container") or (names[0] if names else "")
        if chosen not in names:
            raise AnswerError(404, f"pod {name} has no container {chosen[:100]!r}; it has {', '.join(names)}")
        return self._render(
            "logs.html",
            title=f"Log of {namespace}/{name}",
            namespace=namespace,
            name=name,
            containers=names,
            container=chosen,
            tail=TAIL,
        )

    def log(self, namespace: str, name: str, container: str) -> flask.Response:
        """Return the log of a container as plain text, read with the rights of the user; ``?follow`` continues it."""
        query = flask.request.args
        tail = query.get("tail", str(TAIL))
        if not (tail.isascii() and tail.isdigit() and len(tail) < 10 and int(tail) <= MOST_TAIL):
            raise AnswerError(400, f"tail: {tail[:20]!r} is not allowed; allowed: 0 to {MOST_TAIL}")
        params: dict[str, str | int | bool] = {"container": container, "tailLines": int(tail)}
        if "follow" in query:
            params["follow"] = True
        else:
            params["limitBytes"] = LOG_BYTES
        path = PODS.path(namespace, name, "log")
        pieces = self._viewer().client.text(path, params, idle_timeout=SILENCE if "follow" in query else 30.0)
        answer = log_response(pieces, pod=f"{namespace}/{name}")
        # nginx, also as an ingress, would otherwise collect the pieces of a followed log
        answer.headers["X-Accel-Buffering"] = "no"
        return answer

    def changes(self) -> flask.Response:
        """Return the stream of changes, from the number that the page has on, to a user who may list any object."""
        viewer, namespace = self._viewer(), flask.request.args.get("namespace", "")
        if not (
            viewer.may("nodes", None)
            or (namespace and viewer.may("pods", namespace))
            or viewer.namespaces({entry.namespace for entry in self._rows()}) != set()
        ):
            raise AnswerError(403, "you may list neither pods nor nodes")
        after = flask.request.headers.get("Last-Event-ID") or flask.request.args.get("after", "")
        # -1 differs from every number: a page that names none gets a message at once
        feed = Feed(self._changes, int(after) if after.isascii() and after.isdigit() and len(after) < 10 else -1)
        flask.request.environ.get(ON_HANG_UP, lambda _: None)(feed.close)
        return flask.Response(feed, content_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

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

    def _read(self, namespace: str, name: str) -> Object:
        """Read a pod with the rights of the user."""
        return self._viewer().client.get(PODS.path(namespace, name))

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
