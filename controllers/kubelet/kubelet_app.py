"""The kubelet API as a flask application: routes, authentication, and answers to errors."""

from __future__ import annotations

import logging
from collections.abc import Callable

import flask
from werkzeug.exceptions import HTTPException

from bridge.clock import Clock
from bridge.errors import (
    BridgeError,
    KubeError,
    ShareExceededError,
    SiteDownError,
    SiteRefusedError,
    SiteUnknownOutcomeError,
)
from bridge.logs import kv
from bridge.names import METRICS_PATH
from bridge.serving.http_connection import PEER_CERTIFICATE
from bridge.serving.http_error import AnswerError
from controllers.kubelet.authentication import TokenAuthenticator, User, bearer, user_of_certificate
from controllers.kubelet.authorization import KubeletAuthorizer
from controllers.kubelet.handlers import KubeletHandlers, Sources

log = logging.getLogger(__name__)

LOGS_PATH = "/containerLogs/"
EXEC_PATH = "/exec/"
ATTACH_PATH = "/attach/"
PORTS_PATH = "/portForward/"


def make_app(sources: Sources, tokens: TokenAuthenticator, authorizer: KubeletAuthorizer, clock: Clock) -> flask.Flask:
    """Return the application."""
    app = flask.Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    handlers = KubeletHandlers(sources, authorizer, clock)

    @app.before_request
    def authenticate() -> None:
        flask.g.user = _user(tokens, clock.time())
        if flask.request.method == "HEAD":  # flask would run the handler of GET and discard its body
            raise AnswerError(405, "HEAD is not possible here")

    _add_routes(app, handlers)
    _add_error_handlers(app, handlers)
    return app


def _add_routes(app: flask.Flask, handlers: KubeletHandlers) -> None:
    def route(rule: str, handler: Callable[..., flask.Response], *methods: str, websocket: bool = False) -> None:
        app.add_url_rule(
            rule,
            f"{rule} {websocket}",
            handler,
            methods=methods or ("GET",),
            websocket=websocket,
            provide_automatic_options=False,
        )

    route(f"{LOGS_PATH}<namespace>/<name>/<container>", handlers.container_logs)
    for path, handler in ((EXEC_PATH, handlers.run_command), (ATTACH_PATH, handlers.attach)):
        for rule in ("<namespace>/<name>/<container>", "<namespace>/<name>/<uid>/<container>"):
            route(f"{path}{rule}", handler, "GET", "POST")
            route(f"{path}{rule}", handler, websocket=True)  # refused in words; werkzeug would say "bad request"
    for rule in ("<namespace>/<name>", "<namespace>/<name>/<uid>"):
        route(f"{PORTS_PATH}{rule}", handlers.forward_ports, "GET", "POST")
        route(f"{PORTS_PATH}{rule}", handlers.forward_ports, websocket=True)
    for path in ("/pods", "/pods/"):
        route(path, handlers.pods)
    for path in ("/runningpods", "/runningpods/"):
        route(path, handlers.running_pods)
    route("/stats/summary", handlers.summary)
    route(METRICS_PATH, handlers.resource_metrics)
    route(f"{METRICS_PATH}/<node>", handlers.resource_metrics)
    route("/healthz", handlers.healthz)


def _add_error_handlers(app: flask.Flask, handlers: KubeletHandlers) -> None:
    @app.errorhandler(AnswerError)
    def answered(error: AnswerError) -> flask.Response:
        return _plain(error)

    @app.errorhandler(BridgeError)
    def failed(error: BridgeError) -> flask.Response:
        answer = answer_of(error)
        if answer.status != 400:
            log.warning("kubelet API could not answer", extra=kv(path=flask.request.path, error=error))
        return _plain(answer)

    @app.errorhandler(HTTPException)
    def unknown(error: HTTPException) -> flask.Response:
        try:
            # a user without permission must not learn which paths exist
            handlers.check("")
        except AnswerError as refused:
            return _plain(refused)
        except BridgeError as problem:
            return failed(problem)
        code = error.code or 500
        return _plain(AnswerError(code, f"{flask.request.path}: {'not found' if code == 404 else error.name.lower()}"))


def _plain(answer: AnswerError) -> flask.Response:
    headers = {"WWW-Authenticate": "Bearer"} if answer.status == 401 else {}
    return flask.Response(answer.text, answer.status, headers, content_type="text/plain; charset=utf-8")


def _user(tokens: TokenAuthenticator, now: float) -> User:
    certificate = flask.request.environ.get(PEER_CERTIFICATE)
    if certificate is not None and (user := user_of_certificate(certificate, now)) is not None:
        return user
    token = bearer(flask.request.headers.get("Authorization", ""))
    if token is not None and (token_user := tokens.user(token)) is not None:
        return token_user
    raise AnswerError(401, "Unauthorized")


def answer_of(error: BridgeError) -> AnswerError:
    """Return the answer for an error.

    The API server passes on the message of a 400, 404 and 502, and replaces that of a 503. So a silent site is 502, and
    503 means that the API server did not answer a review.
    """
    if isinstance(error, ShareExceededError):
        return AnswerError(429, str(error))
    if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
        return AnswerError(502, error.with_hint)
    if isinstance(error, SiteRefusedError) and not error.retryable:
        return AnswerError(404 if error.reason == "NotFound" else 400, error.with_hint)
    if isinstance(error, KubeError):
        return AnswerError(503 if error.retryable else 500, f"a request to the API server failed: {error}")
    return AnswerError(502 if error.retryable else 500, error.with_hint)
