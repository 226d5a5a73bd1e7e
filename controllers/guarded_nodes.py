"""The ConfigMap with the names of the nodes that a ValidatingAdmissionPolicy guards (config/policies.yaml).

A policy of the API server cannot read nodes, but it can read a ConfigMap. So the controllers write the names of the
nodes that Slurm manages and of virtual nodes there. While podbridge is down, the policy applies to the last names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from bridge import names
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.lease import Elector
from bridge.kube.resources import CONFIGMAPS
from bridge.logs import kv
from bridge.telemetry.metrics import GUARDED_NODES
from bridge.workload import node_ownership, pool_selection

log = logging.getLogger(__name__)

AGAIN = 60.0
"""Seconds after which the ConfigMap is compared again: a user may have changed it."""
RETRY_AFTER = 5.0
SLURM, POOL = "slurm", "pool"


def guarded(nodes: Iterable[Mapping[str, Any]], scheduler_name: str, *, pools: bool = True) -> dict[str, str]:
    """Return the kinds of the nodes to guard, ``slurm`` or ``pool``, by the name of the node.

    These are the nodes with the taint of this scheduler, and, if the installation has ``pools``, the virtual nodes.
    """
    kinds = {}
    for node in nodes:
        if pool_selection.is_virtual(node):
            if pools:
                kinds[node["metadata"]["name"]] = POOL
        elif node_ownership.is_taken_by(node, scheduler_name):
            kinds[node["metadata"]["name"]] = SLURM
    return kinds


def difference(live: Mapping[str, str], desired: Mapping[str, str]) -> dict[str, str | None]:
    """Return the merge patch of ``data`` from the live list to the desired one; empty if they are equal."""
    removed: dict[str, str | None] = {name: None for name in live if name not in desired}
    return removed | {name: kind for name, kind in desired.items() if live.get(name) != kind}


class GuardedNodes(Loop):
    """Writes the ConfigMap when the set of guarded nodes changes."""

    def __init__(self, shared: KubeDependencies, elector: Elector | None) -> None:
        super().__init__("guarded-nodes", (shared.nodes,), elector, 1, shared.clock)
        config = self._config = shared.config
        self._nodes = shared.nodes
        self._kube = shared.kube.fenced(self.check_leadership)
        self._path = CONFIGMAPS.path(config.leader_election.namespace, names.guarded_nodes(config.installation))
        self._written: dict[str, str] | None = None
        self._due = 0.0
        self._reported = ""

    def on_started_leading(self) -> None:
        """Compare again: a former leader may have written."""
        self._written, self._due = None, 0.0

    def reconcile(self) -> None:
        """Write the ConfigMap after a change of the nodes, and compare it every ``AGAIN`` seconds."""
        config, now = self._config, self.clock.monotonic()
        desired = guarded(self._nodes.items(), config.scheduler_name, pools=config.pools.enabled)
        changed = self._written is not None and desired != self._written
        if now >= self._due or changed:
            self.workers.submit("guarded-nodes", lambda: self._write(desired))

    def _write(self, desired: dict[str, str]) -> None:
        # unknown until the write has succeeded: after an error, the next reconciliation compares again
        self._written, self._due = None, self.clock.monotonic() + RETRY_AFTER
        try:
            live = self._kube.get(self._path).get("data") or {}
            patch = difference(live, desired)
            if patch:
                self._kube.patch(self._path, {"data": patch}, kind="merge")
        except (KubeNotFoundError, KubeForbiddenError) as error:
            # the policy then fails open: to fail closed would stop all pods
            GUARDED_NODES.set(0)
            self._report(f"nodes are not guarded: {error}", error)
            self._due = self.clock.monotonic() + AGAIN
            return
        self._written, self._due, self._reported = desired, self.clock.monotonic() + AGAIN, ""
        GUARDED_NODES.set(len(desired))
        if patch:
            log.info("guarded nodes written", extra=kv(nodes=len(desired), changed=len(patch)))

    def _report(self, text: str, error: BridgeError) -> None:
        if text != self._reported:
            log.warning("nodes are not guarded: kubectl apply -f config/policies.yaml", extra=kv(error=error))
        self._reported = text
