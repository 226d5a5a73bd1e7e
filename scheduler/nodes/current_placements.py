"""The placements on the current nodes, computed again only after a change of what they depend on."""

from __future__ import annotations

from bridge.control.control_loop import Dependencies
from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.workload import eligibility, node_ownership, pool_selection
from bridge.workload.eligibility import NodeView
from scheduler.devices.device_names import DeviceNames
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import Placements
from scheduler.volumes.storage import Storage


class CurrentPlacements:
    """Makes the placements; used by the thread of the loop. Workers read ``current``."""

    def __init__(
        self, dependencies: Dependencies, storage: Storage, occupancy: Occupancy, device_names: DeviceNames
    ) -> None:
        self._dependencies, self._storage = dependencies, storage
        self._occupancy, self._device_names = occupancy, device_names
        self.current = Placements([], {}, {})
        self._changes = 0
        self._inputs: tuple[object, ...] = ()
        self._node_names: list[str] = []
        self._remembered: dict[str, NodeView] = {}

    def node_changed(self) -> None:
        """Compute the placements again. Called by the thread of the cache of nodes alone."""
        self._changes += 1

    def of(self, snapshot: Snapshot, time: float) -> Placements:
        """Return the placements; ``time`` is in seconds since 1970."""
        config, slurm = self._dependencies.config, self._dependencies.slurm
        lasting = self._occupancy.lasting(time - config.busy_node_timeout)
        # only Slurm's nodes: a pod of another scheduler anywhere else must not cause new placements
        taken = {name: lasting[name] for name in self._node_names if name in lasting}
        # not all states of the nodes: the others change with each job, and would cause new placements each time
        asleep = frozenset(name for name, node in snapshot.nodes.items() if states.is_asleep(node.states))
        partitions = tuple(sorted(snapshot.partitions.items()))
        extended = frozenset(self._device_names.class_by_resource) if slurm.version.allocations else frozenset[str]()
        # Slurm allocates drained nodes to no job, so pending jobs need not exclude them
        drained = frozenset(name for name, node in snapshot.nodes.items() if "DRAIN" in node.states)
        inputs = (self._changes, taken, frozenset(snapshot.nodes), asleep, drained, partitions, extended)
        if inputs != self._inputs:
            real_nodes = (node for node in self._dependencies.nodes.items() if not pool_selection.is_virtual(node))
            selected = (node for node in real_nodes if node_ownership.is_selected(config, node))
            nodes = [eligibility.with_devices(node, extended) for node in eligibility.views(selected, lasting)]
            self._node_names = [node.name for node in nodes if node.slurm_name in snapshot.nodes]
            nodes_by_name = self._remembered | {node.slurm_name: node for node in nodes if not node.rivals}
            self._remembered = {name: node for name, node in nodes_by_name.items() if name in snapshot.nodes}
            self.current = Placements(nodes, snapshot.nodes, snapshot.partitions, self._remembered, self._storage)
            self._inputs = inputs
        return self.current
