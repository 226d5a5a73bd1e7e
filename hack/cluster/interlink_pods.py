"""Pods that reach podbridge's plugin by interLink's own programs, by podbridge's hub, or by both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import pools
from cluster.core import Cluster
from cluster.pods import PoolWorld
from cluster.systems.interlink import NAMESPACE, TOLERATION, Interlink
from cluster.world import Object

SITE = "slurm-site"
OTHER_SITE = "local-site"
"""A site for a second plugin: two plugins cannot use one site at a time."""


@dataclass(frozen=True)
class Route:
    """The way of a pod to the plugin: a node, and whether interLink's virtual kubelet is its kubelet."""

    node: str
    upstream: bool
    api: bool
    """Whether interLink's API server is between the client and the plugin."""

    def __str__(self) -> str:
        return self.node


CHAIN = Route("chain", upstream=True, api=True)
DIRECT = Route("direct", upstream=True, api=False)
HUB_SERVER = Route("hub-server", upstream=False, api=True)
HUB_PLUGIN = Route("hub-plugin", upstream=False, api=False)
UPSTREAM = (CHAIN, DIRECT)
HUB = (HUB_SERVER, HUB_PLUGIN)
ROUTES = UPSTREAM + HUB


class InterlinkWorld(PoolWorld):
    """A cluster with interLink's programs, a plugin at :data:`SITE`, and pods on each route."""

    numbers = itertools.count(1)

    def __init__(self, cluster: Cluster, env: dict[str, str] | None = None) -> None:
        """``env`` are variables of the hub and of the plugin."""
        super().__init__(cluster)
        self.interlink = Interlink(cluster)
        self._env = env

    def start(self) -> None:
        """Start the plugin, the API server, a virtual kubelet for each route of interLink's, and the hub."""
        self.cluster.add_namespace(NAMESPACE)
        self.interlink.start_plugin(SITE, env=self._env)
        self.interlink.start_api(self.interlink.url("plugin"))
        for route in UPSTREAM:
            server = "interlink-api" if route.api else "plugin"
            self.interlink.start_virtual_kubelet(route.node, self.interlink.url(server))
        self.start_hub()
        for route in HUB:
            self.ready(route.node)

    def start_hub(self) -> None:
        """Start podbridge's hub, with a pool for each of its routes."""
        sections = [
            {
                "name": route.node,
                "url": self.interlink.url("interlink-api" if route.api else "plugin"),
                "api": "server" if route.api else "plugin",
                "pollPeriod": 1,
                "pingPeriod": 2,
            }
            for route in HUB
        ]
        self.cluster.start_podbridge(config_overrides={"pools": {"interlink": sections}}, env=self._env)

    def kill_hub(self) -> None:
        """Kill podbridge's hub, and start it again."""
        self.cluster.kill("podbridge")
        self.start_hub()

    def put(
        self, route: Route, spec: Object, name: str | None = None, annotations: Mapping[str, str] | None = None
    ) -> Object:
        """Create a pod on a route; return the API server's answer."""
        own = name or f"i{next(self.numbers)}-{route}"
        if not route.upstream:
            return self.create_pod(spec, route.node, own, annotations)
        # no scheduler of this cluster binds pods to interLink's nodes
        bound = {**spec, "nodeName": route.node, "tolerations": [TOLERATION]}
        body = {"metadata": {"name": own, "annotations": dict(annotations or {})}, "spec": bound}
        found: Object = self.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        return found

    def put_script(self, route: Route, script: str, name: str | None = None, **spec: Any) -> Object:
        """Create a pod that runs a shell script on a route."""
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
        return self.put(route, {"containers": [container], "restartPolicy": "Never", **spec}, name)

    def add_objects(self, *bodies: Object) -> None:
        """Create ConfigMaps and Secrets in the namespaces of all routes."""
        for namespace, body in itertools.product((NAMESPACE, pools.NAMESPACE), bodies):
            kind = "configmaps" if body["kind"] == "ConfigMap" else "secrets"
            self.api.ensure(f"/api/v1/namespaces/{namespace}/{kind}", body)

    def queue_at_site(self) -> list[str]:
        """Return the names of the jobs in the site's Slurm that have not ended; a name contains the pod's UID."""
        return self.cluster.site_slurm(SITE, "squeue", "-h", "-o", "%j").split()

    def clear(self) -> None:
        """Delete every pod of all routes, and wait until no pod and no job is left."""
        self.api.delete_pods(NAMESPACE)
        super().clear()
