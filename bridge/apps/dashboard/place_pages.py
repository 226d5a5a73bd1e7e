"""The pages of the places where pods run: the list of nodes and pools, their map, and their queues."""

from __future__ import annotations

import flask

from bridge.apps.dashboard import selection
from bridge.apps.dashboard.page_base import PageBase
from bridge.apps.view import node_map, node_view, queue_view
from bridge.apps.view.node_view import NodeUse


class PlacePages(PageBase):
    """The pages of nodes, pools and partitions."""

    def nodes(self) -> str:
        """Render one page of the selected pools and nodes."""
        number = self._changes.number
        filters = selection.NodeFilters.of(flask.request.args)
        pools, nodes = self._uses()
        return self._render(
            "nodes.html",
            number,
            title="Nodes",
            filters=filters,
            page=selection.node_page(pools, nodes, filters),
            states=node_view.NODE_STATES,
            kinds=selection.KINDS,
            may_nodes=self._may_nodes(),
        )

    def map(self) -> str:
        """Render the map of Slurm's nodes and of the pools."""
        number = self._changes.number
        filters = selection.MapFilters.of(flask.request.args)
        slurm = self._slurm()
        cells = node_map.of_slurm(slurm.sums.nodes if slurm.sums is not None else ())
        pools = node_map.of_pools(self._uses()[0])
        return self._render(
            "map.html",
            number,
            title="Map",
            filters=filters,
            slurm=slurm,
            page=selection.cell_page(cells, filters),
            totals=node_map.totals(cells),
            pools=[cell for cell in pools if filters.selects(cell)],
            pool_totals=node_map.totals(pools) if pools else None,
            chosen=next((cell for cell in (*cells, *pools) if cell.name == filters.node), None),
            states=node_map.CELL_STATES,
            partitions=sorted({name for cell in cells for name in cell.partitions}),
            may_nodes=self._may_nodes(),
        )

    def queue(self) -> str:
        """Render what waits at each place, and one page of the waiting pods that the user may see."""
        number = self._changes.number
        filters = selection.QueueFilters.of(flask.request.args)
        slurm = self._slurm()
        pools = {use.name for use in self._uses()[0]}
        seen, limited = self._seen_in(filters.namespace)
        return self._render(
            "queue.html",
            number,
            title="Queue",
            filters=filters,
            slurm=slurm,
            places=queue_view.places(self._rows(), pools, slurm.sums),
            page=selection.queue_page(queue_view.waiting_pods(seen, pools, slurm.sums), filters),
            namespaces=sorted({entry.namespace for entry in seen}),
            limited=limited,
            may_nodes=self._may_nodes(),
        )

    def _may_nodes(self) -> bool:
        return self._viewer().may("nodes", None)

    def _uses(self) -> tuple[list[NodeUse], list[NodeUse]]:
        """Return the pools and the other nodes, none for a user who may not list nodes."""
        return node_view.nodes(self._sources.nodes() if self._may_nodes() else [], self._rows())
