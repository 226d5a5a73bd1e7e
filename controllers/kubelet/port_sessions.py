"""The clients of ``kubectl port-forward``: what must hold, and their shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import flask

from bridge.core.shares import Shares
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.sessions import Connection
from bridge.serving.http_error import AnswerError
from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.streaming import LIMIT, ON_HANG_UP
from bridge.serving.upgrade import Duplex, switch_protocols
from bridge.serving.websocket_connection import WEBSOCKET, port_connection
from bridge.telemetry.metrics import PORT_CONNECTIONS
from controllers.kubelet.command_request import port_form, requested_ports
from controllers.kubelet.containers import check_pod_running
from controllers.kubelet.port_forward import MOST_CONNECTIONS, STREAMS, PortForward

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]


class PortSessions:
    """The clients of one server."""

    def __init__(self) -> None:
        self._shares = Shares(LIMIT, "port-forwards", "namespace", "pod")
        self._connection_shares = Shares(MOST_CONNECTIONS, "connections", "namespace", "pod")

    def open(self, pod: Pod, pool: Pool, connect: Callable[[Pod, int], Connection], user: str) -> flask.Response:
        """Return the answer that connects the client with the pod.

        ``connect`` is the pool's :attr:`~bridge.pools.pool_interface.Pool.connections`. Raises :class:`AnswerError` and
        BridgeError if this is not possible.
        """
        try:
            return self._open(pod, pool, connect, user)
        except (AnswerError, BridgeError):
            PORT_CONNECTIONS.labels("refused").inc()
            raise

    def _open(self, pod: Pod, pool: Pool, connect: Callable[[Pod, int], Connection], user: str) -> flask.Response:
        metadata = pod["metadata"]
        form = port_form(flask.request.method, flask.request.headers)
        ports = requested_ports(flask.request.args.getlist("port")) if form.upgrade == WEBSOCKET else ()
        check_pod_running(pod, pool.job(metadata["uid"]))
        namespace, uid = metadata["namespace"], metadata["uid"]
        about = {"pod": f"{namespace}/{metadata['name']}", "pool": pool.name, "user": user}
        forwards: list[PortForward] = []
        hang_up = flask.request.environ[ON_HANG_UP]

        def serve(duplex: Duplex) -> None:
            forward = PortForward(
                port_connection(duplex, ports) if ports else SpdyConnection(duplex, STREAMS),
                lambda port: connect(pod, port),
                lambda: self._connection_shares.enter(namespace, uid),
                about,
                uid,
                len(ports),
            )
            forwards.append(forward)
            log.info("port-forward ended", extra=kv(**about, end=forward.run()))

        def close() -> None:
            for forward in forwards:
                forward.close()

        with ExitStack() as undo:
            undo.callback(self._shares.enter(namespace, uid))
            # the reader may wait for a connection that does not take what the client has sent
            hang_up(close)
            response = switch_protocols(form.upgrade, serve, form.headers)
            response.call_on_close(undo.pop_all().close)
        return response
