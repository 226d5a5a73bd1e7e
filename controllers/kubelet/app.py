"""The application: routes, and before each of them who asks and whether they may."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import flask
from prometheus_client.exposition import choose_encoder
from werkzeug.exceptions import HTTPException

from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.poolapi.jobs import JobStatus
from bridge.poolapi.requests import LogOptions
from bridge.pools.port import Pool
from bridge.serving.connection import PEER_CERTIFICATE
from bridge.serving.streaming import ON_HANG_UP
from controllers.kubelet import stats
from controllers.kubelet.answers import AnswerError, answer_of
from controllers.kubelet.authentication import TokenAuthenticator, User, bearer, user_of_certificate
from controllers.kubelet.authorization import KubeletAuthorizer
from controllers.kubelet.containers import check_log
from controllers.kubelet.options import log_options

log = logging.getLogger(__name__)

LOGS_PATH = "/containerLogs/"
NOT_POSSIBLE = {
    "exec": "kubectl exec is not possible in pods on pool {pool} yet: see what a container does with kubectl logs, or "
    "have its command write there what you want to know",
    "attach": "kubectl attach is not possible to pods on pool {pool} yet: use kubectl logs -f",
    "portForward": "kubectl port-forward is not possible to pods on pool {pool} yet: have the pod bring its results to "
    "a place that you can reach",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A pod (raw, with its spec and status), its pool (``None``: not heard of yet), its job there (the pod's UID)."""

    pod: Mapping[str, Any]
    pool: Pool | None
    job: str

    @property
    def node(self) -> str:
        """The virtual node, which is named as the pool is."""
        return self.pool.name if self.pool is not None else str((self.pod.get("spec") or {}).get("nodeName", ""))


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from; all are called at each request and must be quick."""

    find: Callable[[str, str], Found | None]
    """``find(namespace, name)``: a pod on one of the virtual nodes."""
    pods: Callable[[], Iterable[Mapping[str, Any]]]
    """The pods on all virtual nodes, raw."""
    pools: Callable[[], Mapping[str, Pool]]
    """The pools by name; a pool's name is its node's."""


def make_app(sources: Sources, tokens: TokenAuthenticator, access: KubeletAuthorizer, clock: Clock) -> flask.Flask:
    """Make the application."""
    app = flask.Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    started = clock.time()

    @app.before_request
    def authenticate() -> None:
        flask.g.user = _user(tokens, clock.time())
        if flask.request.method == "HEAD":  # flask would take it for a GET whose answer nobody reads
            raise AnswerError(405, "HEAD is not possible here")

    def route(rule: str, view: Callable[..., flask.Response], methods: tuple[str, ...] = ("GET",)) -> None:
        app.add_url_rule(rule, rule, view, methods=methods, provide_automatic_options=False)

    def asked(node: str) -> None:
        access.check(flask.g.user, flask.request.method, flask.request.path, node)

    def chosen() -> tuple[set[str], list[Mapping[str, Any]]]:
        """Give the nodes that are meant and may be seen, and their pods."""
        nodes = set(sources.pools())
        only = flask.request.args.get("node")
        meant = nodes if only is None else nodes & {only}
        allowed = access.nodes(flask.g.user, flask.request.method, flask.request.path, meant)
        if only is not None and not meant:
            raise AnswerError(404, f"no virtual node {only!r} is served here")
        return allowed, [pod for pod in sources.pods() if (pod.get("spec") or {}).get("nodeName") in allowed]

    def view() -> stats.StatusOf:
        jobs = {name: pool.jobs() for name, pool in sources.pools().items()}

        def status_of(pod: Mapping[str, Any]) -> JobStatus | None:
            node = (pod.get("spec") or {}).get("nodeName", "")
            return jobs.get(node, {}).get((pod.get("metadata") or {}).get("uid", ""))

        return status_of

    def find(namespace: str, name: str) -> Found:
        found = sources.find(namespace, name)
        # whoever may not see the pod must not learn whether it is there
        asked(found.node if found is not None else "")
        if found is None:
            raise AnswerError(404, f'pod "{name}" does not exist')
        return found

    def container_logs(namespace: str, name: str, container: str) -> flask.Response:
        found = find(namespace, name)
        options = log_options(flask.request.args.to_dict(flat=False), container, clock.time())
        pool = found.pool
        if pool is None:
            raise AnswerError(502, f"pool {found.node} has not been heard of since podbridge started")
        check_log(found.pod, pool.job(found.job), container, previous=options.previous)
        body = _Log(pool, found.job, options)
        flask.request.environ.get(ON_HANG_UP, _nobody_hangs_up)(body.close)
        return flask.Response(body, content_type="text/plain; charset=utf-8")

    def not_possible(namespace: str, name: str, **_: str) -> flask.Response:
        found = find(namespace, name)
        what = flask.request.path.split("/")[1]
        text = NOT_POSSIBLE[what].format(pool=found.node)
        return _status(501, "NotImplemented", text)

    def pods() -> flask.Response:
        return _json(stats.pod_list(chosen()[1]))

    def running() -> flask.Response:
        return _json(stats.running_pods(chosen()[1], view()))

    def summary() -> flask.Response:
        nodes, found = chosen()
        if len(nodes) != 1:
            known = ", ".join(sorted(nodes)) or "none"
            raise AnswerError(400, f"say which node with ?node=<name>; virtual nodes served here: {known}")
        return _json(stats.summary(nodes.pop(), started, found, view()))

    def resource() -> flask.Response:
        encode, content_type = choose_encoder(flask.request.headers.get("Accept", ""))
        return flask.Response(encode(stats.resource_metrics(chosen()[1], view())), content_type=content_type)

    def healthz() -> flask.Response:
        chosen()
        return flask.Response("ok", content_type="text/plain; charset=utf-8")

    route(f"{LOGS_PATH}<namespace>/<name>/<container>", container_logs)
    for kind in ("exec", "attach"):
        route(f"/{kind}/<namespace>/<name>/<container>", not_possible, ("GET", "POST"))
        route(f"/{kind}/<namespace>/<name>/<uid>/<container>", not_possible, ("GET", "POST"))
    route("/portForward/<namespace>/<name>", not_possible, ("GET", "POST"))
    route("/portForward/<namespace>/<name>/<uid>", not_possible, ("GET", "POST"))
    for path in ("/pods", "/pods/"):
        route(path, pods)
    for path in ("/runningpods", "/runningpods/"):
        route(path, running)
    route("/stats/summary", summary)
    route("/metrics/resource", resource)
    route("/healthz", healthz)

    @app.errorhandler(AnswerError)
    def told(error: AnswerError) -> flask.Response:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        return flask.Response(error.text, error.status, headers, content_type="text/plain; charset=utf-8")

    @app.errorhandler(BridgeError)
    def failed(error: BridgeError) -> flask.Response:
        answer = answer_of(error)
        if answer.status != 400:
            log.warning("kubelet API could not answer", extra=kv(path=flask.request.path, error=error))
        return told(answer)

    @app.errorhandler(HTTPException)
    def unknown(error: HTTPException) -> flask.Response:
        try:
            asked("")
        except AnswerError as refused:
            return told(refused)
        except BridgeError as problem:
            return failed(problem)
        code = error.code or 500
        return told(AnswerError(code, f"{flask.request.path}: {'not found' if code == 404 else error.name.lower()}"))

    return app


def _user(tokens: TokenAuthenticator, now: float) -> User:
    certificate = flask.request.environ.get(PEER_CERTIFICATE)
    if certificate is not None and (user := user_of_certificate(certificate, now)) is not None:
        return user
    token = bearer(flask.request.headers.get("Authorization", ""))
    if token is not None and (known := tokens.user(token)) is not None:
        return known
    raise AnswerError(401, "Unauthorized")


def _nobody_hangs_up(call: Callable[[], object]) -> None:
    """Stand in where the server does not watch its clients."""


class _Log:
    """A log as a response's body. What the site says at once becomes the answer; what goes wrong later, its last line.

    No generator: closing one that has not begun would not end the log at the site, and one that waits can't be closed.
    """

    def __init__(self, pool: Pool, job: str, options: LogOptions) -> None:
        self._pool = pool.name
        self._job = job
        self._pieces = pool.logs(job, options)
        self._begun = self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        if not self._begun:  # the client learns that there is a log before there is a line in it
            self._begun = True
            return b""
        try:
            return next(self._pieces)
        except BridgeError as error:
            if self._over:
                raise StopIteration from error
            self._over = True
            log.warning("log broken off", extra=kv(pool=self._pool, job=self._job, error=error))
            return f"podbridge: the log breaks off here: {error}\n".encode()

    def close(self) -> None:
        """End the log at the site too; from any thread."""
        self._over = True
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


def _json(content: dict[str, Any]) -> flask.Response:
    return flask.Response(json.dumps(content, separators=(",", ":")), content_type="application/json")


def _status(code: int, reason: str, message: str) -> flask.Response:
    """Answer as the API server does: kubectl reads the message out of it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    response = _json(body)
    response.status_code = code
    return response
