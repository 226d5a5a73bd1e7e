"""The web applications for health (``/livez``, ``/readyz``) and metrics, and their servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import flask
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from bridge.core.threads import Supervisor
from bridge.serving.https import Server

if TYPE_CHECKING:
    from bridge.config.processes import ServingSection

Check = Callable[[], str | None]
"""Returns None if the check passes, else the reason in a few words."""


class Health:
    """Named checks of liveness and readiness.

    If a check of liveness fails, the process needs a restart. If a check of readiness fails, the process should not get
    requests now. A check that raises has failed.
    """

    def __init__(self) -> None:
        self._live: dict[str, Check] = {"ping": lambda: None}
        self._ready: dict[str, Check] = {"ping": lambda: None}

    def live(self, name: str, check: Check) -> None:
        """Add a check of liveness."""
        self._live[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a check of readiness."""
        self._ready[name] = check

    def failures(self) -> dict[str, str]:
        """Return the reasons of the readiness checks that fail, by name."""
        return {name: why for name, why in _results(self._ready).items() if why is not None}

    def app(self) -> flask.Flask:
        """Create the application: ``/healthz``, ``/livez`` and ``/readyz``, also with ``?verbose`` and ``/<check>``."""
        app = flask.Flask(__name__)

        def endpoint(title: str, checks: dict[str, Check]) -> Callable[..., flask.Response]:
            def answer(name: str | None = None) -> flask.Response:
                if name is not None and name not in checks:
                    return _text(f"no check {name!r}; known: {', '.join(sorted(checks))}\n", 404)
                results = _results(checks if name is None else {name: checks[name]})
                good = all(why is None for why in results.values())
                if good and "verbose" not in flask.request.args:
                    return _text("ok", 200)
                lines = [f"[+]{n} ok" if why is None else f"[-]{n} failed: {why}" for n, why in results.items()]
                lines.append(f"{title} check {'passed' if good else 'failed'}")
                return _text("\n".join(lines) + "\n", 200 if good else 503)

            return answer

        for title, checks in (("healthz", self._live), ("livez", self._live), ("readyz", self._ready)):
            view = endpoint(title, checks)
            app.add_url_rule(f"/{title}", title, view)
            app.add_url_rule(f"/{title}/<name>", f"{title}-one", view)
        return app


def metrics_app(registry: CollectorRegistry = REGISTRY) -> flask.Flask:
    """Create the application with ``/metrics``, in the format of the request's ``Accept`` header."""
    app = flask.Flask(__name__)

    @app.get("/metrics")
    def metrics() -> flask.Response:
        encode, content_type = choose_encoder(flask.request.headers.get("Accept", ""))
        return flask.Response(encode(registry), content_type=content_type)

    return app


def start_servers(health: Health, serving: ServingSection, supervisor: Supervisor) -> None:
    """Start the servers of health and metrics on the ports of the configuration, each in a thread of ``supervisor``."""
    for port, app, name in (
        (serving.health_port, health.app(), "health"),
        (serving.metrics_port, metrics_app(), "metrics"),
    ):
        if port is not None:
            server = Server(app, serving.host, port, threads=2, name=name)
            server.start()
            supervisor.spawn(f"{name}-server", lambda s=server: s.run(supervisor.stopping))  # type: ignore[misc]


def _results(checks: dict[str, Check]) -> dict[str, str | None]:
    results: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results


def _text(text: str, status: int) -> flask.Response:
    return flask.Response(text, status=status, content_type="text/plain; charset=utf-8")
