"""The loop of the MasterQueues: observes pools and Kueue, and carries out the actions of the decision."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from bridge.clock import rfc3339
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.errors import (
    BridgeError,
    KubeConflictError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    LostLeadershipError,
)
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.kube.paging import pages
from bridge.kube.resources import MASTER_QUEUES, Resource
from bridge.telemetry.metrics import QUEUE_FLAVORS, QUEUE_WRITES, counted
from controllers.queues import queue_status
from controllers.queues.manifests import GROUP, is_applied
from controllers.queues.queue_decide import QueuesView, decide
from controllers.queues.queue_status import Action, Apply, Delete, Evict, SetStatus

Object = dict[str, Any]
PLURALS = {"ResourceFlavor": "resourceflavors", "ClusterQueue": "clusterqueues", "LocalQueue": "localqueues"}
_NAMESPACED = ("LocalQueue",)
PATIENCE = 5.0
"""Seconds after which an error that may pass, as that of an unavailable API server, is reported."""
_EVICTION_REASON = "NodeFailures"
"""Kueue's ``WorkloadEvictedDueToNodeFailures``."""
EVICTED = "QueueEvicted"
"""Reason of the Event of the MasterQueue."""
EVICTION_PERIOD = 10.0
"""Seconds between two searches for workloads of one flavor."""


@dataclass(frozen=True, slots=True)
class Kueue:
    """The served version of Kueue's API, the cache of MasterQueues, and one for each kind of Kueue's objects."""

    version: str
    queues: Cache
    kinds: Mapping[str, Cache]


class Queues(Loop):
    """Keeps Kueue's objects of all MasterQueues in step with the pools."""

    def __init__(self, shared: KubeDependencies, kueue: Kueue, elector: Elector | None) -> None:
        caches = (shared.nodes, kueue.queues, *kueue.kinds.values())
        super().__init__("queues", caches, elector, 1, shared.clock)  # one worker: flavors are written before queues
        self._config, self._nodes, self._kueue, self._events = shared.config, shared.nodes, kueue, shared.events
        self._kube = shared.kube.fenced(self.check_leadership)
        self._manager = f"{shared.config.installation}-queues"
        self._failures: dict[str, dict[str, _Failure]] = {}
        """UID of a MasterQueue -> object -> why the last write of it has failed."""
        self._lock = threading.Lock()
        self._reported: dict[str, str] = {}
        self._evict_from: dict[str, float] = {}
        """Flavor -> monotonic time of the next search for workloads to evict."""

    def reconcile(self) -> None:
        """Decide about all MasterQueues, and submit the writes to the worker."""
        kueue, config = self._kueue, self._config
        queues = kueue.queues.items()
        view = QueuesView(
            queues,
            self._nodes.items(),
            {item["metadata"]["name"]: item for item in kueue.kinds["ResourceFlavor"].items()},
            {item["metadata"]["name"]: item for item in kueue.kinds["ClusterQueue"].items()},
            {(i["metadata"]["namespace"], i["metadata"]["name"]): i for i in kueue.kinds["LocalQueue"].items()},
            kueue.version,
            self.clock.time(),
            config.queues.release_after,
            config.pools.silent_after,
            self._problems(),
            config.scheduler_name,
            config.pools.weights,
            config.nodes.taint,
        )
        actions = decide(view)
        # the status of this reconciliation must not report a failure of a write that it no longer plans
        if self._forget_failures(actions):
            actions = decide(replace(view, failures=self._problems()))
        for action in actions:
            if isinstance(action, Evict) and self.clock.monotonic() < self._evict_from.get(action.flavor, 0):
                continue
            key, call = self._call(action)
            self.workers.submit(key, call, kind="queues")
        self._measure(queues)

    def _problems(self) -> dict[str, str]:
        """Return the failures that are to be reported, by UID of the MasterQueue."""
        now = self.clock.monotonic()
        with self._lock:
            texts_by_queue = {
                uid: [f"{key}: {failure.text}" for key, failure in sorted(items.items()) if failure.report_from <= now]
                for uid, items in self._failures.items()
            }
        return {uid: "; ".join(texts) for uid, texts in texts_by_queue.items() if texts}

    def _forget_failures(self, actions: list[Action]) -> bool:
        """Forget the failures of writes that are no longer wanted; return whether there were any."""
        planned_writes = {(a.owner["metadata"]["uid"], _key_of(a)) for a in actions if isinstance(a, Apply | Delete)}
        with self._lock:
            remaining = {
                uid: {key: failure for key, failure in failures.items() if (uid, key) in planned_writes}
                for uid, failures in self._failures.items()
            }
            changed = remaining != self._failures
            self._failures = {uid: failures for uid, failures in remaining.items() if failures}
            return changed

    def _call(self, action: Action) -> tuple[str, Any]:
        match action:
            case Apply(owner, body, observed):
                key = _key_of(action)
                return key, lambda: self._write(key, owner, body["kind"], lambda: self._apply(body, observed))
            case Delete(owner, kind, namespace, name, uid):
                key, path = _key_of(action), self._path(kind, namespace, name)
                return key, lambda: self._write(key, owner, kind, lambda: self._delete(path, uid))
            case Evict(owner, flavor, message):
                self._evict_from[flavor] = self.clock.monotonic() + EVICTION_PERIOD
                return f"Workloads {flavor}", lambda: self._evict(owner, flavor, message)
            case SetStatus(queue, body):
                key = f"MasterQueue {queue['metadata']['name']}"
                return key, lambda: self._set_status(queue, body)

    def _write(self, key: str, owner: Object, kind: str, call: Any) -> None:
        """Carry out a write; remember why it fails."""
        uid = owner["metadata"]["uid"]
        try:
            with counted(QUEUE_WRITES, kind.lower()):
                call()
        except LostLeadershipError:
            raise
        except BridgeError as error:
            passes = isinstance(error, KubeConflictError | KubeUnavailableError)
            report_from = self.clock.monotonic() + (PATIENCE if passes else 0)
            with self._lock:
                failures = self._failures.setdefault(uid, {})
                if key in failures:
                    report_from = min(report_from, failures[key].report_from)
                failures[key] = _Failure(str(error), report_from)
            raise
        with self._lock:
            if self._failures.get(uid, {}).pop(key, None) is not None and not self._failures[uid]:
                del self._failures[uid]

    def _apply(self, body: Object, observed: str) -> None:
        """Apply an object of which podbridge is the only field manager.

        If no object was observed, read it first: an object that another client has just created must not be changed.
        """
        kind, metadata = body["kind"], body["metadata"]
        path, cache = self._path(kind, metadata.get("namespace", ""), metadata["name"]), self._kueue.kinds[kind]
        if not observed:
            try:
                cache.apply(self._kube.get(path))
                return
            except KubeNotFoundError:
                pass
        uid = {"uid": observed} if observed else {}
        sent = {**body, "metadata": {**body["metadata"], **uid}}
        params: dict[str, str | int | bool] = {"fieldManager": self._manager, "force": bool(observed)}
        stored = self._kube.patch(path, sent, kind="apply", params=params)
        cache.apply(stored)
        if not is_applied(body, stored):  # to write it again would not help
            raise KubeInvalidError(f"PATCH {path}: the API server or Kueue has stored it with other values")

    def _delete(self, path: str, uid: str) -> None:
        with suppress(KubeNotFoundError):  # it is gone already
            self._kube.delete(path, {"preconditions": {"uid": uid}})

    def _evict(self, owner: Object, flavor: str, message: str) -> None:
        """Evict the workloads of a flavor; those that change at the same time are evicted by the next search."""
        workloads, evicted = Resource(GROUP, self._kueue.version, "workloads", True), 0
        params: dict[str, str | int | bool] = {"fieldManager": self._manager, "force": True}
        # read here: a cache of all workloads would cost memory for an event that is rare
        found = (to_evict(page["items"], flavor) for page in pages(self._kube, workloads.path()))
        for workload in chain.from_iterable(found):
            body = patch({"apiVersion": workloads.api_version, **workload}, message, self.clock.time())
            with suppress(KubeConflictError, KubeNotFoundError), counted(QUEUE_WRITES, "workload"):
                self._kube.patch(workloads.path_of(workload, "status"), body, kind="apply", params=params)
                evicted += 1
        if evicted:
            text = f"{evicted} workloads of flavor {flavor} evicted: {message}"
            self._events.event(owner, EVICTED, text, warning=True, action="Queues")

    def _set_status(self, queue: Object, body: Object) -> None:
        metadata = {key: queue["metadata"][key] for key in ("uid", "resourceVersion")}
        # null removes a field: a merge patch keeps those that it lacks
        removed = dict.fromkeys(key for key in queue.get("status") or {} if key not in body)
        path = MASTER_QUEUES.path(None, queue["metadata"]["name"], "status")
        with counted(QUEUE_WRITES, "masterqueue"):
            self._kueue.queues.apply(self._kube.patch(path, {"metadata": metadata, "status": {**removed, **body}}))
        ready = next(c for c in body["conditions"] if c["type"] == queue_status.READY)
        text = f"{ready['status']} {ready['message']}"
        if self._reported.get(metadata["uid"]) != text:
            self._reported[metadata["uid"]] = text
            warning = ready["status"] != "True"
            self._events.event(queue, f"Queue{ready['reason']}", ready["message"], warning=warning, action="Queues")

    def _measure(self, queues: list[Object]) -> None:
        states = [flavor["state"] for queue in queues for flavor in (queue.get("status") or {}).get("flavors") or ()]
        for state in ("Offered", "Held", "Missing", "Conflict", "Leaving", "Excess"):
            QUEUE_FLAVORS.labels(state.lower()).set(states.count(state))

    def _path(self, kind: str, namespace: str, name: str) -> str:
        return resource(self._kueue.version, kind).path(namespace or None, name)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a write has failed, and the monotonic time from which this is reported."""

    text: str
    report_from: float


def resource(version: str, kind: str) -> Resource:
    """Return the resource of a kind of Kueue's objects."""
    return Resource(GROUP, version, PLURALS[kind], kind in _NAMESPACED)


def _key_of(action: Apply | Delete) -> str:
    if isinstance(action, Delete):
        return _key(action.kind, action.namespace, action.name)
    metadata = action.body["metadata"]
    return _key(action.body["kind"], metadata.get("namespace", ""), metadata["name"])


def _key(kind: str, namespace: str, name: str) -> str:
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def to_evict(workloads: Iterable[Object], flavor: str) -> list[Object]:
    """Return the workloads with a reservation of this flavor that have neither finished nor been evicted."""
    return [item for item in workloads if flavor in _flavors(item) and not _has_condition(item, "Finished", "Evicted")]


def patch(workload: Object, message: str, now: float) -> Object:
    """Return the body of the server-side apply of the status; ``now`` in seconds since 1970.

    It has the version of the Workload that was read, so that a workload that Kueue has changed since is not evicted.
    """
    metadata = workload["metadata"]
    condition = {
        "type": "Evicted",
        "status": "True",
        "reason": _EVICTION_REASON,
        "message": message,
        "lastTransitionTime": rfc3339(now),
        "observedGeneration": metadata.get("generation", 0),
    }
    return {
        "apiVersion": workload["apiVersion"],
        "kind": "Workload",
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")},
        "status": {"conditions": [condition]},
    }


def _flavors(workload: Object) -> set[str]:
    admission = (workload.get("status") or {}).get("admission") or {}
    assignments = admission.get("podSetAssignments") or ()
    return {flavor for assignment in assignments for flavor in (assignment.get("flavors") or {}).values()}


def _has_condition(workload: Object, *kinds: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(c["type"] in kinds and c["status"] == "True" for c in conditions)
