"""Carries out the actions of the node controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from bridge import names
from bridge.control.control_loop import Dependencies
from bridge.errors import SlurmRefusedError
from bridge.http.fencing import fence
from bridge.kube.resources import NODES
from bridge.logs import kv
from bridge.slurm import states
from bridge.slurm.external_nodes import ALREADY_EXISTS
from controllers.node import external, node_actions

log = logging.getLogger(__name__)


class NodeActor:
    """Writes to nodes in Kubernetes and in Slurm.

    Each patch of a Kubernetes node has, as precondition, the resourceVersion of the node in the decision.
    """

    def __init__(self, dependencies: Dependencies, check_leadership: Callable[[], None]) -> None:
        self._kube = dependencies.kube.fenced(check_leadership)
        self._slurm = dependencies.slurm
        self._poller = dependencies.poller
        self._cache = dependencies.nodes
        self._events = dependencies.events
        self._cluster = dependencies.cluster
        self._check_leadership = check_leadership

    def act(self, action: node_actions.Action) -> None:
        """Carry out one action; raises :class:`~bridge.errors.BridgeError`."""
        match action:
            case node_actions.Drain() | node_actions.Undrain() if not self._may_set_drain(action):
                self._poller.wake(nodes=True)
                return
            case node_actions.Drain():
                cause = action.reason.removeprefix(names.DRAIN_REASON_PREFIX).strip()
                text = f"drained Slurm node {action.slurm_node}: {cause}"
                self._set_drain(action, "DRAIN", action.reason + external.drain_mark(self._cluster), text)
            case node_actions.Undrain():
                text = f"resumed Slurm node {action.slurm_node}: the cause of podbridge's drain is over"
                self._set_drain(action, "UNDRAIN", external.RESUME_REASON, text)
            case node_actions.Register():
                self._register(action)
            case node_actions.Unregister():
                self._unregister(action)
            case _:
                patch, event = _patch_and_event(action)
                self._patch(action.node, patch)
                if event is not None:
                    self._events.event(action.node, event.reason, event.text, warning=event.warning)
        name = action.node["metadata"]["name"]
        log.info("node updated", extra=kv(node=name, action=type(action).__name__.lower()))

    def _may_set_drain(self, action: node_actions.SlurmDrain) -> bool:
        """Whether Slurm does not start the node for a job, and its drain is not an administrator's since the snapshot.

        The drain of an administrator would get podbridge's reason, or end.
        """
        slurm_node = self._slurm.node(action.slurm_node)
        if slurm_node is None:
            return False
        if isinstance(action, node_actions.Undrain):
            return external.is_ours(slurm_node)
        is_free = not states.is_drained(slurm_node.states) or external.is_ours(slurm_node)
        return is_free and not states.is_starting(slurm_node.states)

    def _set_drain(
        self, action: node_actions.SlurmDrain, state: Literal["DRAIN", "UNDRAIN"], reason: str, text: str
    ) -> None:
        with fence(self._check_leadership):
            self._slurm.set_node(action.slurm_node, state, reason)
        self._events.event(action.node, "SlurmNodeDraining" if state == "DRAIN" else "SlurmNodeUndrained", text)
        self._poller.wake(nodes=True)

    def tell_taken(self, node: node_actions.KubeNode, holder: str) -> None:
        """Report a node that another scheduler has taken, by an Event of the node and in the log."""
        text = (
            f"not used: scheduler {holder} has taken this node (taint {names.MANAGED_TAINT}={holder}). If it is not "
            f"to, change nodes.selector or partitions in its configuration; if it does not exist any more, run: "
            f"kubectl taint node {node['metadata']['name']} {names.MANAGED_TAINT}-"
        )
        self._events.event(node, "NodeTakenByOther", text, warning=True)
        log.warning("node not used: another scheduler has taken it", extra=kv(node=node["metadata"]["name"], by=holder))

    def _register(self, action: node_actions.Register) -> None:
        external_node = action.external_node
        try:
            with fence(self._check_leadership):
                self._slurm.add_external_node(external_node, self._cluster)
        except SlurmRefusedError as error:
            self._poller.wake(nodes=True)
            # also after a crash or a lost answer: the mark in its features shows whose node it is
            if error.code == ALREADY_EXISTS:
                return  # the next decision knows whose it is
            self._events.event(action.node, "ExternalNodeRefused", str(error), warning=True)
            raise
        size = ", ".join([f"{external_node.cpus} CPUs", f"{external_node.memory_mib} MiB", *external_node.gres])
        text = f"registered as external node {external_node.name} in Slurm: {size}"
        self._events.event(action.node, "ExternalNodeRegistered", text)
        self._poller.wake(nodes=True)

    def _unregister(self, action: node_actions.Unregister) -> None:
        # the view may be a second old, and an administrator may have taken over the drain
        slurm_node = self._slurm.node(action.slurm_node)
        if slurm_node is not None and external.may_delete(slurm_node, self._cluster):
            with fence(self._check_leadership):
                self._slurm.delete_node(slurm_node.name)  # slurmctld refuses it if the node has a job by now
            self._events.event(action.node, "ExternalNodeDeleted", f"deleted external node {slurm_node.name} in Slurm")
        self._poller.wake(nodes=True)

    def _patch(self, node: node_actions.KubeNode, patch: dict[str, Any]) -> None:
        metadata = patch.setdefault("metadata", {})
        metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        metadata["uid"] = node["metadata"]["uid"]
        self._cache.apply(self._kube.patch(NODES.path(name=node["metadata"]["name"]), patch, kind="merge"))


class _Event(NamedTuple):
    reason: str
    text: str
    warning: bool = True


def _patch_and_event(action: node_actions.Patch) -> tuple[dict[str, Any], _Event | None]:
    match action:
        case node_actions.Taint():
            # replaces the list: the resourceVersion refuses it if others have changed the taints since the decision
            return {"spec": {"taints": list(action.taints) or None}}, None
        case node_actions.Label():
            return {"metadata": {"labels": dict(action.labels)}}, None
        case node_actions.MarkAsleep():
            return _annotation(names.SLURM_ASLEEP, "true" if action.asleep else None), None
        case node_actions.Dispute():
            event = _Event("SlurmNameSettled", "no other node claims the same Slurm node now", warning=False)
            if action.why:
                text = f"{action.why}: none of these nodes is used until only one claims it"
                event = _Event("SlurmNameConflict", text)
            return _annotation(names.SLURM_NAME_CONFLICT, action.why or None), event
        case node_actions.Cordon():
            event = _Event("SlurmNodeDrained", f"cordoned: drained in Slurm, {action.why}")
            return {"spec": {"unschedulable": True}, **_annotation(names.SLURM_REASON, action.why)}, event
        case node_actions.Uncordon():
            event = _Event("SlurmNodeResumed", "uncordoned: no longer drained in Slurm", warning=False)
            return {"spec": {"unschedulable": None}, **_annotation(names.SLURM_REASON, None)}, event
        case node_actions.Explain():
            refused = _Event("ExternalNodeRefused", action.problem) if action.problem else None
            return _annotation(names.EXTERNAL_NODE_PROBLEM, action.problem or None), refused


def _annotation(name: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: value}}}
