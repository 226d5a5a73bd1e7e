"""The pages of the places where pods run: the list of nodes and pools, their map, and their queues."""

from __future__ import annotations

import flask

from bridge.apps.dashboard import selection
from bridge.apps.dashboard.page_base import PageBase
from bridge.apps.view import node_map, node_view, queue_view


class PlacePages(PageBase):
    """The pages of nodes, pools and partitions."""

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
        slurm, (seen, limited) = self._slurm(), self._seen()
        pools = {use.name for use in self._uses()[0]}
        return self._list(
            selection.QUEUE,
            queue_view.waiting_pods(seen, pools, slurm.sums),
            slurm=slurm,
            places=queue_view.places(self._rows(), pools, slurm.sums),
            namespaces=sorted({entry.namespace for entry in seen}),
            limited=limited,
            may_nodes=self._may_nodes(),
        )
