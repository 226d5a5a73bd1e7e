"""Pods on a fake NuNet DMS: podbridge's hub with two virtual nodes, by the peers' type of GPU."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from bridge.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from cluster.core import Cluster
from cluster.pods import PoolWorld
from cluster.pools import NAMESPACE
from cluster.systems.dms import SECONDS, FakeDms
from cluster.world import Object

RTX, PLAIN = "nunet-rtx", "nunet-plain"
NODES = (RTX, PLAIN)
LEASE = {"leaseDuration": 3, "renewDeadline": 2, "retryPeriod": 0.5}
"""A hub that was killed is replaced after 3 s."""
WEBHOOKS = (MUTATING_WEBHOOKS.path(name="podbridge-mutate"), VALIDATING_WEBHOOKS.path(name="podbridge-validate"))
GPU = "nunet.io/gpu.nvidia.rtx.3080.10gb"


class NunetWorld(PoolWorld):
    """A started cluster, the DMS, and podbridge. It stops the DMS and podbridge at its end."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.dms = FakeDms()

    def __enter__(self) -> NunetWorld:
        self.dms.start()
        self.cluster.add_namespace(NAMESPACE, {"bridge.vk.io/pools": "*"})
        self.cluster.open_to_pools(NAMESPACE)
        self.start_hub()
        for node in NODES:
            self.ready(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.stop_podbridge()
        for path in WEBHOOKS:  # else the pods of other tests of the cluster are refused
            self.cluster.api("DELETE", path)
        self.dms.stop()

    def start_hub(self) -> None:
        """Start podbridge's hub."""
        section = {
            "name": "nunet",
            "url": self.dms.url,
            "groups": [{"name": RTX, "gpuTypes": ["nvidia.rtx.*"]}, {"name": PLAIN, "gpuTypes": ["none"]}],
            "cancelPath": "/api/v1/job/{job}",
            "pollPeriod": 0.5,
            "pingPeriod": 1,
        }
        remote = {"nunet": [section], "nodeAddress": "127.0.0.1", "kubeletPort": 0}
        settings = {"slurmRestApi": "", "managedNamespaces": [NAMESPACE], "pools": remote, "leaderElection": LEASE}
        self.cluster.start_podbridge(config_overrides=settings)

    def kill_hub(self) -> None:
        """Kill podbridge's hub, and start it again."""
        self.cluster.kill("podbridge")
        self.start_hub()

    def put(
        self,
        node: str,
        name: str,
        seconds: float = 2,
        *,
        gpu: bool = False,
        cpu: int = 1,
        env: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        """Create a pod whose job lasts some seconds; ``gpu``: it requests an RTX 3080."""
        limits = {"cpu": str(cpu), "memory": "1Gi", **({GPU: "1"} if gpu else {})}
        variables = [{"name": key, "value": value} for key, value in {SECONDS: f"{seconds:g}", **(env or {})}.items()]
        container = {
            "name": "main",
            "image": "busybox",
            "args": ["work"],
            "env": variables,
            "resources": {"limits": limits},
        }
        return self.create_pod({"containers": [container], "restartPolicy": "Never", **spec}, node, name, annotations)

    def jobs(self, pod: Object) -> list[str]:
        """Return the states of the jobs that the DMS got for a pod."""
        return [job.state for job in self.dms.jobs_of(pod["metadata"]["uid"])]
