"""The loop of virtual nodes: it follows the pools, their nodes and leases, and sweeps over their pods."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from bridge import names
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.core.workers import Workers
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.kube.resources import PODS
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.pools.registry import PoolSource
from bridge.telemetry.metrics import BRAKE_ENGAGED, BRAKE_HELD, POOL_JOBS, POOL_REMEMBERED, POOL_UP
from bridge.workload import pods, pool_selection, services
from controllers.brakes import Brakes, config_map_path
from controllers.virtual import pool_state, virtual_node_decide
from controllers.virtual.node_manifest import NodeSettings, PoolStatus
from controllers.virtual.node_writer import NodeWriter
from controllers.virtual.pod_reconciler import PodReconciler
from controllers.virtual.pool_state import LoopState, PoolProgress, PoolState, pool_status
from controllers.virtual.prune_nodes import prune
from controllers.virtual.race_decide import Racers
from controllers.virtual.race_decide import prune as prune_racers
from controllers.virtual.reference_reader import ObjectFollower, ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor

log = logging.getLogger(__name__)

# as a kubelet, which renews its lease after a quarter of the 40 s
LEASE_PERIOD = 10.0
SWEEP = 60.0
"""Seconds in which each pod is checked once, even without an event."""
SWEEP_RATE = 20.0
"""Pods of each pool that are checked per second, at least."""
MISSING_SETTLE = 5.0
"""Seconds for which a job must be missing before its pod fails: a site reports missing jobs one by one."""
MOST_JOBS = 10**9
"""Jobs that the metric of a phase shows, at most: a site may announce any number."""
PHASES = ("queued", "running", "ended", "unknown")


class VirtualNodes(Loop):
    """Maintains a virtual node for each pool, and the pods that are bound to it."""

    def __init__(
        self, shared: KubeDependencies, elector: Elector | None, pools: PoolSource, settings: NodeSettings
    ) -> None:
        super().__init__("virtual-nodes", (shared.nodes,), elector, 4, shared.clock)
        config, kube, events, clock = shared.config, shared.kube, shared.events, shared.clock
        self._may_reach = config.pools.may_reach
        self.settings = settings
        self._kube = kube
        self._nodes = shared.nodes
        self._pools = pools
        self._threads, self._pool_threads = config.workers, config.pools.workers
        self._history = virtual_node_decide.History()
        check = self.check_leadership
        self._node_writer = NodeWriter(kube, shared.nodes, events, clock, check, settings.remove_after, pools.remove)
        reader, submit_timeout = ReferenceReader(kube, config, clock), config.pools.submit_timeout
        wait = config.pools.race.wait
        actor = PodActor(kube, events, reader, clock, check, settings.address, submit_timeout, wait)
        self._reconciler = PodReconciler(
            actor, clock, settings.address, lambda: self.leading_since, check, submit_timeout
        )
        reconciler, period = self._reconciler, config.pools.volume_period
        self._follower = ObjectFollower(reader, reconciler.followed, reconciler.tell_version, period, clock)
        self._racers: Racers | None = None
        self._racing_cache: Cache | None = None
        if config.pools.race.enabled:
            self._racers = Racers(self._reconciler.add)
            # an empty value selects the pods that have no node
            selector = f"spec.nodeName=,spec.schedulerName={config.scheduler_name}"
            self._racing_cache = Cache(
                kube, PODS, name="pods-racing", prune=prune_racers, field_selector=selector, clock=clock
            )
            self._racing_cache.subscribe(self._racers.changed)
        fenced = kube.fenced(self.check_leadership)
        self._brakes = Brakes(config.brake, config_map_path(config), fenced, events, clock, self.workers)
        self._records: dict[str, PoolState] = {}
        self._since = clock.monotonic()
        self._supervisor: Supervisor | None = None
        self.exposed_changed: Callable[[], object] = lambda: None
        """Called after each change of a pod with exposed ports."""
        self.reaching_changed: Callable[[], object] = lambda: None
        """Likewise, of a pod that reaches Services."""

    @property
    def busy(self) -> bool:
        """Whether work is pending."""
        return super().busy or self._reconciler.backlog

    def find(self, namespace: str, name: str) -> tuple[Mapping[str, Any], Pool | None] | None:
        """Return a pod on a virtual node, and its pool (``None`` if this process has received no announcement)."""
        for record in list(self._records.values()):
            pod = record.cache.get(namespace, name)
            if pod is not None and record.usable:
                return pod, record.pool
        return None

    def pods(self) -> Iterator[Mapping[str, Any]]:
        """Return the pods on all virtual nodes."""
        return itertools.chain.from_iterable(r.cache.items() for r in list(self._records.values()) if r.usable)

    def exposed(self) -> Iterator[tuple[Mapping[str, Any], Pool | None]]:
        """Return the pods with exposed ports on virtual nodes, each with its pool as :meth:`find`."""
        return (each for each in self._with_services() if services.is_exposed(each[0]))

    def reaching(self) -> Iterator[tuple[Mapping[str, Any], Pool | None]]:
        """Return the pods that reach Services, likewise."""
        return (each for each in self._with_services() if services.is_reaching(each[0]))

    def _with_services(self) -> Iterator[tuple[Mapping[str, Any], Pool | None]]:
        for record in list(self._records.values()):
            if record.usable:
                yield from ((pod, record.pool) for pod in record.cache.picked().values())

    def follow_services(self, families_of: Callable[[str], Collection[str] | None]) -> Callable[[str], None]:
        """Choose ``podIP`` by the IP families of a pod's Services; return the function to call after a change."""
        self._reconciler.families_of = families_of
        return self._reconciler.decide_again

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers. The caller starts the pools."""
        self._supervisor = supervisor
        self._pools.subscribe(self._on_change)
        self._reconciler.start(supervisor, self._threads)
        supervisor.spawn("followed-objects", lambda: self._follower.run(supervisor.stopping.wait))
        if (racing_cache := self._racing_cache) is not None:
            supervisor.spawn("cache-pods-racing", lambda: racing_cache.run(supervisor.stopping))
        super().start(supervisor)

    def on_started_leading(self) -> None:
        """Discard all state of pods: it is from an earlier term as leader."""
        for record in self._records.values():
            record.forget_all()
            record.loop.progress = PoolProgress()

    def reconcile(self) -> None:
        """Update nodes and leases, and check a part of the pods."""
        self._follow_pools()
        now = self.clock.monotonic()
        states = [state for record in self._records.values() if (state := self._readable_state(record)) is not None]
        named_nodes = ((name, self._nodes.get("", name)) for name in self._records)
        view = virtual_node_decide.NodesView(
            pools=states,
            nodes={name: node for name, node in named_nodes if node is not None},
            settings=self.settings,
            written=self._node_writer.written(),
            history=self._history,
            link_problem=self._pools.problem() or "",
            since=self._since,
            now=now,
            time=self.clock.time(),
        )
        actions, self._history = virtual_node_decide.decide(view)
        for action in actions:
            without_node = virtual_node_decide.Create | virtual_node_decide.Forget
            name = action.name if isinstance(action, without_node) else action.node["metadata"]["name"]
            self._call(f"node/{name}", lambda a=action: self._node_writer.act(a))  # type: ignore[misc]
        for state in view.pools:
            try:
                self._update(self._records[state.name], state, view)
            except Exception as error:
                isolation.report("virtual-nodes", state.name, error)

    def _on_change(self, pool: str, uid: str) -> None:
        if uid:
            self._reconciler.add_soon(pool, uid)
        else:
            self.wake()

    def _follow_pools(self) -> None:
        """Keep a record of each announced pool, and of each virtual node without an announced pool."""
        pools = self._pools.pools()
        # after a restart of the hub, no site has announced itself, but pods are bound to its node
        node_names = [node["metadata"]["name"] for node in self._nodes.items() if pool_selection.is_virtual(node)]
        for name in self._records.keys() - {*pools, *node_names}:
            self._remove(self._records[name])
        for name in {*pools, *node_names}:
            record = self._records.get(name) or self._add(name)
            if record.pool is not pools.get(name):
                record.usable = False  # until the folder of the new pool is chosen
                record.loop.progress = PoolProgress()
            record.pool = pools.get(name)
            node = self._nodes.get("", name)
            try:
                is_ours = node is not None and virtual_node_decide.is_ours(node, name)
                record.usable = is_ours and self._choose_folder(record, node or {})
            except Exception as error:
                isolation.report("virtual-nodes", name, error)
                record.usable = False

    def _choose_folder(self, record: PoolState, node: Mapping[str, Any]) -> bool:
        """Choose the folder of the pool's site; return whether it is the one in the node's annotation."""
        loop, folders = record.loop, record.folders
        if folders is None:
            loop.folder_problem = ""
            return True
        recorded = (node["metadata"].get("annotations") or {}).get(names.SITE_FOLDER, "")
        now = self.clock.monotonic()
        choice = pool_state.choose_folder(
            record.name,
            recorded,
            folders.folder,
            {
                folder: a
                for folder, (a, at) in folders.announcements().items()
                if now - at <= virtual_node_decide.patience(self.settings, a)
            },
            bound=len(record.cache) if record.cache.synced else None,
            remembered=self._pools.remembered(record.name),
        )
        loop.folder_problem = choice.problem
        if choice.folder != folders.folder:
            folders.choose(choice.folder)
        return bool(choice.folder == recorded)

    def _remove(self, record: PoolState) -> None:
        """End the threads of a pool without a node, unless pods are bound to it."""
        record.pool, record.usable = None, False
        # pods that are bound to the node must not be forgotten while its pool is away
        if not record.cache.synced or len(record.cache):
            return
        name = record.name
        record.threads.stop()
        del self._records[name]
        self._reconciler.remove_pool(name)
        self._node_writer.drop(name)
        for metric in (POOL_UP, POOL_JOBS, POOL_REMEMBERED):
            metric.remove_by_labels({"pool": name})
        for metric in (BRAKE_ENGAGED, BRAKE_HELD):
            metric.remove_by_labels({"brake": f"pool.{name}"})
        log.info("a pool was removed: it has neither a node nor a pod", extra=kv(pool=name))

    def _add(self, name: str) -> PoolState:
        """Start a cache of the pods bound to a new pool, and threads for the requests to its site."""
        assert self._supervisor is not None  # noqa: S101
        threads, selector = self._supervisor.group(), f"spec.nodeName={name}"
        cache = Cache(
            self._kube,
            PODS,
            name=f"pods-{name}",
            prune=prune,
            pick=_uses_services,
            field_selector=selector,
            clock=self.clock,
        )
        cache.subscribe(lambda _, old, new: self._pod_changed(name, old, new))
        workers, loop = Workers(f"pool-{name}", self._pool_threads), LoopState(self.clock.monotonic())
        record = PoolState(name, cache, workers, threads, loop, racers=self._racers)
        self._records[name] = record
        self._reconciler.add_pool(record)
        record.workers.start(threads)

        def watch() -> None:
            cache.run(threads.stopping)
            cache.drop_metrics()

        threads.spawn(f"cache-pods-{name}", watch)
        return record

    def _pod_changed(self, pool: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        states = [pod for pod in (new, old) if pod is not None]
        self._reconciler.add(pool, pods.uid(states[0]))
        if any(map(services.is_exposed, states)):
            self.exposed_changed()
        if any(map(services.is_reaching, states)):
            self.reaching_changed()

    def _readable_state(self, record: PoolState) -> PoolStatus | None:
        try:
            return pool_status(
                record,
                remembered=self._pools.remembered(record.name),
                may_reach=self._may_reach(record.name),
                clock=self.clock,
            )
        except Exception as error:
            isolation.report("virtual-nodes", record.name, error)
            return None

    def _update(self, record: PoolState, state: PoolStatus, view: virtual_node_decide.NodesView) -> None:
        announce, loop = state.announce, record.loop
        problem = (announce is not None and announce.problem) or state.folder_problem or state.readiness.problem
        is_up = announce is not None and not problem and virtual_node_decide.is_heard(view, state)
        POOL_UP.labels(record.name).set(is_up)
        if announce is not None:
            for phase in PHASES:
                POOL_JOBS.labels(record.name, phase).set(min(announce.jobs.get(phase, 0), MOST_JOBS))
        if not record.usable:
            loop.progress = PoolProgress()
            return
        if view.now - loop.renewed_at >= LEASE_PERIOD:
            loop.renewed_at = view.now
            self._call(f"lease/{record.name}", lambda: self._node_writer.renew(view.nodes[record.name]))
        progress = record.progress()
        if progress != loop.progress:
            loop.progress = progress
            for uid in record.uids():
                self._reconciler.add(record.name, uid)
        record.brake = self._brakes.judge(
            f"pool.{record.name}", *record.missing(), settle=MISSING_SETTLE, listed=progress.listed
        )
        self._sweep(record)

    def _sweep(self, record: PoolState) -> None:
        """Check a part of the pods, so that each is checked once a minute, even without an event."""
        loop, now = record.loop, self.clock.monotonic()
        # by the time, not for each reconciliation: announcements cause many of them
        portion = int(max(SWEEP_RATE, 2 * len(record.cache) / SWEEP) * min(now - loop.swept_at, SWEEP))
        if portion <= 0:
            return
        loop.swept_at = now
        batch = list(itertools.islice(loop.sweep, portion))
        if not batch:
            loop.sweep = iter(record.uids())
        jobs = record.pool.jobs() if record.pool is not None and batch else {}
        for uid in batch:
            if self._reconciler.needs(record, uid, jobs.get(uid)):
                self._reconciler.add(record.name, uid)

    def _call(self, key: str, call: Callable[[], None]) -> None:
        self.workers.submit(key, call, kind=key.partition("/")[0])


def _uses_services(pod: Mapping[str, Any]) -> bool:
    return services.is_exposed(pod) or services.is_reaching(pod)
