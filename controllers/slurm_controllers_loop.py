"""The controllers: build a view of pods, jobs and nodes, decide, submit the actions to the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any

from bridge import clock as clocks
from bridge.control.control_loop import Dependencies, SlurmLoop
from bridge.kube.lease import Elector
from bridge.slurm.models import Snapshot
from bridge.telemetry.metrics import CONTROLLER_ACTIONS, EXTERNAL_NODES, NODES_TAKEN, counted, label_of
from bridge.workload import links, pods, pool_selection
from bridge.workload.eligibility import readiness, slurm_name
from controllers.brakes import Brakes, config_map_path
from controllers.node import external
from controllers.node import node_decide as node_decide
from controllers.node.device_reader import DeviceReader
from controllers.node.node_act import NodeActor
from controllers.node.node_actions import NodeSyncView
from controllers.workload import pod_groups, workload_actions, workload_decide
from controllers.workload.stranded import StrandedPods
from controllers.workload.workload_act import WorkloadActor

SEEN_AFTER = 0.5
"""Seconds until caches and snapshot show a completed action: it is not repeated before."""
ORPHAN_AFTER = 5.0
"""Seconds after which a job that was released with its pod, but is still live, counts as an orphan."""
WATCHED = 60.0
"""Seconds for which pods are checked for the condition JobMissing after the last job was missing."""


class Controllers(SlurmLoop):
    """The loop of the node controller and the workload controller, and what they keep between two decisions."""

    def __init__(self, dependencies: Dependencies, elector: Elector | None) -> None:
        super().__init__("controllers", dependencies, elector)
        self._workload = WorkloadActor(dependencies, self.check_leadership)
        self._node = NodeActor(dependencies, self.check_leadership)
        self._devices = DeviceReader(dependencies.kube, dependencies.config, self.clock)
        self._displaced: Mapping[str, workload_actions.Displaced] = {}
        self._waiting: Mapping[str, workload_actions.Waiting] = {}
        self._brakes = Brakes(
            dependencies.config.brake,
            config_map_path(dependencies.config),
            dependencies.kube.fenced(self.check_leadership),
            dependencies.events,
            self.clock,
            self.workers,
        )
        self._watched_until = 0.0
        self._resting: dict[str, float] = {}
        self._lock = threading.Lock()
        """Guards ``_resting`` and ``_written_groups``, to which the workers add."""
        self._kube = dependencies.kube.fenced(self.check_leadership)
        self._stranded = StrandedPods(
            self._kube,
            dependencies.events,
            dependencies.config.scheduler_name,
            self.clock,
            self._workload.cancel,
            dependencies.pods.by_uid,
        )
        self._workload.on_uncached_pod = self._stranded.follow
        self._taken: Mapping[str, str] = {}
        self._written_groups: dict[str, pod_groups.GroupCondition] = {}

    def reconcile(self) -> None:
        """Decide for all pods, jobs and nodes."""
        now = self.clock.monotonic()
        expected = self.dependencies.poller.expected  # before the snapshot: the next one has those that are read
        snapshot = self.dependencies.poller.snapshot
        with self._lock:
            self._resting = {key: until for key, until in self._resting.items() if until > now}
        nodes = [node for node in self.dependencies.nodes.items() if not pool_selection.is_virtual(node)]
        try:
            self._reconcile_workload(nodes, snapshot, expected, now)
        finally:  # neither part waits for the other
            self._reconcile_nodes(nodes, snapshot)

    def _reconcile_workload(
        self, nodes: list[dict[str, Any]], snapshot: Snapshot, expected: Set[int], now: float
    ) -> None:
        """Decide for all pods and jobs."""
        dependencies = self.dependencies
        slurm_names = {node["metadata"]["name"]: slurm_name(node) for node in nodes}
        silent = frozenset(n["metadata"]["name"] for n in nodes if readiness(n).get("status") != "True")
        virtual = frozenset(n["metadata"]["name"] for n in dependencies.nodes.items() if pool_selection.is_virtual(n))
        all_pods = dependencies.pods.items()
        workload = workload_actions.WorkloadView(
            all_pods,
            snapshot,
            slurm_names,
            self._displaced,
            silent,
            virtual,
            expected=expected,
            waiting=self._waiting,
            max_grace=dependencies.config.max_grace_period,
        )
        decision = self._decide_workload(workload, now)
        self._displaced, self._waiting = decision.displaced, decision.waiting
        self._stranded.request(self.workers, snapshot)
        for action in decision.actions:
            # after a change of schedulerName, the cache lacks the pods with the former name, whose jobs are no orphans
            if isinstance(action, workload_actions.Orphan) and self._stranded.keeps(action.link.keys):
                continue
            if isinstance(action, workload_actions.Orphan | workload_actions.CancelRemainingComponents):
                key = f"job/{action.job_id}"
            else:
                key = pods.uid(action.pod)
            if isinstance(action, workload_actions.Release):
                # the pod may be gone before the view shows the job as cancelled: the job is not an orphan then
                with self._lock:
                    self._resting |= {f"job/{job_id}": now + ORPHAN_AFTER for job_id in action.job_ids}
            self._dispatch("workload", key, action, lambda a=action: self._workload.act(a))  # type: ignore[misc]
        self._write_groups(all_pods)

    def _reconcile_nodes(self, nodes: list[dict[str, Any]], snapshot: Snapshot) -> None:
        """Decide for all nodes."""
        dependencies = self.dependencies
        version, clock = dependencies.slurm.version, dependencies.clock
        self._devices.request([node["metadata"]["name"] for node in nodes if external.is_labelled(node)], self.workers)
        view = NodeSyncView(
            nodes,
            snapshot,
            version,
            dependencies.config,
            dependencies.cluster,
            clock.time(),
            self._devices.gres_by_node,
        )
        decision = node_decide.decide(view)
        for state, count in decision.external.items():
            EXTERNAL_NODES.labels(state).set(count)
        if not snapshot.error:  # else nothing is decided about nodes
            self._report_taken(nodes, decision.taken)
        for step in decision.actions:
            key = f"node/{step.node['metadata']['name']}"
            self._dispatch("node", key, step, lambda s=step: self._node.act(s))  # type: ignore[misc]

    def _write_groups(self, all_pods: list[dict[str, Any]]) -> None:
        """Write the conditions of PodGroups that this process has not written yet."""
        current = pod_groups.conditions(all_pods)
        with self._lock:
            self._written_groups = {key: condition for key, condition in self._written_groups.items() if key in current}
        for key, condition in current.items():
            if self._written_groups.get(key) != condition:
                self._dispatch("workload", f"group/{key}", condition, lambda c=condition: self._write_group(c))  # type: ignore[misc]

    def _report_taken(self, nodes: list[dict[str, Any]], taken: Mapping[str, str]) -> None:
        """Report the nodes that another scheduler has taken, each once."""
        NODES_TAKEN.set(len(taken))
        for node in nodes:
            holder = taken.get(node["metadata"]["name"], "")
            if holder and self._taken.get(node["metadata"]["name"]) != holder:
                self._node.tell_taken(node, holder)
        self._taken = taken

    def _write_group(self, condition: pod_groups.GroupCondition) -> None:
        pod_groups.write(self._kube, condition, clocks.rfc3339(self.clock.time()))
        with self._lock:
            self._written_groups[condition.group.key] = condition

    def _decide_workload(self, view: workload_actions.WorkloadView, now: float) -> workload_actions.Decision:
        """Decide. If a pod is to be terminated because its job is missing, apply the brake and decide again."""
        decision = workload_decide.decide(view)
        if now >= self._watched_until and not any(map(workload_decide.is_missing, decision.actions)):
            # without a missing job, the count of the known ones has no effect: it would walk over all pods
            self._brakes.judge("slurm", 0, {}, listed=not view.snapshot.error)
            return decision
        expected, missing = links.missing_jobs(view.pods, view.snapshot, view.max_grace)
        brake = self._brakes.judge("slurm", expected, missing, listed=not view.snapshot.error)
        if brake.missing:
            self._watched_until = now + WATCHED
        return workload_decide.decide(replace(view, brake=brake))

    def on_started_leading(self) -> None:
        """Request a poll, and check the conditions JobMissing that a former leader wrote."""
        self._watched_until = self.clock.monotonic() + WATCHED
        self._stranded.on_started_leading()
        super().on_started_leading()

    def _dispatch(self, controller: str, key: str, action: object, call: Callable[[], None]) -> None:
        if key in self._resting:
            return
        name = label_of(type(action))

        def run() -> None:
            with counted(CONTROLLER_ACTIONS, controller, name):
                call()
            with self._lock:
                # only after a success: a failed action has the back-off of the workers
                self._resting[key] = self.dependencies.clock.monotonic() + SEEN_AFTER

        self.workers.submit(key, run, 3 if controller == "workload" else 5, kind=name)
