"""The loop of pods that reach Services: it keeps a stream to the site of each one that runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from bridge import names
from bridge.config import policies
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core import isolation
from bridge.core.retries import Backoff, Retries
from bridge.core.shares import Shares
from bridge.errors import BridgeError, ServiceRefusedError, ShareExceededError
from bridge.kube.lease import Elector
from bridge.kube.namespaces import Namespaces, read_from
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.sessions import MOST_REACHING, Session
from bridge.telemetry.metrics import REACHING_PODS
from bridge.workload import pods
from bridge.workload.services import Target
from controllers.reach.reach_connections import Client, ReachConnections
from controllers.reach.reach_stream import ReachStream
from controllers.reach.service_resolver import ServiceResolver
from controllers.service_reports import ServiceReports

log = logging.getLogger(__name__)

Object = Mapping[str, Any]
NOT_RUNNING = "NotRunning"
"""Reason of a site's refusal."""
MOST = MOST_REACHING // 2
"""Streams to one site: those that it gives to a cluster. A namespace has half of what the others leave."""
BACKOFF = Backoff(first=1.0, limit=15.0)


class ReachingPods(Protocol):
    """The pods on virtual nodes, each with its pool; ``None``: it has not announced itself."""

    def reaching(self) -> Iterable[tuple[Object, Pool | None]]:
        """Return the pods with the annotation."""

    def find(self, namespace: str, name: str) -> tuple[Object, Pool | None] | None:
        """Return a pod."""


class PodStream:
    """The stream of a pod, on a thread of its own.

    ``changed`` is called at its end, ``refused`` with the error if it could not be opened.
    """

    def __init__(
        self,
        client: Client,
        open_session: Callable[[], Session],
        connections: ReachConnections,
        changed: Callable[[], object],
        refused: Callable[[str], object],
    ) -> None:
        self._client, self._open, self._connections = client, open_session, connections
        self._changed, self._refused = changed, refused
        self._lock = threading.Lock()
        self._stream: ReachStream | None = None
        self._is_closed = self.is_over = self.has_failed = False
        threading.Thread(target=self._run, name="reach-stream", daemon=True).start()

    def close(self) -> None:
        """End the stream soon. Idempotent."""
        with self._lock:
            self._is_closed, stream = True, self._stream
        if stream is not None:
            stream.close()

    def _run(self) -> None:
        about = {"pod": f"{self._client.namespace}/{self._client.name}", "pool": self._client.pool}
        end = "an unexpected error"
        try:
            stream = ReachStream(self._open(), lambda text, each: self._connections.accept(self._client, text, each))
            with self._lock:
                self._stream, is_closed = stream, self._is_closed
            if is_closed:
                stream.close()
            log.info("stream to Services opened", extra=kv(**about))
            with REACHING_PODS.track_inprogress():
                end = stream.run()
        except BridgeError as error:
            end = str(error)
            if error.reason != NOT_RUNNING:  # it begins or ends at this moment
                self._refused(end)
        except Exception:
            log.exception("a stream to Services broken off")
        finally:
            self.has_failed = not self._is_closed
            self.is_over = True
            log.info("stream to Services ended", extra=kv(**about, end=end))
            self._changed()


class Reaching(Loop):
    """Keeps the streams. Only the leader has them.

    ``own``: addresses of this process and of the API server, to which no connection may lead.
    """

    def __init__(
        self, shared: KubeDependencies, elector: Elector | None, virtual: ReachingPods, own: Collection[str]
    ) -> None:
        super().__init__("reach", (), elector, 1, shared.clock)
        self._config, self._virtual = shared.config, virtual
        self._reports = ServiceReports(shared.events, names.NOT_REACHED, "Reaching")
        self._namespaces = Namespaces(read_from(shared.kube), shared.clock)
        resolver = ServiceResolver(shared.kube, virtual.find, self._may_expose, own, shared.clock)
        self._connections = ReachConnections(self._pod_of, self._check, resolver.connect, self._reports.event)
        self._streams: dict[str, PodStream] = {}
        self._retries = Retries(BACKOFF, shared.clock)
        self._shares: dict[str, Shares] = {}

    def reconcile(self) -> None:
        """Open and close streams."""
        wanted, found = {}, list(self._virtual.reaching())
        self._reports.keep({pods.uid(pod) for pod, _ in found})
        for pod, pool in found:
            ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            try:
                if pool is not None and not ended and (open_stream := self._opener(pod, pool)) is not None:
                    wanted[pods.uid(pod)] = pod, pool, open_stream
            except Exception as error:
                isolation.report("reach", pods.key(pod), error)
        for uid, stream in list(self._streams.items()):
            if stream.is_over:
                del self._streams[uid]
                if stream.has_failed:
                    self._retries.failed(uid, "stream")
            elif uid not in wanted:
                stream.close()
        for uid, (pod, pool, open_stream) in wanted.items():
            if uid not in self._streams and not self._retries.resting(uid, "stream"):
                try:
                    self._begin(pod, pool, open_stream)
                except Exception as error:
                    self._retries.failed(uid, "stream")
                    isolation.report("reach", pods.key(pod), error)

    def _begin(self, pod: Object, pool: Pool, open_stream: Callable[[Object], Session]) -> None:
        """Open the stream of a pod, unless its namespace has as many at the site as it may."""
        metadata, uid = pod["metadata"], pods.uid(pod)
        shares = self._shares.setdefault(pool.name, Shares(MOST, "streams to Services", "namespace", "pod"))
        try:
            leave = shares.enter(metadata["namespace"], uid)
        except ShareExceededError as error:
            self._reports.once(pod, f"pool {pool.name}: {error}")
            return

        def ended() -> None:
            leave()
            self.wake()

        client = Client(metadata["namespace"], metadata["name"], uid, pool.name)
        self._streams[uid] = PodStream(
            client, partial(open_stream, pod), self._connections, ended, partial(self._reports.once, pod)
        )

    def _opener(self, pod: Object, pool: Pool) -> Callable[[Object], Session] | None:
        """Return what opens the stream of a pod; ``None``: its job does not run, or its pool may not reach Services."""
        if not self._config.pools.may_reach(pool.name):
            self._reports.once(pod, f"pool {pool.name} is not in pools.reach of podbridge's configuration")
            return None
        if (open_stream := pool.reaches) is None:
            self._reports.once(
                pod, f"pool {pool.name} lets pods reach no Services: its site must set limits.allow_reach"
            )
            return None
        job = pool.job(pods.uid(pod))
        # unknown: the batch system does not answer, which must not end connections
        return open_stream if job is not None and job.phase in ("running", "unknown") and not job.asks else None

    def _pod_of(self, client: Client) -> Object | None:
        found = self._virtual.find(client.namespace, client.name)
        if found is None or pods.uid(found[0]) != client.uid or client.uid not in self._streams:
            return None
        return found[0]

    def _check(self, namespace: str, target: Target) -> None:
        labels = self._namespaces.get(namespace).labels
        if not policies.may_reach(self._config.namespace_policies, namespace, labels, target.namespace):
            raise ServiceRefusedError(
                f"Service {target.namespace}/{target.service}: the policy of namespace {namespace} does not allow it"
            )

    def _may_expose(self, namespace: str) -> bool:
        labels = self._namespaces.get(namespace).labels
        exposes = bool(self._config.pools.expose.numbers)
        return exposes and policies.may_expose(self._config.namespace_policies, namespace, labels)
