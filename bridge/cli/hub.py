"""Builds the hub's parts and runs them in one process: the only place that wires them together."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from admission.server import Admission
from admission.sizes import NodeSizes
from bridge import __version__, names
from bridge.cli.remote import Remote, node_version
from bridge.clock import SystemClock
from bridge.config import Config, jwt_source
from bridge.errors import BridgeError, KubeError, LostLeadershipError
from bridge.kube.bucket import Bucket
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.lease import Elector
from bridge.kube.prune import prune_node, prune_pod
from bridge.kube.resources import NAMESPACES, NODES, PODS
from bridge.logs import kv
from bridge.loop import Dependencies, Loop
from bridge.metrics import BUILD_INFO
from bridge.serving.health import Health, metrics_app
from bridge.serving.https import Server
from bridge.slurm.client import SlurmClient
from bridge.slurm.models import Snapshot
from bridge.slurm.snapshot import Poller
from bridge.threads import Supervisor
from bridge.workload.pods import is_open
from controllers.guarded_nodes import GuardedNodes
from controllers.loop import Controllers
from scheduler import occupancy
from scheduler.loop import Scheduler
from scheduler.pools.loop import PoolScheduler

log = logging.getLogger(__name__)

PARTS = ("admission", "scheduler", "controllers")
SWITCH_INTERVAL = 0.001
"""Seconds after which a computing thread gives way: answers from sockets wait that long for a decision to end."""
GC_THRESHOLD = 50_000
"""New objects between two looks for cycles: they cost as much as there are objects, and caches hold many."""
EVENT_RATE = 15.0
"""Events a second: they share the API server with bindings, which matter more."""
LAST_WRITES = 10.0
"""Seconds that calls under way get to end at a stop. After that the leases are left to run out by themselves."""
STALE = 60.0
"""Seconds of silence of an API after which this process is not ready."""


def cluster_id(kube: KubeClient) -> str:
    """Give the UID of the namespace kube-system: what tells this cluster's jobs from another's in the same Slurm."""
    return str(kube.get(NAMESPACES.path(name="kube-system"))["metadata"]["uid"])


class Hub:
    """One process with some of the parts, sharing caches, the view of Slurm and the client connections."""

    def __init__(self, config: Config, parts: Sequence[str], kubeconfig: str | None, context: str | None) -> None:
        self.config = config
        self.parts = parts
        self.supervisor = Supervisor()
        self.health = Health()
        self.clock = SystemClock()
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.kube = KubeClient.load(kubeconfig, context, user_agent=f"podbridge/{__version__} {self.identity}")
        self.nodes = Cache(self.kube, NODES, name="nodes", prune=prune_node, clock=self.clock)
        self.electors: list[Elector] = []
        self.loops: list[Loop] = []
        self.events = EventRecorder(
            self.kube.fenced(self._lead_any),
            component=names.COMPONENT,
            clock=self.clock,
            rate=EVENT_RATE,
            burst=50,
            busy=lambda: any(loop.busy for loop in self.loops),
        )
        self._servers: list[Server] = []

    def run(self) -> int:
        """Run until a signal or until a thread dies; gives the exit status."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.supervisor.stop())
        BUILD_INFO.labels(__version__).set(1)
        log.info("starting", extra=kv(version=__version__, parts="+".join(self.parts), identity=self.identity))
        self.health.ready("hub", lambda: "not started yet")  # before anybody can ask
        self._serve()
        try:
            self._start()
        except BridgeError as error:
            self.supervisor.fail(f"{error}{f' ({error.hint})' if error.hint else ''}")
        self.supervisor.stopping.wait()
        return self._stop()

    def _serve(self) -> None:
        serving = self.config.serving
        for port, app, name in (
            (serving.health_port, self.health.app(), "health"),
            (serving.metrics_port, metrics_app(), "metrics"),
        ):
            if port is not None:
                server = Server(app, serving.host, port, threads=2, name=name)
                server.start()
                self._servers.append(server)
                self.supervisor.spawn(f"{name}-server", lambda s=server: s.run(self.supervisor.stopping))  # type: ignore[misc]

    def _start(self) -> None:
        if "admission" in self.parts:
            sizes = NodeSizes(
                self.nodes.items,
                scheduler=self.config.scheduler_name,
                tainted=self.config.nodes.taint,
                clock=self.clock,
            )
            admission = Admission(self.config, self.kube, self.supervisor, sizes)
            self.health.ready("admission", admission.ready)
            self.supervisor.spawn("admission-start", lambda: self._patiently(admission.start))
        if "scheduler" in self.parts or "controllers" in self.parts:
            self.supervisor.spawn("hub-start", lambda: self._patiently(self._start_loops))
        else:
            self.health.ready("hub", lambda: None)
        self.supervisor.spawn("cache-nodes", lambda: self.nodes.run(self.supervisor.stopping))
        self.supervisor.spawn("events", lambda: self.events.run(self.supervisor.stopping))

    def _patiently(self, start: Callable[[], Any]) -> None:
        """Call ``start`` until the API server answers, then stay until the process stops."""
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
        config, spawn, stopping = self.config, self.supervisor.spawn, self.supervisor.stopping
        # whatever asks the API server comes first: it is tried again
        cluster, version = cluster_id(self.kube), node_version(self.kube)
        limits = config.kubernetes
        kube = self.kube.limited(Bucket(limits.qps, limits.burst)) if limits.qps else self.kube
        pod_cache = Cache(
            self.kube,
            PODS,
            name="pods",
            prune=prune_pod,
            pick=is_open,
            field_selector=f"spec.schedulerName={config.scheduler_name}",
            clock=self.clock,
        )
        electors = {part: self._elector(part) for part in self.parts if part != "admission"}
        local: set[str] = set()
        taken: Callable[[str], bool] | None = None
        loops: list[Loop] = []
        if config.slurm_rest_api:
            slurm = SlurmClient(config, jwt_source(config))
            leads = lambda: any(elector is None or elector.held for elector in electors.values())  # noqa: E731
            poller = Poller(slurm, cluster, config, clock=self.clock, leads=leads)
            poller.subscribe(_Greeting(slurm))
            dependencies = Dependencies(
                config, kube, slurm, poller, pod_cache, self.nodes, self.events, cluster, self.clock
            )
            if "scheduler" in electors:
                others = self._other_pods()
                loops.append(Scheduler(dependencies, electors["scheduler"], local, others))
                self.health.ready(f"cache-{others.name}", lambda: _fresh(others))
                spawn("cache-other-pods", lambda: others.run(stopping))
            if "controllers" in electors:
                loops.append(Controllers(dependencies, electors["controllers"]))
            self.health.ready("slurm", lambda: _answered(poller))
            spawn("slurm-poller", lambda: poller.run(stopping))
            taken = lambda uid: uid in poller.snapshot.by_uid  # noqa: E731
        if "scheduler" in electors:  # without pools too: it tells pods that wait for one
            caches, lead = (pod_cache, self.nodes), electors["scheduler"]
            loops.append(PoolScheduler(config, kube, caches, self.events, lead, self.clock, local, taken))
        if config.pools.enabled and "controllers" in electors:
            lead = electors["controllers"]
            remote = Remote(config, kube, self.nodes, self.events, lead, self.clock, self.identity, version, cluster)
            remote.start(self.supervisor, self.health)
            loops.append(remote.loop)
        if "controllers" in electors:
            loops.append(GuardedNodes(kube, self.nodes, electors["controllers"], self.clock))
        for loop in loops:
            self.loops.append(loop)
            self.health.live(loop.name, loop.stuck)
            loop.start(self.supervisor)
        for cache in (pod_cache, self.nodes):
            self.health.ready(f"cache-{cache.name}", lambda c=cache: _fresh(c))  # type: ignore[misc]
        spawn("cache-pods", lambda: pod_cache.run(stopping))
        self.health.ready("hub", lambda: None)

    def _other_pods(self) -> Cache:
        """Make the cache of what other schedulers' pods take of their nodes: DaemonSets, above all."""
        return Cache(
            self.kube,
            PODS,
            name="other-pods",
            prune=occupancy.reduce,
            field_selector=occupancy.selector(self.config.scheduler_name),
            clock=self.clock,
        )

    def _elector(self, name: str) -> Elector | None:
        lease = self.config.leader_election
        if not lease.enabled:
            return None
        elector = Elector(
            self.kube,
            lease.namespace,
            f"podbridge-{name}",
            self.identity,
            lease_duration=lease.lease_duration,
            renew_deadline=lease.renew_deadline,
            retry_period=lease.retry_period,
            clock=self.clock,
        )
        self.electors.append(elector)
        self.supervisor.spawn(f"elector-{name}", lambda: self._elect(elector), writes=True)
        return elector

    def _lead_any(self) -> None:
        """Let Events be written only while this process leads something: a stopped leader that goes on writes none."""
        if self.electors and not any(elector.held for elector in self.electors):
            raise LostLeadershipError("no lease is held: Event not written")

    def _elect(self, elector: Elector) -> None:
        elector.run(self.supervisor)
        self.supervisor.stopping.wait()

    def _stop(self) -> int:
        failure = self.supervisor.failure
        if failure is not None:
            log.error("ending", extra=kv(why=failure))
        # a request that is under way when the lease is released could be carried out after the successor's first look
        unsettled = self.supervisor.join(LAST_WRITES, writers=True)
        unsettled += [loop.name for loop in self.loops if loop.unsettled]
        self.events.flush(2)
        if unsettled:
            log.warning("leader leases not released: the outcome of calls is unknown", extra=kv(of=",".join(unsettled)))
        for elector in self.electors if not unsettled else ():
            elector.release()
        self.kube.close()
        left = self.supervisor.join(2)
        if left:
            log.warning("threads still busy at the end", extra=kv(threads=",".join(left)))
        log.info("ended", extra=kv(status=1 if failure else 0))
        return 1 if failure else 0


class _Greeting:
    """Says once, at Slurm's first answer, what runs there and what podbridge can't do with it."""

    def __init__(self, slurm: SlurmClient) -> None:
        self._slurm = slurm
        self._said = False

    def __call__(self, snapshot: Snapshot) -> None:
        if self._said or not snapshot.sequence:
            return
        self._said = True
        version = self._slurm.version
        log.info("Slurm answers", extra=kv(slurm=self._slurm.slurm_release, api=version.name, jobs=len(snapshot.jobs)))
        for text in version.missing():
            log.warning("not possible with this Slurm", extra=kv(api=version.name, what=text))


def _fresh(cache: Cache) -> str | None:
    if not cache.synced:
        return "not listed yet"
    return (
        f"not confirmed by the API server for {cache.age():.0f} s" if cache.age() > STALE + cache.idle_timeout else None
    )


def _answered(poller: Poller) -> str | None:
    snapshot = poller.snapshot
    if not snapshot.sequence:
        return f"Slurm's jobs are not read yet: {snapshot.error or poller.progress or 'asking'}"
    age = poller.age()
    return f"slurmctld has not answered for {age:.0f} s: {snapshot.error}" if age > STALE else None
