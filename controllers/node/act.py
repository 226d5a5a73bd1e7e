"""Carries out the actions of the node controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bridge import names
from bridge.fencing import fence
from bridge.kube.resources import NODES
from bridge.logs import kv
from bridge.loop import Dependencies
from controllers.node import decide

log = logging.getLogger(__name__)


class Actor:
    """Writes to nodes in Kubernetes and in Slurm.

    Each patch of a Kubernetes node has, as precondition, the resourceVersion of the node in the decision.
    """

    def __init__(self, dependencies: Dependencies, check_leadership: Callable[[], None]) -> None:
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.nodes
        self._events = dependencies.events
        self._check_leadership = check_leadership

    def act(self, action: decide.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        node = action.node
        name = node["metadata"]["name"]
        match action:
            case decide.Taint():
                self._patch(node, {"spec": {"taints": list(action.taints) or None}})
            case decide.Dispute():
                self._patch(node, {"metadata": {"annotations": {names.SLURM_NAME_CONFLICT: action.why or None}}})
                if action.why:
                    text = f"{action.why}: none of these nodes is used until only one claims it"
                    self._events.event(node, "SlurmNameConflict", text, warning=True)
                else:
                    self._events.event(node, "SlurmNameSettled", "no other node claims the same Slurm node now")
            case decide.Cordon():
                self._patch(node, {"spec": {"unschedulable": True}, **_annotation(action.why)})
                self._events.event(node, "SlurmNodeDrained", f"cordoned: drained in Slurm, {action.why}", warning=True)
            case decide.Uncordon():
                self._patch(node, {"spec": {"unschedulable": None}, **_annotation(None)})
                self._events.event(node, "SlurmNodeResumed", "uncordoned: no longer drained in Slurm")
            case decide.Drain():
                with fence(self._check_leadership):
                    self._slurm.set_node(action.slurm_node, "DRAIN", action.reason)
                self._events.event(
                    node, "SlurmNodeDraining", f"drained Slurm node {action.slurm_node}: cordoned in Kubernetes"
                )
                self._poller.wake(nodes=True)
            case decide.Undrain():
                with fence(self._check_leadership):
                    self._slurm.set_node(action.slurm_node, "UNDRAIN")
                self._events.event(
                    node, "SlurmNodeUndrained", f"resumed Slurm node {action.slurm_node}: uncordoned in Kubernetes"
                )
                self._poller.wake(nodes=True)
        log.info("node updated", extra=kv(node=name, action=type(action).__name__.lower()))

    def _patch(self, node: decide.KubeNode, patch: dict[str, Any]) -> None:
        metadata = patch.setdefault("metadata", {})
        metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        metadata["uid"] = node["metadata"]["uid"]
        self._cache.apply(self._kube.patch(NODES.path(name=node["metadata"]["name"]), patch, kind="merge"))


def _annotation(why: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {names.SLURM_REASON: why}}}
