"""Carries out the actions for virtual nodes, and renews their leases."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bridge.clock import Clock, rfc3339
from bridge.errors import KubeConflictError, KubeInvalidError, KubeNotFoundError
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import LEASES, NODES, PODS
from bridge.logs import kv
from bridge.telemetry.metrics import POOL_ACTIONS, counted, label_of
from controllers.virtual import virtual_node_decide
from controllers.virtual.node_manifest import Body

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40


class NodeWriter:
    """Writes Nodes and their Leases.

    ``check_leadership`` raises LostLeadershipError if this process is not the leader. ``forget`` removes a pool.
    """

    def __init__(
        self,
        kube: KubeClient,
        cache: Cache,
        events: EventRecorder,
        clock: Clock,
        check_leadership: Callable[[], None],
        remove_after: float,
        forget: Callable[[str], None],
    ) -> None:
        self._kube = kube.fenced(check_leadership)
        self._cache = cache
        self._events = events
        self._clock = clock
        self._remove_after = remove_after
        self._forget = forget
        self._written: dict[str, tuple[Body, float]] = {}

    def written(self) -> dict[str, tuple[Body, float]]:
        """Return the last status written to each node, without times, and the monotonic time of the write."""
        return dict(self._written)

    def drop(self, name: str) -> None:
        """Discard what was written to a node that does not exist any more."""
        self._written.pop(name, None)

    def act(self, action: virtual_node_decide.Action) -> None:
        """Carry out one action."""
        name = f"node_{label_of(type(action))}"
        with counted(POOL_ACTIONS, name):
            self._do(action)

    def _do(self, action: virtual_node_decide.Action) -> None:
        match action:
            case virtual_node_decide.Create():
                self._create(action)
            case virtual_node_decide.Describe():
                path = NODES.path(name=action.node["metadata"]["name"])
                self._cache.apply(self._kube.patch(path, action.patch, kind="merge"))
            case virtual_node_decide.ReportStatus():
                self._report(action)
            case virtual_node_decide.Vanish():
                self._vanish(action.node)
            case virtual_node_decide.Forget():
                self._forget(action.name)
            case virtual_node_decide.Collide():
                name = action.node["metadata"]["name"]
                text = f"a pool announces itself as {name}, but this node is not podbridge's: the pool is not used"
                log.error("a pool has the name of a node", extra=kv(pool=name))
                self._events.event(action.node, "PoolNameTaken", text, warning=True, action="Registering")

    def _create(self, action: virtual_node_decide.Create) -> None:
        try:
            node = self._kube.create(NODES.path(), action.body)
        except KubeConflictError:
            return  # a node of this name exists: the cache will show whether it is podbridge's
        self._written[action.name] = (action.status, self._clock.monotonic())
        self._events.event(node, "PoolRegistered", f"the node of pool {action.name} was created", action="Registering")
        log.info("node created", extra=kv(node=action.name))

    def _report(self, action: virtual_node_decide.ReportStatus) -> None:
        name = action.node["metadata"]["name"]
        path = NODES.path(name=name, sub="status")
        try:
            answer = self._kube.patch(path, action.patch, kind="strategic")
        except KubeInvalidError as error:
            # the conditions are essential: they keep pods away from a silent site
            log.warning("the API server refuses the status of a virtual node", extra=kv(node=name, error=error))
            conditions_only = {"conditions": action.patch["status"]["conditions"]}
            answer = self._kube.patch(path, {**action.patch, "status": conditions_only}, kind="strategic")
        self._cache.apply(answer)
        self._written[name] = (action.status, self._clock.monotonic())
        if action.news is not None:
            reason, message, warning = action.news
            self._events.event(action.node, reason, message, warning=warning, action="Reporting")
            log.info("the state of a node has changed", extra=kv(node=name, reason=reason, message=message))

    def _vanish(self, node: virtual_node_decide.Node) -> None:
        """Delete the node of a pool that has been silent for long enough, unless a pod is bound to it."""
        name = node["metadata"]["name"]
        try:
            fresh = self._kube.get(NODES.path(name=name))
            if not virtual_node_decide.may_vanish(fresh, self._remove_after, self._clock.time()):
                return
            bound = self._kube.get(PODS.path(), {"fieldSelector": f"spec.nodeName={name}", "limit": 1})
            if bound.get("items"):
                return
            # a pod may be bound between the two requests, which does not change the node's resourceVersion; Kubernetes'
            # garbage collection then deletes this pod, which has not started
            metadata = fresh["metadata"]
            conditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            self._kube.delete(NODES.path(name=name), {"preconditions": conditions})
        except (KubeNotFoundError, KubeConflictError):
            return
        self.drop(name)
        log.warning("the node of a silent pool was deleted", extra=kv(node=name))

    def renew(self, node: virtual_node_decide.Node) -> None:
        """Renew the node's lease; create it if it does not exist."""
        name = node["metadata"]["name"]
        spec: dict[str, Any] = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": rfc3339(self._clock.time(), micro=True),
        }
        try:
            self._kube.patch(LEASES.path(LEASE_NAMESPACE, name), {"spec": spec})
        except KubeNotFoundError:
            # Kubernetes' garbage collection deletes the lease with its node
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
            body = {
                "apiVersion": LEASES.api_version,
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
                "spec": spec,
            }
            self._kube.create(LEASES.path(LEASE_NAMESPACE), body)
