"""The process of ``podbridge dashboard``: two caches, the web server and, where users sign in, health and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge import __version__, names
from bridge.apps.dashboard.changes import Changes
from bridge.apps.dashboard.cookie_seal import CookieSeal
from bridge.apps.dashboard.dashboard_app import STREAMS, is_long, loopback_names, make_app
from bridge.apps.dashboard.page_access import LocalAccess, PageAccess, ReviewedAccess
from bridge.apps.dashboard.pages import Explain, Pages, Sources
from bridge.apps.dashboard.pool_day import PoolDay
from bridge.apps.dashboard.slurm_reader import SlurmReader
from bridge.apps.view.pod_view import keep, keep_node
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError, ConfigError, KubeForbiddenError
from bridge.kube.cache import Cache
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS, NODES, PODS
from bridge.kube.user_client import UserClients
from bridge.logs import kv
from bridge.serving import client_access as serving_access
from bridge.serving.health import Health, start_servers
from bridge.serving.https import Server
from bridge.serving.streaming import Streams
from bridge.slurm import day_history
from bridge.telemetry.metrics import BUILD_INFO
from controllers.kubelet.authentication import TokenAuthenticator, ask_api_server

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
REVIEW_TIMEOUT = 5.0
CERTIFICATE_PERIOD = 10.0
FIRST_LIST = 2.0
"""Seconds to wait for the first list before the URL is printed: in most clusters, the first page is complete then."""


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The options of the command. ``hosts``: names in the header Host that are accepted where users sign in."""

    host: str = "127.0.0.1"
    port: int = 8088
    namespace: str | None = None
    sign_in: bool = False
    hosts: tuple[str, ...] = ()
    files: serving_access.Files = field(default_factory=serving_access.Files)
    kubeconfig: str | None = None
    context: str | None = None


class Dashboard:
    """The web page. Raises :class:`ConfigError` for settings that are not safe."""

    def __init__(self, config: Config, settings: PageSettings, explain: Explain) -> None:
        if settings.host not in LOOPBACK and not settings.sign_in:
            raise ConfigError(
                f"--host: {settings.host} is not allowed without --sign-in; allowed: {', '.join(LOOPBACK)}",
                hint="with --sign-in, users need a token of the API server",
            )
        if settings.host not in LOOPBACK and settings.files.cert is None:
            raise ConfigError(
                f"--host: {settings.host} requires --tls-cert and --tls-key: the page receives tokens",
                hint="without a certificate, listen on 127.0.0.1 behind a proxy or kubectl port-forward",
            )
        self._config, self._settings = config, settings
        self._sums = config.leader_election.namespace, names.slurm_sums(config.installation)
        self._clock = SystemClock()
        self._supervisor = Supervisor()
        agent = f"podbridge-dashboard/{__version__}"
        self._kube = KubeClient.load(settings.kubeconfig, settings.context, user_agent=agent, pool_size=16)
        self._tls = serving_access.ServerAccess(settings.files)
        self._changes = Changes()
        self._pods = Cache(
            self._kube,
            PODS,
            name="pods",
            prune=keep,
            namespace=settings.namespace,
            field_selector=f"spec.schedulerName={config.scheduler_name}",
            clock=self._clock,
        )
        self._nodes = Cache(self._kube, NODES, name="nodes", prune=keep_node, clock=self._clock)
        self._access: PageAccess = self._reviewed(agent) if settings.sign_in else self._local()
        path = CONFIGMAPS.path(*self._sums)
        self._slurm = SlurmReader(self._kube, path, self._clock, self._changes.mark)
        objects = self._pods.items, self._nodes.items
        self._pool_day = PoolDay(*objects, lambda: not self.problem(), self._clock)
        sources = Sources(*objects, self.problem, explain, lambda: self._slurm.state, lambda: self._pool_day.samples)
        pages = Pages(sources, self._changes, self._clock, settings.namespace or "")
        self._server = Server(
            make_app(pages, self._access, self._hosts),
            settings.host,
            settings.port,
            certificates=self._tls.certificates,
            name="dashboard",
            streams=Streams(is_long, limit=STREAMS, name="dashboard-stream"),
        )

    @property
    def url(self) -> str:
        """The URL for the browser, after :meth:`start`; without ``--sign-in`` it contains the token."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "https" if self._tls.certificates is not None else "http"
        token = f"?token={self._access.token}" if isinstance(self._access, LocalAccess) else ""
        return f"{scheme}://{host}:{self._server.port}/{token}"

    def run(self, ready: Callable[[str], object]) -> int:
        """Serve until a signal arrives or a thread dies; return the exit status. ``ready`` gets the URL."""
        self._supervisor.stop_on_signals()
        BUILD_INFO.labels(__version__).set(1)
        self._server.start()
        stopping, spawn = self._supervisor.stopping, self._supervisor.spawn
        for cache in self._caches():
            cache.subscribe(self._changes.mark)
            spawn(f"cache-{cache.name}", lambda c=cache: c.run(stopping))  # type: ignore[misc]
        spawn("changes", lambda: self._changes.run(stopping))
        spawn("slurm-sums", lambda: self._slurm.run(stopping))
        self._supervisor.spawn_every("pool-day", day_history.PERIOD, self._pool_day.take)
        spawn("dashboard-server", lambda: self._server.run(stopping))
        self._supervisor.spawn_every("dashboard-certificates", CERTIFICATE_PERIOD, self._tls.refresh)
        if self._settings.sign_in:
            self._serve_health()
        self._pods.wait_synced(FIRST_LIST)
        ready(self.url)
        self._supervisor.wait_for_stop()
        self._kube.close()
        self._supervisor.join(3)
        if self._supervisor.failure is not None:
            log.error("stopping after a failure", extra=kv(why=self._supervisor.failure))
        return 1 if self._supervisor.failure else 0

    def problem(self) -> str:
        """Return why the page may be incomplete or old; empty if it is not."""
        for cache in self._caches():
            if not cache.synced:
                return f"The {cache.name} are not listed yet."
            # a watch without news is silent for one idle time-out
            if cache.age() > 2 * cache.idle_timeout:
                return f"The API server has not confirmed the {cache.name} for {cache.age():.0f} s."
        return ""

    def _caches(self) -> list[Cache]:
        return [self._pods, self._nodes] if self._may_nodes else [self._pods]

    def _local(self) -> LocalAccess:
        """Check what the user of the kubeconfig may list. Raises :class:`BridgeError`."""
        try:
            self._kube.get(PODS.path(self._settings.namespace), {"limit": 1})
        except KubeForbiddenError as error:
            raise BridgeError(str(error), hint="select a namespace with -n") from error
        self._may_nodes = True
        try:
            self._kube.get(NODES.path(), {"limit": 1})
        except KubeForbiddenError:
            self._may_nodes = False
        return LocalAccess(self._kube, nodes=self._may_nodes)

    def _reviewed(self, agent: str) -> ReviewedAccess:
        self._may_nodes = True
        quick = self._kube.hurried(REVIEW_TIMEOUT)
        users = UserClients(self._settings.kubeconfig, self._settings.context, user_agent=agent, clock=self._clock)
        tokens = TokenAuthenticator(ask_api_server(quick), self._clock)
        seal = CookieSeal(self._clock, self._settings.files.key)
        return ReviewedAccess(quick, users, tokens, seal, self._clock, self._sums)

    def _hosts(self) -> frozenset[str]:
        """Return the accepted values of the header Host; none: all, because a token of another host is not sent."""
        if self._settings.sign_in:
            return frozenset(name.lower() for name in self._settings.hosts)
        return loopback_names(self._server.port)

    def _serve_health(self) -> None:
        health = Health()
        health.ready("caches", lambda: self.problem() or None)
        start_servers(health, self._config.serving, self._supervisor)
