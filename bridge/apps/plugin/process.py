"""The process ``podbridge plugin``: its servers and threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
from dataclasses import dataclass, field

from bridge import __version__
from bridge.apps.plugin import listen, missing
from bridge.apps.plugin.bodies import LIMIT
from bridge.apps.plugin.directory import Directory
from bridge.apps.plugin.listen import Address
from bridge.apps.plugin.missing import MissingJobs
from bridge.apps.plugin.plugin_app import LOGS_PATH, make_app
from bridge.apps.plugin.plugin_pods import MOST_CREATIONS, Pods
from bridge.apps.plugin.plugin_reports import Reports
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.threads import GC_THRESHOLD, SWITCH_INTERVAL, Supervisor
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.pools.registry import PoolSource
from bridge.serving.client_access import Files, ServerAccess
from bridge.serving.health import Health, metrics_app
from bridge.serving.https import BODY_LIMIT, WSGI, Server
from bridge.serving.streaming import Streams
from bridge.telemetry.metrics import BUILD_INFO

log = logging.getLogger(__name__)

THREADS = MOST_CREATIONS + 16
"""Requests in progress, followed logs not counted: most of them wait for a site."""
FILES_PERIOD = 10.0
"""Seconds between two checks of the certificate files."""
REPEAT_PERIOD = 5.0
"""Seconds between two attempts of a cancellation that a site does not answer, and between two looks at deleted pods."""
LAST_WRITES = 5.0
_M_ARENA_MAX = -8


@dataclass(frozen=True, slots=True)
class Options:
    """The addresses of the servers, and the files that restrict access to the API."""

    address: Address
    files: Files = field(default_factory=Files)
    health: Address | None = None
    metrics: Address | None = None
    local_users: bool = False
    """Whether every user of this machine may use the API on a loopback address without a token."""


class Plugin:
    """One process with interLink's REST API in front of the pools of a source.

    Raises :class:`~bridge.errors.ConfigError` for options that are not allowed.
    """

    def __init__(
        self, source: PoolSource, options: Options, supervisor: Supervisor, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        files = options.files
        listen.check(
            options.address,
            token=files.token is not None,
            client_ca=files.client_ca is not None,
            local_users=options.local_users,
        )
        self._access = ServerAccess(files)
        self._source, self._supervisor = source, supervisor
        directory = Directory(source.pools, every_pod=source.every_pod)
        self._pods = pods = Pods(directory, supervisor.wait)
        self._missing = MissingJobs(directory, clock, pods.requested)
        reports = Reports(directory, clock, supervisor.wait)
        self._health = Health()
        # sites behind a server may connect later, or all be away: clients then get an answer that says so
        self._health.ready(source.server or "pools", source.problem if source.server else reports.ready)
        loopback = options.address.unix is None and options.address.is_local
        app = make_app(pods, reports, self._access, clock, loopback=loopback)
        self._streams = Streams(lambda path: path == LOGS_PATH, name="plugin-log")
        self._server = self._serve(options.address, app, "plugin", THREADS, api=True)
        self._others = [
            self._serve(address, other, name, 2)
            for address, other, name in (
                (options.health, self._health.app(), "health"),
                (options.metrics, metrics_app(), "metrics"),
            )
            if address is not None
        ]
        if not options.address.is_local and files.cert is None:
            log.warning("the API is served without TLS beyond this machine", extra=kv(host=options.address.host))

    @property
    def port(self) -> int:
        """The bound port of the API, after :meth:`start`."""
        return self._server.port

    def start(self) -> None:
        """Start the servers and the source; raise :class:`BridgeError` if an address cannot be used."""
        servers = [*self._others, self._server]
        for server in servers:
            server.start()
        # after the servers: with an address that is in use, the process ends before it takes the leadership of its site
        self._source.start(self._supervisor)
        for server in servers:
            self._supervisor.spawn(f"{server.name}-server", lambda s=server: s.run(self._supervisor.stopping))  # type: ignore[misc]
        self._supervisor.spawn_every("files", FILES_PERIOD, self._access.refresh)
        self._supervisor.spawn_every("cancellations", REPEAT_PERIOD, self._repeat_cancellations)
        self._supervisor.spawn_every("missing-jobs", missing.PERIOD, self._missing.step)

    def stop(self) -> None:
        """Wait for the servers, then stop the source."""
        left = self._supervisor.join(LAST_WRITES)
        if left:
            log.warning("threads still busy at the end", extra=kv(threads=",".join(left)))
        self._source.stop()

    def _serve(self, address: Address, app: WSGI, name: str, threads: int, *, api: bool = False) -> Server:
        return Server(
            app,
            address.host,
            address.port,
            threads=threads,
            certificates=self._access.certificates if api else None,
            name=name,
            streams=self._streams if api else None,
            body_limit=LIMIT if api else BODY_LIMIT,
            unix=address.unix,
        )

    def _repeat_cancellations(self) -> None:
        self._pods.repeat_cancellations()
        self._pods.forget_ended()


def run(source: PoolSource, options: Options, supervisor: Supervisor) -> int:
    """Run until a signal, or until a thread ends; return the exit status."""
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    _limit_arenas()
    supervisor.stop_on_signals()
    BUILD_INFO.labels(__version__).set(1)
    plugin = Plugin(source, options, supervisor)
    try:
        plugin.start()
    except BridgeError as error:
        supervisor.fail(error.with_hint)
    else:
        address = options.address.unix or f"{options.address.host}:{plugin.port}"
        log.info("started", extra=kv(version=__version__, listen=address))
    supervisor.wait_for_stop()
    if supervisor.failure is not None:
        log.error("ending", extra=kv(why=supervisor.failure))
    plugin.stop()
    log.info("ended", extra=kv(status=1 if supervisor.failure else 0))
    return 1 if supervisor.failure else 0


def _limit_arenas() -> None:
    """Have all threads share two heaps of glibc.

    By default each worker has its own, which keeps the memory of the largest body that it has parsed: 355 MB after
    twenty requests with 3 MB each.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
