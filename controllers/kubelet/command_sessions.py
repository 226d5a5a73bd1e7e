"""The sessions of commands that clients run in containers: their shares, log records and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import flask

from bridge.core.shares import Shares
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.sessions import CommandOptions, Session
from bridge.serving.http_error import AnswerError
from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.streaming import LIMIT, ON_HANG_UP
from bridge.serving.upgrade import Duplex, switch_protocols
from bridge.serving.websocket_connection import WebSocketConnection, command_connection
from bridge.telemetry.metrics import COMMAND_BYTES, COMMANDS, RUNNING_COMMANDS
from controllers.kubelet.command_request import SPDY, CommandRequest, StreamForm, command_request, stream_form
from controllers.kubelet.containers import check_running
from controllers.kubelet.remote_command import RemoteCommand

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
Start = Callable[[Pod, CommandOptions], Session]


class CommandSessions:
    """The sessions of one server."""

    def __init__(self) -> None:
        self._shares = Shares(LIMIT, "sessions", "namespace", "pod")

    def open(
        self, pod: Pod, pool: Pool, start: Start, container: str, user: str, *, attach: bool = False
    ) -> flask.Response:
        """Start the command of the request, or attach to the container; return the answer that connects the client.

        ``start`` is the pool's :attr:`~bridge.pools.pool_interface.Pool.sessions`. Raises :class:`AnswerError` and
        BridgeError if the command has not started.
        """
        try:
            return self._open(pod, pool, start, container, user, attach)
        except (AnswerError, BridgeError):
            COMMANDS.labels("refused").inc()
            raise

    def _open(self, pod: Pod, pool: Pool, start: Start, container: str, user: str, attach: bool) -> flask.Response:
        metadata = pod["metadata"]
        wanted = command_request(flask.request.query_string, container, attach=attach)
        form = stream_form(flask.request.method, flask.request.headers)
        check_running(pod, pool.job(metadata["uid"]), container)
        with ExitStack() as undo:
            undo.callback(self._shares.enter(metadata["namespace"], metadata["uid"]))
            session = start(pod, wanted.options)
            undo.callback(session.close)
            flask.request.environ[ON_HANG_UP](session.close)
            about = {
                "pod": f"{metadata['namespace']}/{metadata['name']}",
                "container": container,
                "pool": pool.name,
                "user": user,
            }
            response = switch_protocols(
                form.upgrade,
                lambda duplex: _serve(_connection(duplex, form, wanted), session, wanted, about),
                form.headers,
            )
            response.call_on_close(undo.pop_all().close)
        return response


def _connection(duplex: Duplex, form: StreamForm, wanted: CommandRequest) -> SpdyConnection | WebSocketConnection:
    if form.upgrade == SPDY:
        return SpdyConnection(duplex)
    return command_connection(duplex, wanted.streams, form.headers["Sec-WebSocket-Protocol"])


def _serve(
    connection: SpdyConnection | WebSocketConnection,
    session: Session,
    wanted: CommandRequest,
    about: Mapping[str, str],
) -> None:
    begin = time.monotonic()
    received, sent = _Bytes("in"), _Bytes("out")
    command = RemoteCommand(connection, session, wanted.streams, received.add, sent.add)
    COMMANDS.labels("started").inc()
    log.info("command started", extra=kv(**about))
    end = "an unexpected error"
    try:
        with RUNNING_COMMANDS.track_inprogress():
            end = command.run()
    finally:
        seconds = round(time.monotonic() - begin, 3)
        log.info(
            "command ended",
            extra=kv(**about, seconds=seconds, bytes_in=received.total, bytes_out=sent.total, end=end),
        )


class _Bytes:
    def __init__(self, direction: str) -> None:
        self.total = 0
        self._metric: Callable[[float], object] = COMMAND_BYTES.labels(direction).inc

    def add(self, count: int) -> None:
        self.total += count
        self._metric(count)
