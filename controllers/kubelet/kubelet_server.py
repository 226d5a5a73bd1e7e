"""The kubelet API as a part of the process: application, certificates and server."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.threads import Supervisor
from bridge.kube.kube_client import KubeClient
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.serving.certificates import Certificates
from bridge.serving.https import Server
from bridge.serving.streaming import LIMIT, Streams
from controllers.kubelet import authentication, authorization
from controllers.kubelet.handlers import Located, Sources
from controllers.kubelet.kubelet_app import ATTACH_PATH, EXEC_PATH, LOGS_PATH, PORTS_PATH, make_app
from controllers.kubelet.trust import Trust, read_client_ca

log = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two checks of the serving certificate and of the CAs of clients."""
ASK_TIMEOUT = 5.0
"""Seconds to wait for the API server's answer to a review."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Address and limits of the kubelet API. ``addresses``: names and addresses of the virtual nodes."""

    host: str = "0.0.0.0"  # noqa: S104  (the API server calls from elsewhere)
    port: int = names.KUBELET_PORT
    cert_dir: Path | None = None
    addresses: tuple[str, ...] = ()
    threads: int = 8
    streams: int = LIMIT


class Kubelet:
    """Serves the kubelet API of all virtual nodes of this process.

    ``find(namespace, name)`` returns a pod on one of them, ``pods()`` all these pods, ``pools()`` the pools by name. It
    writes nothing, so it runs without the lease.
    """

    def __init__(
        self,
        settings: KubeletSettings,
        kube: KubeClient,
        clock: Clock = SYSTEM_CLOCK,
        *,
        find: Callable[[str, str], Located | None],
        pods: Callable[[], Iterable[Mapping[str, Any]]],
        pools: Callable[[], Mapping[str, Pool]],
    ) -> None:
        self._settings = settings
        quick = kube.hurried(ASK_TIMEOUT)
        self._certificates = Certificates(gauge=None)
        self._trust = Trust(
            self._certificates, lambda: read_client_ca(quick), _server_names(settings), clock, settings.cert_dir
        )
        # the shares of logs, of commands and of port-forwards have this limit each
        long = (LOGS_PATH, EXEC_PATH, ATTACH_PATH, PORTS_PATH)
        self._streams = Streams(lambda path: path.startswith(long), limit=3 * settings.streams, name="kubelet-stream")
        self._server = Server(
            make_app(
                Sources(find, pods, pools),
                authentication.TokenAuthenticator(authentication.ask_api_server(quick), clock),
                authorization.KubeletAuthorizer(authorization.ask_api_server(quick), clock),
                clock,
            ),
            settings.host,
            settings.port,
            threads=settings.threads,
            certificates=self._certificates,
            name="kubelet",
            streams=self._streams,
        )

    @property
    def port(self) -> int:
        """The bound port, after :meth:`start`: the port of a node's ``kubeletEndpoint``."""
        return self._server.port

    def start(self, supervisor: Supervisor) -> None:
        """Load a certificate, listen and serve; raise :class:`~bridge.errors.BridgeError` on failure.

        It also starts if the API server does not answer. Until it does, all requests are refused.
        """
        # serve() raises what step() only logs: without a certificate, nothing can listen
        self._trust.serve()
        self._trust.step()
        self._server.start()
        supervisor.spawn("kubelet-server", lambda: self._server.run(supervisor.stopping))
        supervisor.spawn_every("kubelet-certificates", PERIOD, self._trust.step)
        log.info("kubelet API started", extra=kv(port=self.port))

    def ready(self) -> str | None:
        """Return why requests of the API server are refused; ``None`` if they are not."""
        return self._trust.problem and f"CAs of clients: {self._trust.problem}"


def _server_names(settings: KubeletSettings) -> list[str]:
    raw_names = {socket.gethostname(), "localhost", "127.0.0.1", *settings.addresses}
    raw_names.discard("")
    result = set()
    for name in raw_names:
        try:
            result.add(str(ipaddress.ip_address(name)))
        except ValueError:
            result.add(name)
    return sorted(result)
