"""The handlers of the kubelet API: one method for each kind of request. Errors leave them as exceptions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flask
from prometheus_client.exposition import choose_encoder

from bridge.clock import Clock, parse_rfc3339
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import CommandOptions, Session
from bridge.serving.http_error import AnswerError
from bridge.serving.log_body import log_response, log_shares
from controllers.kubelet import stats
from controllers.kubelet.authorization import KubeletAuthorizer
from controllers.kubelet.command_sessions import CommandSessions, Start
from controllers.kubelet.containers import check_log, has_console
from controllers.kubelet.log_session import LogSession
from controllers.kubelet.port_sessions import PortSessions
from controllers.kubelet.usage_cache import NOTHING, PoolUse, UsageCache

log = logging.getLogger(__name__)

SCRAPE_CACHED = 5.0
"""Seconds for which the resource metrics are cached."""
NOT_POSSIBLE = {
    "exec": "kubectl exec is not possible in pods on pool {pool} yet: see what a container does with kubectl logs, or "
    "have its command write there what you want to know",
    "containerLogs": "kubectl logs is not possible for pods on pool {pool}: its site has no logs of jobs",
    "attach": "kubectl attach is not possible to pods on pool {pool}: its site must have logs and run commands",
    "portForward": "kubectl port-forward is not possible to pods on pool {pool}: its site must allow it "
    "(limits.allow_ports), and have a batch system whose jobs podbridge can enter",
}


Located = tuple[Mapping[str, Any], Pool | None]
"""A pod on a virtual node, with its spec and status, and its pool.

The pool is ``None`` if its site has sent nothing since this process started.
"""


@dataclass(frozen=True, slots=True)
class Sources:
    """The functions that the handlers read from. They run at each request and must return at once."""

    find: Callable[[str, str], Located | None]
    """``find(namespace, name)`` returns a pod on one of the virtual nodes."""
    pods: Callable[[], Iterable[Mapping[str, Any]]]
    """Returns the pods on all virtual nodes."""
    pools: Callable[[], Mapping[str, Pool]]
    """Returns the pools by name; a virtual node has the name of its pool."""


class KubeletHandlers:
    """Answers the requests of authenticated users; ``flask.g.user`` is the user."""

    def __init__(self, sources: Sources, authorizer: KubeletAuthorizer, clock: Clock) -> None:
        self._sources, self._authorizer, self._clock = sources, authorizer, clock
        self._started = clock.time()
        self._shares = log_shares()
        self._commands = CommandSessions()
        self._usage = UsageCache(clock)
        self._ports = PortSessions()
        self._scrapes: SingleFlightCache[bytes] = SingleFlightCache(clock, limit=64)

    def check(self, node: str, method: str = "") -> None:
        """Raise :class:`AnswerError` 403 unless the user may send this request to the node (empty: to any node).

        ``method`` is that of the permission, if it is not that of the request.
        """
        self._authorizer.check(flask.g.user, method or flask.request.method, flask.request.path, node)

    # --- one pod ------------------------------------------------------------------------------------------------------
    def container_logs(self, namespace: str, name: str, container: str) -> flask.Response:
        """Answer ``kubectl logs``."""
        located = self._find(namespace, name)
        options = log_options(flask.request.args.to_dict(flat=False), container, self._clock.time())
        pod, pool = _known(located)
        if pool.logs is None:
            return _not_possible("containerLogs", pool.name)
        job = str(pod["metadata"]["uid"])
        check_log(pod, pool.job(job), container, previous=options.previous)
        with self._shares.unless_it_fails(namespace, job) as leave:
            response = log_response(pool.logs(pod, options), pool=pool.name, job=job)
        response.call_on_close(leave)
        return response

    def run_command(self, namespace: str, name: str, container: str, uid: str | None = None) -> flask.Response:
        """Answer ``kubectl exec`` and ``kubectl cp``."""
        pod, pool = self._find_incarnation(namespace, name, uid)
        if (start := pool.sessions) is None:
            return _not_possible("exec", pool.name)
        return self._commands.open(pod, pool, start, container, flask.g.user.name)

    def attach(self, namespace: str, name: str, container: str, uid: str | None = None) -> flask.Response:
        """Answer ``kubectl attach``: to the console of the container if it has one, else to its log."""
        pod, pool = self._find_incarnation(namespace, name, uid)
        start = pool.sessions
        if not has_console(pod, container):
            start = None if pool.logs is None else _log_start(pool.logs)
        if start is None:
            return _not_possible("attach", pool.name)
        return self._commands.open(pod, pool, start, container, flask.g.user.name, attach=True)

    def forward_ports(self, namespace: str, name: str, uid: str | None = None) -> flask.Response:
        """Answer ``kubectl port-forward``."""
        pod, pool = self._find_incarnation(namespace, name, uid)
        if (connect := pool.connections) is None:
            return _not_possible("portForward", pool.name)
        return self._ports.open(pod, pool, connect, flask.g.user.name)

    def _find_incarnation(self, namespace: str, name: str, uid: str | None) -> tuple[Mapping[str, Any], Pool]:
        # a WebSocket is a GET, but this needs more than the permission to read
        pod, pool = _known(self._find(namespace, name, "POST"))
        if uid not in (None, pod["metadata"]["uid"]):
            raise AnswerError(404, f'pod "{name}" with UID {uid} does not exist')
        return pod, pool

    def _find(self, namespace: str, name: str, method: str = "") -> Located:
        located = self._sources.find(namespace, name)
        # checked first: a user without permission must not learn whether the pod exists
        self.check(_node(located[0]) if located is not None else "", method)
        if located is None:
            raise AnswerError(404, f'pod "{name}" does not exist')
        return located

    # --- nodes --------------------------------------------------------------------------------------------------------
    def pods(self) -> flask.Response:
        """List the pods."""
        return _json(stats.pod_list(self._selected()[1]))

    def running_pods(self) -> flask.Response:
        """List the pods with running containers."""
        return _json(stats.running_pods(self._selected()[1], self._status_of()))

    def summary(self) -> flask.Response:
        """Return the stats summary of one node."""
        nodes, pods = self._selected()
        if len(nodes) != 1:
            served = ", ".join(sorted(nodes)) or "none"
            raise AnswerError(400, f"say which node with ?node=<name>; virtual nodes served here: {served}")
        node = nodes.pop()
        return _json(stats.summary(node, self._started, pods, self._status_of(), self._usages([node])[node]))

    def resource_metrics(self, node: str | None = None) -> flask.Response:
        """Return the resource metrics of a node, or of all nodes, in the format that the client accepts.

        All virtual nodes have one address. A scraper that knows no path of a node sends the same request once for each
        of them, and each answer has the pods of all.
        """
        encode, content_type = choose_encoder(flask.request.headers.get("Accept", ""))
        allowed = self._allowed(node)

        def load() -> tuple[bytes, float]:
            pods, usages = self._pods_on(allowed), self._usages(allowed)
            return encode(stats.resource_metrics(allowed, pods, self._status_of(), usages)), SCRAPE_CACHED

        # by the nodes, not by the user: whoever may read the same nodes gets the same answer
        content = self._scrapes.get((frozenset(allowed), content_type), load)
        return flask.Response(content, content_type=content_type)

    def healthz(self) -> flask.Response:
        """Return ``ok``."""
        self._selected()
        return flask.Response("ok", content_type="text/plain; charset=utf-8")

    def _selected(self) -> tuple[set[str], list[Mapping[str, Any]]]:
        """Return the nodes of the request that the user may read, and their pods."""
        allowed = self._allowed()
        return allowed, self._pods_on(allowed)

    def _pods_on(self, nodes: set[str]) -> list[Mapping[str, Any]]:
        return [pod for pod in self._sources.pods() if (pod.get("spec") or {}).get("nodeName") in nodes]

    def _usages(self, nodes: Iterable[str]) -> dict[str, PoolUse]:
        pools = self._sources.pools()
        return {node: self._usage.of(pools[node]) if node in pools else NOTHING for node in nodes}

    def _allowed(self, node_name: str | None = None) -> set[str]:
        """Return the nodes of the request (in its path, or ``?node=``; else all) that the user may read.

        Raises :class:`AnswerError` if there are none.
        """
        nodes = set(self._sources.pools())
        node_name = node_name or flask.request.args.get("node")
        requested = nodes if node_name is None else nodes & {node_name}
        allowed = self._authorizer.nodes(flask.g.user, flask.request.method, flask.request.path, requested)
        if node_name is not None and not requested:
            raise AnswerError(404, f"no virtual node {node_name!r} is served here")
        return allowed

    def _status_of(self) -> stats.StatusOf:
        # one copy for the whole answer: each call of jobs() copies the view of a pool
        jobs = {name: pool.jobs() for name, pool in self._sources.pools().items()}

        def status_of(pod: Mapping[str, Any]) -> JobStatus | None:
            node = (pod.get("spec") or {}).get("nodeName", "")
            return jobs.get(node, {}).get((pod.get("metadata") or {}).get("uid", ""))

        return status_of


def _log_start(logs: Callable[[Mapping[str, Any], LogOptions], Iterator[bytes]]) -> Start:
    def start(pod: Mapping[str, Any], options: CommandOptions) -> Session:
        return LogSession(logs(pod, LogOptions(container=options.container, follow=True, tail=0)))

    return start


def _known(located: Located) -> tuple[Mapping[str, Any], Pool]:
    """Raise :class:`AnswerError` unless the pool is known. 502: the API server replaces the message of a 503."""
    pod, pool = located
    if pool is None:
        raise AnswerError(502, f"pool {_node(pod)} has not been heard of since podbridge started")
    return pod, pool


def _json(content: dict[str, Any]) -> flask.Response:
    return flask.Response(json.dumps(content, separators=(",", ":")), content_type="application/json")


def _node(pod: Mapping[str, Any]) -> str:
    """Return the name of the pod's virtual node, which is also the name of its pool."""
    return str((pod.get("spec") or {}).get("nodeName", ""))


def _not_possible(request: str, pool: str) -> flask.Response:
    """Answer in the form of the API server, from which kubectl takes the message."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": NOT_POSSIBLE[request].format(pool=pool),
        "reason": "NotImplemented",
        "code": 501,
    }
    response = _json(body)
    response.status_code = 501
    return response


# --- the query parameters of /containerLogs, validated as in a kubelet ------------------------------------------------
Query = Mapping[str, Sequence[str]]
_LARGEST = 2**63 - 1


def log_options(query: Query, container: str, now: float) -> LogOptions:
    """Parse the query of a request for a log. ``sinceSeconds`` is relative to ``now``.

    Raises :class:`AnswerError`: 400 for a value that cannot be parsed, 422 for one that is not allowed.
    """
    tail = _number(query, "tailLines")
    if (tail_text := _first(query, "tail")) and tail is None:
        tail = None if tail_text == "all" else _number(query, "tail")
    limit = _number(query, "limitBytes")
    seconds = _number(query, "sinceSeconds")
    since = _time(query, "sinceTime")
    for name, value, minimum in (("tailLines", tail, 0), ("limitBytes", limit, 1), ("sinceSeconds", seconds, 1)):
        if value is not None and value < minimum:
            raise AnswerError(422, f"{name}: {value}: must be {minimum} or more")
    if seconds is not None and since is not None:
        raise AnswerError(422, "at most one of sinceTime and sinceSeconds may be given")
    stream = _first(query, "stream")
    if stream not in (None, "", "All"):
        raise AnswerError(
            400 if stream in ("Stdout", "Stderr") else 422,
            f"stream: {stream}: must be All: standard output and standard error are one log at a site",
        )
    if seconds is not None:
        since = now - seconds
    return LogOptions(
        container=container,
        follow=_flag(query, "follow"),
        tail=tail,
        since=since,
        timestamps=_flag(query, "timestamps"),
        limit_bytes=limit,
        previous=_flag(query, "previous"),
    )


def _first(query: Query, name: str) -> str | None:
    values = query.get(name)
    return values[0] if values else None


def _flag(query: Query, name: str) -> bool:
    """Parse a boolean as Kubernetes does: no value is invalid, and ``?follow`` alone is true."""
    value = _first(query, name)
    return value is not None and value.lower() not in ("false", "0")


def _number(query: Query, name: str) -> int | None:
    value = _first(query, name)
    if value is None:
        return None
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and abs(int(value)) <= _LARGEST):
        raise AnswerError(400, f"{name}: {value[:40]!r}: must be a whole number")
    return int(value)


def _time(query: Query, name: str) -> float | None:
    value = _first(query, name)
    if value in (None, "", "null"):
        return None
    try:
        if "T" not in value.upper() or not (value.upper().endswith("Z") or value[-6:-5] in ("+", "-")):
            raise ValueError("not RFC 3339")
        return parse_rfc3339(value.upper())
    except (ValueError, OverflowError) as error:
        raise AnswerError(400, f"{name}: {value[:40]!r}: must be a time such as 2026-01-31T12:00:00Z") from error
