"""interLink's REST API as a flask application, for both hops.

Hop B (an API server calls) and hop A (a virtual kubelet calls) have the same paths; the body of ``/create`` shows which
one it is. Each answer without an error has the status 200: interLink takes every other one for an error. Requests with
GET have bodies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import flask
from pydantic_core import to_json
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from bridge.apps.plugin import bodies
from bridge.apps.plugin.listen import Address
from bridge.apps.plugin.plugin_answers import answer_of
from bridge.apps.plugin.plugin_pods import Pods
from bridge.apps.plugin.plugin_reports import Reports
from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.interlink.messages import as_json
from bridge.logs import kv
from bridge.serving.client_access import ServerAccess
from bridge.serving.http_error import AnswerError
from bridge.serving.log_body import log_response, log_shares
from bridge.telemetry import tracing
from bridge.telemetry.metrics import PLUGIN_REQUESTS, PLUGIN_SECONDS

log = logging.getLogger(__name__)

LOGS_PATH = "/getLogs"
SESSION = "InterLink-Http-Session"
"""Header with the name of a call of the virtual kubelet, for log records."""
Handler = Callable[[bytes], flask.Response]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with its methods. ``handler`` is the name of a method of :class:`PluginHandlers`."""

    path: str
    methods: tuple[str, ...]
    handler: str


ROUTES = (
    Route("/create", ("POST",), "create"),
    Route("/delete", ("POST", "DELETE"), "delete"),
    Route("/status", ("GET", "POST"), "status"),
    Route(LOGS_PATH, ("GET", "POST"), "logs"),
    Route("/system-info", ("GET",), "system_info"),
    Route("/resources", ("GET",), "resources"),
    Route("/pinglink", ("GET", "POST"), "ping"),
    Route("/updateCache", ("POST",), "update_cache"),
)


class PluginHandlers:
    """Answers the requests. Errors leave the methods as exceptions."""

    def __init__(self, pods: Pods, reports: Reports, clock: Clock) -> None:
        self._pods, self._reports, self._clock = pods, reports, clock
        self._shares = log_shares()

    def create(self, data: bytes) -> flask.Response:
        """Submit pods."""
        wanted = bodies.creations(data)
        return _json(list(map(self._create, wanted)) if isinstance(wanted, list) else self._create(wanted))

    def _create(self, wanted: bodies.Creation) -> dict[str, str]:
        uid, jid = self._pods.create(wanted)
        return {"PodUID": uid, "PodJID": jid}

    def delete(self, data: bytes) -> flask.Response:
        """Cancel the job of a pod."""
        return _text(self._pods.delete(bodies.pod(data)))

    def status(self, data: bytes) -> flask.Response:
        """Report the state of pods; without pods, answer a ping."""
        pods = bodies.pods(data)
        return _json(self._pods.statuses(pods)) if pods else self.ping(data)

    def ping(self, _data: bytes) -> flask.Response:
        """Report resources and taints."""
        return _json(as_json(self._reports.ping()))

    def logs(self, data: bytes) -> flask.Response:
        """Send the log of a container."""
        request, options = bodies.log_request(data, self._clock.time())
        with self._shares.unless_it_fails(request.namespace, request.pod_uid) as leave:
            pool, pieces = self._pods.logs(request, options)
            response = log_response(pieces, pool=pool, job=request.pod_uid)
        response.call_on_close(leave)
        return response

    def system_info(self, _data: bytes) -> flask.Response:
        """Report the state of the batch systems."""
        return _json(as_json(self._reports.system_info()))

    def resources(self, _data: bytes) -> flask.Response:
        """Report the free resources with NuNet's names."""
        return _json(self._reports.nunet_resources())

    def update_cache(self, _data: bytes) -> flask.Response:
        """Do nothing: an API server forgets a pod here, and the plugin keeps none in memory."""
        return _text("nothing is cached\n")


def make_app(pods: Pods, reports: Reports, access: ServerAccess, clock: Clock, *, loopback: bool) -> flask.Flask:
    """Return the application. ``loopback``: it is served on a loopback address."""
    app = flask.Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    handlers = PluginHandlers(pods, reports, clock)

    @app.before_request
    def authorize() -> None:
        flask.g.began = time.monotonic()
        request = flask.request
        other_type = bool(request.content_length) and not request.is_json
        refuse_foreign(request.headers, loopback=loopback, other_type=other_type)
        if (refusal := access.refusal(request.environ)) is not None:
            raise AnswerError(401, refusal)

    @app.after_request
    def count(response: flask.Response) -> flask.Response:
        route = str(flask.request.url_rule) if flask.request.url_rule is not None else "other"
        PLUGIN_REQUESTS.labels(route, response.status_code).inc()
        PLUGIN_SECONDS.labels(route).observe(time.monotonic() - flask.g.get("began", time.monotonic()))
        return response

    for route in ROUTES:
        view = _view(getattr(handlers, route.handler))
        # flask would add HEAD to GET
        app.add_url_rule(route.path, route.handler, view, methods=route.methods, provide_automatic_options=False)
    for rule in app.url_map.iter_rules():
        (rule.methods or set()).discard("HEAD")
    _add_error_handlers(app)
    return app


def _view(handler: Handler) -> Callable[[], flask.Response]:
    def view() -> flask.Response:
        with tracing.within(_traceparent()):
            return handler(flask.request.get_data(cache=False))

    return view


def _traceparent() -> str:
    """Return the trace context of the request; empty if it has none, or a malformed one."""
    text = flask.request.headers.get("traceparent", "")
    return text if text and tracing.parse(text) is not None else ""


def _add_error_handlers(app: flask.Flask) -> None:
    @app.errorhandler(AnswerError)
    def answered(error: AnswerError) -> flask.Response:
        if error.status != 401:
            _note(error)
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        return _text(f"{error.text}\n", error.status, headers)

    @app.errorhandler(BridgeError)
    def failed(error: BridgeError) -> flask.Response:
        return answered(answer_of(error))

    @app.errorhandler(HTTPException)
    def unknown(error: HTTPException) -> flask.Response:
        headers = {key: value for key, value in error.get_headers() if key == "Allow"}
        return _text(f"{flask.request.path}: {error.name.lower()}\n", error.code or 500, headers)


def _note(error: AnswerError) -> None:
    session = flask.request.headers.get(SESSION, "")[:80]
    level = logging.WARNING if error.status >= 500 else logging.INFO
    # the text of an error names fields, never values that may be secrets
    extra = kv(path=flask.request.path, status=error.status, error=error, session=session)
    log.log(level, "request failed", extra=extra)


def _json(content: object) -> flask.Response:
    return flask.Response(to_json(content), content_type="application/json")


def _text(text: str, status: int = 200, headers: dict[str, str] | None = None) -> flask.Response:
    return flask.Response(text, status, headers, content_type="text/plain; charset=utf-8")


def refuse_foreign(headers: Headers, *, loopback: bool, other_type: bool) -> None:
    """Raise :class:`AnswerError` for a foreign request.

    Only browsers send the header Origin. A page whose name resolves to a loopback address (DNS rebinding) sends its own
    name as Host. ``other_type``: the request has a body whose Content-Type is not JSON; a form of another site can send
    no JSON type. Go's clients may send no type.
    """
    if headers.get("Origin") is not None:
        raise AnswerError(403, "header Origin: not allowed; requests of web pages are refused")
    host = headers.get("Host", "")
    if loopback and host and not _is_loopback(host):
        raise AnswerError(421, f"header Host: {host[:100]!r} is not allowed; allowed: 127.0.0.1, [::1], localhost")
    if other_type and headers.get("Content-Type"):
        raise AnswerError(
            415, f"header Content-Type: {headers['Content-Type'][:100]!r} is not allowed; allowed: application/json"
        )


def _is_loopback(host: str) -> bool:
    try:
        return Address(host=urlsplit(f"//{host}").hostname or "").is_local
    except ValueError:  # a malformed IPv6 address
        return False
