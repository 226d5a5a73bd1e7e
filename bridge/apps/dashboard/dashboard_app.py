"""The web page as a flask application: routes, access, the headers of answers, and answers to errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from urllib.parse import urlsplit

import flask
from werkzeug.exceptions import HTTPException

from bridge import __version__
from bridge.apps.dashboard.page_access import LONGEST_COOKIE, PageAccess
from bridge.apps.dashboard.pages import Pages
from bridge.clock import duration
from bridge.core.shares import Shares
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError, ShareExceededError
from bridge.logs import kv
from bridge.serving.http_error import AnswerError

log = logging.getLogger(__name__)

CHANGES_PATH = "/changes"
LOG_PATH = "/log/"
_OPEN = frozenset({"static", "sign_in", "sign_in_form"})
"""The endpoints without a check of access."""
SECURITY = {
    # no inline script, no inline style, nothing from another host
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
STREAMS = 128
"""Open pages and followed logs at once; each has a thread."""
STREAMS_PER_USER = 16


def is_long(path: str) -> bool:
    """Whether the answer to a path is long: see :mod:`bridge.serving.streaming`."""
    return path == CHANGES_PATH or path.startswith(LOG_PATH)


def make_app(pages: Pages, access: PageAccess, hosts: Callable[[], Collection[str]]) -> flask.Flask:
    """Return the application. ``hosts`` returns the allowed values of the header Host; none: all."""
    app = flask.Flask(__name__)
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600
    app.url_map.merge_slashes = False
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(version=__version__, signs_in=access.signs_in)
    app.jinja_env.filters.update(duration=duration, moment=moment, machine=machine)
    _add_checks(app, access, hosts)
    app.before_request(pages.begin)
    _add_error_handlers(app)
    _add_sign_in(app, access)
    route = app.add_url_rule
    route("/", "overview", pages.overview)
    route("/nodes", "nodes", pages.nodes)
    route("/map", "map", pages.map)
    route("/queue", "queue", pages.queue)
    route("/workloads", "workloads", pages.workloads)
    route("/pods", "pods", pages.pods)
    route("/pods/<namespace>/<name>", "pod", pages.pod)
    route("/pods/<namespace>/<name>/logs", "logs", pages.logs)
    route(f"{LOG_PATH}<namespace>/<name>/<container>", "log", pages.log)
    route(CHANGES_PATH, "changes", pages.changes)
    return app


def _add_checks(app: flask.Flask, access: PageAccess, hosts: Callable[[], Collection[str]]) -> None:
    streams = Shares(STREAMS, "pages and logs", "user", "user", of_member=STREAMS_PER_USER)

    @app.before_request
    def check() -> flask.typing.ResponseReturnValue | None:
        request = flask.request
        host = request.headers.get("Host", "")
        check_host(host, hosts())
        if request.method == "POST":
            check_origin(request.headers.get("Origin", ""), host)
        if request.endpoint in _OPEN:
            return None
        viewer = access.viewer(request.headers.get("Authorization", ""), request.cookies.get(access.cookie, ""))
        if viewer is not None:
            flask.g.viewer = viewer
            if is_long(request.path):
                flask.g.leave = streams.enter(viewer.name, viewer.name)
            return None
        if access.signs_in:
            return flask.redirect("/sign-in", 303)
        if access.accepts(token := request.args.get("token", "")):
            return _signed_in(access, token)
        raise AnswerError(401, "open the URL that podbridge dashboard has printed; it contains the token of the page")

    @app.after_request
    def secure(answer: flask.Response) -> flask.Response:
        if (leave := flask.g.pop("leave", None)) is not None:
            answer.call_on_close(leave)
        answer.headers.update(SECURITY)
        if flask.request.endpoint != "static":
            answer.headers["Cache-Control"] = "no-store"
        return answer


def _add_sign_in(app: flask.Flask, access: PageAccess) -> None:
    @app.get("/sign-in", endpoint="sign_in_form")
    def form() -> flask.typing.ResponseReturnValue:
        return flask.render_template("sign_in.html", problem="") if access.signs_in else flask.redirect("/", 303)

    @app.post("/sign-in", endpoint="sign_in")
    def sign_in() -> flask.typing.ResponseReturnValue:
        token = flask.request.form.get("token", "").strip()
        if not access.accepts(token):
            problem = "The API server does not accept this token. It may have expired: create another one."
        elif len(access.value(token)) > LONGEST_COOKIE:
            problem = f"The token has {len(token)} characters, too many for a cookie. Use a proxy that sends it."
        else:
            return _signed_in(access, token)
        return flask.render_template("sign_in.html", problem=problem), 401

    @app.post("/sign-out", endpoint="sign_out")
    def sign_out() -> flask.typing.ResponseReturnValue:
        answer = flask.redirect("/sign-in", 303)
        answer.delete_cookie(access.cookie)
        return answer


def _signed_in(access: PageAccess, token: str) -> flask.typing.ResponseReturnValue:
    answer = flask.redirect("/", 303)
    answer.set_cookie(access.cookie, access.value(token), httponly=True, samesite="Lax", secure=flask.request.is_secure)
    return answer


def _add_error_handlers(app: flask.Flask) -> None:
    @app.errorhandler(AnswerError)
    def answered(error: AnswerError) -> flask.typing.ResponseReturnValue:
        return _error(error.status, error.text)

    @app.errorhandler(BridgeError)
    def failed(error: BridgeError) -> flask.typing.ResponseReturnValue:
        if isinstance(error, KubeForbiddenError):
            return _error(403, str(error))
        if isinstance(error, KubeNotFoundError):
            return _error(404, str(error))
        if isinstance(error, ShareExceededError):
            return _error(429, str(error))
        log.warning("page not answered", extra=kv(path=flask.request.path, error=error))
        return _error(502, str(error))

    @app.errorhandler(HTTPException)
    def unknown(error: HTTPException) -> flask.typing.ResponseReturnValue:
        return _error(error.code or 500, "This page does not exist." if error.code == 404 else error.name)


def _error(status: int, text: str) -> flask.typing.ResponseReturnValue:
    if flask.request.path.startswith(LOG_PATH):
        return flask.Response(f"podbridge: {text}\n", status, content_type="text/plain; charset=utf-8")
    return flask.render_template("error.html", status=status, text=text), status


def check_host(host: str, allowed: Collection[str]) -> None:
    """Raise :class:`AnswerError` 421 unless ``host`` is one of ``allowed``; an empty collection allows all.

    A page of another site whose name resolves to this address (DNS rebinding) sends its own name.
    """
    if allowed and host.lower() not in allowed:
        raise AnswerError(421, f"the page has the address {', '.join(sorted(allowed))}, not {host[:100]!r}")


def check_origin(origin: str, host: str) -> None:
    """Raise :class:`AnswerError` 403 for a form of another site; ``origin`` is empty for a client without one."""
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        raise AnswerError(403, "forms of other sites are not accepted")


def loopback_names(port: int) -> frozenset[str]:
    """Return the values of the header Host for a server on loopback."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


# --- times as short texts -------------------------------------------------------------------------------------------
def moment(at: float) -> str:
    """Return a time as ``2026-11-23 20:38:04`` in UTC."""
    return _utc(at).strftime("%Y-%m-%d %H:%M:%S")


def machine(at: float) -> str:
    """Return a time for the attribute ``datetime``."""
    return _utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(min(max(at, 0.0), 253402300799.0), UTC)
