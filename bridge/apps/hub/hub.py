"""The process of the hub: creates its parts, starts them and stops them."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from admission.admission_app import Admission
from admission.node_sizes import NodeSizes
from bridge import __version__, names
from bridge.apps.hub.hub_hints import HintServers
from bridge.apps.hub.hub_queues import HubQueues
from bridge.clock import SystemClock
from bridge.config.hub import Config, jwt_source
from bridge.control.control_loop import Dependencies, KubeDependencies, Loop
from bridge.core.threads import GC_THRESHOLD, SWITCH_INTERVAL, Supervisor
from bridge.errors import BridgeError, KubeError, LostLeadershipError
from bridge.kube.cache import Cache
from bridge.kube.discovery import cluster_id, node_version
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.lease import Elector
from bridge.kube.object_store import Object
from bridge.kube.prune import prune_claim, prune_node, prune_pod, prune_storage_class, prune_volume
from bridge.kube.resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Resource,
)
from bridge.logs import kv
from bridge.serving.health import Health, start_servers
from bridge.slurm.models import Snapshot
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller
from bridge.telemetry import trace_export, tracing
from bridge.telemetry.metrics import BUILD_INFO, LEADER
from bridge.workload import links
from bridge.workload.pods import is_open
from controllers.guarded_nodes import GuardedNodes
from controllers.slurm_controllers_loop import Controllers
from controllers.slurm_publisher import SlurmPublisher
from scheduler.devices import taken_devices
from scheduler.nodes import occupancy
from scheduler.places.slurm_place import SlurmSources
from scheduler.scheduler_loop import Scheduler

log = logging.getLogger(__name__)

PARTS = ("admission", "scheduler", "controllers")
EVENT_RATE = 15.0
"""Events per second: bindings, which have priority, use the same API server."""
LAST_WRITES = 10.0
"""Seconds to wait at a stop for calls in progress. If some are still in progress then, the leases are not released."""
FIRST_LIST = 20.0
"""Longest wait of the first poll for the pods, whose jobs it reads before those of others."""
STALE = 60.0
"""Seconds without an answer of an API after which this process is not ready."""


class Hub:
    """One process with some of the parts, which share caches, the snapshot of Slurm and client connections."""

    def __init__(self, config: Config, parts: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self.config = config
        self.parts = parts
        self.supervisor = Supervisor()
        self.health = Health()
        self.clock = SystemClock()
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.kube = KubeClient.load(kubeconfig, context, user_agent=f"podbridge/{__version__} {self.identity}")
        self.nodes = self._cache(NODES, "nodes", prune_node)
        self.electors: list[Elector] = []
        self.loops: list[Loop] = []
        self.stops: list[Callable[[], None]] = []
        self.events = EventRecorder(
            self.kube.fenced(self._check_any_lease),
            component=config.installation,
            clock=self.clock,
            rate=EVENT_RATE,
            burst=50,
            busy=lambda: any(loop.busy for loop in self.loops),
        )

    def run(self) -> int:
        """Run until a signal arrives or a thread dies; return the exit status."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        self.supervisor.stop_on_signals()
        BUILD_INFO.labels(__version__).set(1)
        trace_export.setup(self.config.installation)
        log.info("starting", extra=kv(version=__version__, parts="+".join(self.parts), identity=self.identity))
        self.health.ready("hub", lambda: "not started yet")  # before the health server starts
        start_servers(self.health, self.config.serving, self.supervisor)
        try:
            self._start()
        except BridgeError as error:
            self.supervisor.fail(error.with_hint)
        self.supervisor.wait_for_stop()
        return self._stop()

    def _start(self) -> None:
        if "admission" in self.parts:
            taint, name = self.config.nodes.taint, self.config.scheduler_name
            sizes = NodeSizes(self.nodes.items, scheduler=name, tainted=taint, clock=self.clock)
            admission = Admission(self.config, self.kube, self.supervisor, sizes)
            self.health.ready("admission", admission.ready)
            self.supervisor.spawn("admission-start", lambda: self._retry_start(admission.start))
        if "scheduler" in self.parts or "controllers" in self.parts:
            self.supervisor.spawn("hub-start", lambda: self._retry_start(self._start_loops))
        else:
            self.health.ready("hub", lambda: None)
        self.supervisor.spawn("cache-nodes", lambda: self.nodes.run(self.supervisor.stopping))
        self.supervisor.spawn("events", lambda: self.events.run(self.supervisor.stopping))

    def _retry_start(self, start: Callable[[], Any]) -> None:
        """Call ``start`` until the API server answers, then wait until the process stops."""
        stopping = self.supervisor.stopping
        while not stopping.is_set():
            try:
                start()
                break
            except KubeError as error:
                if not error.retryable:
                    raise
                log.warning("waiting for the API server", extra=kv(error=error))
                stopping.wait(2)
        stopping.wait()

    def _start_loops(self) -> None:
        """Start the loops of the scheduler and of the controllers, and their caches.

        Raises retryable :class:`KubeError` before anything has started: the caller tries again.
        """
        cluster, version = cluster_id(self.kube, self.config.installation), node_version(self.kube)
        selector = f"spec.schedulerName={self.config.scheduler_name}"
        pods = Cache(
            self.kube, PODS, name="pods", prune=prune_pod, pick=is_open, field_selector=selector, clock=self.clock
        )
        electors = {part: self._elector(part) for part in self.parts if part != "admission"}
        shared = KubeDependencies(self.config, self.kube, self.nodes, self.events, self.clock)
        slurm = self._slurm_dependencies(pods, cluster, electors) if self.config.slurm_rest_api else None
        loops = self._slurm_loops(slurm, electors) if slurm is not None else []
        if "scheduler" in electors:
            sources = self._slurm_sources(slurm) if slurm is not None else None
            loops.insert(0, Scheduler(shared, pods, electors["scheduler"], sources))
        if "controllers" in electors:
            elector = electors["controllers"]
            if self.config.pools.enabled:
                loops += self._pool_loops(shared, elector, version, cluster)
            loops.append(GuardedNodes(shared, elector))
            if self.config.queues.enabled:
                HubQueues(shared, elector).start(self.supervisor, self.health)
        for loop in loops:
            self.loops.append(loop)
            self.health.live(loop.name, loop.stuck)
            loop.start(self.supervisor)
        self._run_cache(pods)  # the loops have subscribed
        self.health.ready("cache-nodes", lambda: _cache_problem(self.nodes))
        self.health.ready("hub", lambda: None)

    def _run_cache(self, cache: Cache) -> None:
        """Run a cache in a thread; the process is ready while it is current."""
        self.health.ready(f"cache-{cache.name}", lambda: _cache_problem(cache))
        self.supervisor.spawn(f"cache-{cache.name}", lambda: cache.run(self.supervisor.stopping))

    def _slurm_dependencies(self, pods: Cache, cluster: str, electors: Mapping[str, Elector | None]) -> Dependencies:
        """Create the Slurm client and its poller, which polls at the idle period while no lease is held."""
        slurm = SlurmClient(self.config, jwt_source(self.config))
        # one poller for the scheduler and the controllers: it must not be slow while either of them leads
        leads = lambda: any(elector is None or elector.held for elector in electors.values())  # noqa: E731
        jobs_on_pods = lambda job_ids: links.on_pods(_listed(pods), cluster, job_ids)  # noqa: E731
        poller = Poller(slurm, cluster, self.config, clock=self.clock, leads=leads, jobs_on_pods=jobs_on_pods)
        poller.subscribe(_FirstAnswerLog(slurm))
        return Dependencies(
            self.config, self.kube, self.nodes, self.events, self.clock, slurm, poller, pods=pods, cluster=cluster
        )

    def _slurm_sources(self, dependencies: Dependencies) -> SlurmSources:
        """Create and start the caches that only the scheduler needs."""
        bound = occupancy.selector(self.config.scheduler_name)
        others = self._cache(PODS, "other-pods", occupancy.prune, bound)  # for example of DaemonSets
        storage, claims = self._storage(), None
        if self.config.device_classes:  # an API server may not serve claims: the process is ready without them
            claims = self._cache(RESOURCE_CLAIMS, "resource-claims", taken_devices.prune)
            self.supervisor.spawn("cache-resource-claims", lambda: claims.run(self.supervisor.stopping))
        for cache in (others, *storage):
            self._run_cache(cache)
        return SlurmSources(dependencies, others, storage, claims)

    def _slurm_loops(self, dependencies: Dependencies, electors: Mapping[str, Elector | None]) -> list[Loop]:
        """Create the controllers that use Slurm, and start the poller."""
        loops: list[Loop] = []
        spawn, stopping = self.supervisor.spawn, self.supervisor.stopping
        if "controllers" in electors:
            loops.append(Controllers(dependencies, electors["controllers"]))
            if self.config.slurm.publish_period is not None:
                loops.append(SlurmPublisher(dependencies, electors["controllers"]))
        HintServers(self.config.hints, [*electors], dependencies.poller.hint).start(self.supervisor)
        self.health.ready("slurm", lambda: _slurm_problem(dependencies.poller))
        spawn("slurm-poller", lambda: dependencies.poller.run(stopping))
        spawn("slurm-hints", lambda: dependencies.poller.run_hints(stopping))
        return loops

    def _pool_loops(self, shared: KubeDependencies, elector: Elector | None, version: str, cluster: str) -> list[Loop]:
        """Create the loops of virtual nodes and exposed pods, and start the NATS connection and the kubelet API."""
        # here, since it imports the clients of all kinds of pools: 16 MiB and a quarter of the time of a start
        from bridge.apps.hub.hub_pools import HubPools

        pools = HubPools(shared, elector, self.identity, version, cluster)
        pools.start(self.supervisor, self.health)
        self.stops.append(pools.stop)
        return pools.loops

    def _cache(self, resource: Resource, name: str, prune: Callable[[Object], Object], selector: str = "") -> Cache:
        return Cache(self.kube, resource, name=name, prune=prune, field_selector=selector, clock=self.clock)

    def _storage(self) -> list[Cache]:
        """Create the caches that decide which nodes the volumes of a pod allow."""
        return [
            self._cache(PERSISTENT_VOLUME_CLAIMS, "claims", prune_claim),
            self._cache(PERSISTENT_VOLUMES, "volumes", prune_volume),
            self._cache(STORAGE_CLASSES, "storage-classes", prune_storage_class),
        ]

    def _elector(self, name: str) -> Elector | None:
        lease, lease_name = self.config.leader_election, names.lease(name, self.config.installation)
        if not lease.enabled:
            LEADER.labels(lease_name).set(1)
            return None
        elector = Elector(
            self.kube,
            lease.namespace,
            lease_name,
            self.identity,
            lease_duration=lease.lease_duration,
            renew_deadline=lease.renew_deadline,
            retry_period=lease.retry_period,
            clock=self.clock,
        )
        self.electors.append(elector)
        self.supervisor.spawn(f"elector-{name}", lambda: self._elect(elector), writes=True)
        return elector

    def _check_any_lease(self) -> None:
        """Raise :class:`LostLeadershipError` unless this process holds a lease, so that only a leader writes Events."""
        if self.electors and not any(elector.held for elector in self.electors):
            raise LostLeadershipError("this process holds no lease: Event not written")

    def _elect(self, elector: Elector) -> None:
        elector.run(self.supervisor)
        self.supervisor.stopping.wait()

    def _stop(self) -> int:
        failure = self.supervisor.failure
        if failure is not None:
            log.error("stopping after a failure", extra=kv(why=failure))
        # the outside system could carry out a pending request after the successor has read its state
        unsettled = self.supervisor.join(LAST_WRITES, writers=True)
        unsettled += [loop.name for loop in self.loops if loop.unsettled]
        self.events.flush(2)
        if unsettled:
            log.warning("leader leases not released: calls without a known outcome", extra=kv(of=",".join(unsettled)))
        for elector in self.electors if not unsettled else ():
            elector.release()
        for stop in self.stops if failure is None else ():
            stop()
        self.kube.close()
        tracing.stop()
        left = self.supervisor.join(2)
        if left:
            log.warning("threads still running at exit", extra=kv(threads=",".join(left)))
        log.info("stopped", extra=kv(status=1 if failure else 0))
        return 1 if failure else 0


class _FirstAnswerLog:
    """Logs, at Slurm's first answer, the version of Slurm and the features that it lacks."""

    def __init__(self, slurm: SlurmClient) -> None:
        self._slurm = slurm
        self._logged = False

    def __call__(self, snapshot: Snapshot) -> None:
        if self._logged or not snapshot.sequence:
            return
        self._logged = True
        version = self._slurm.version
        extra = kv(slurm=self._slurm.slurm_release, api=version.name, jobs=len(snapshot.jobs))
        log.info("connected to Slurm", extra=extra)
        for text in version.missing():
            log.warning("not supported by this Slurm", extra=kv(api=version.name, what=text))


def _listed(cache: Cache) -> list[Object]:
    """Return the objects of a cache after its first list, for which it waits a limited time."""
    cache.wait_synced(FIRST_LIST)
    return cache.items()


def _cache_problem(cache: Cache) -> str | None:
    if not cache.synced:
        return "not listed yet"
    age = cache.age()
    return f"not confirmed by the API server for {age:.0f} s" if age > STALE + cache.idle_timeout else None


def _slurm_problem(poller: Poller) -> str | None:
    snapshot = poller.snapshot
    if not snapshot.sequence:
        return f"Slurm's jobs are not read yet: {snapshot.error or poller.progress or 'no answer yet'}"
    age = poller.age()
    return f"slurmctld has not answered for {age:.0f} s: {snapshot.error}" if age > STALE else None
