"""The pages: each reads the caches and the request, and renders a template. Errors leave them as exceptions."""

from __future__ import annotations

from collections.abc import Sequence

import flask

from bridge.apps.dashboard import plots, selection, timeline
from bridge.apps.dashboard.changes import Feed
from bridge.apps.dashboard.page_base import PageBase
from bridge.apps.view import node_map, node_view, pod_counts, pod_view, queue_view
from bridge.apps.view.node_view import NodeUse
from bridge.apps.view.pod_view import STATES, containers
from bridge.kube.object_store import Object
from bridge.kube.resources import PODS
from bridge.serving.http_error import AnswerError
from bridge.serving.log_body import log_response
from bridge.serving.streaming import ON_HANG_UP

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


class Pages(PageBase):
    """The overview, the lists of the page, their map, a pod and its logs."""

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

    def _read(self, namespace: str, name: str) -> Object:
        """Read a pod with the rights of the user."""
        return self._viewer().client.get(PODS.path(namespace, name))
