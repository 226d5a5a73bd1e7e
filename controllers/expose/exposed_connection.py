"""Connections to exposed ports: each is forwarded to the pod through the pool, as for ``kubectl port-forward``."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from bridge.core.shares import Shares
from bridge.errors import BridgeError, ShareExceededError, SiteDownError
from bridge.logs import kv
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.sessions import Connection
from bridge.relay.multiplexer import close_with_reset
from bridge.telemetry.metrics import EXPOSED_BYTES, EXPOSED_CONNECTIONS, EXPOSED_OPEN
from controllers.expose.listeners import Target
from controllers.forwarded_socket import ForwardedSocket

log = logging.getLogger(__name__)

QUIET = 2.0
"""Seconds without a connection after which a drain ends: proxies of Services learn of new endpoints meanwhile."""
POLL = 0.2
MOST_CONNECTIONS = 1024
"""Connections of one process; a pod has an eighth of them at most."""
Find = Callable[[str, str], tuple[Mapping[str, Any], Pool | None] | None]


class ExposedConnections:
    """The connections of all listeners. ``find`` returns a pod on a virtual node, and its pool."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._shares = Shares(MOST_CONNECTIONS, "connections", "namespace", "pod")
        self._used_at = 0.0

    def accept(self, client: socket.socket, target: Target) -> None:
        """Forward a connection, on threads of its own; reset it if namespace or pod have too many."""
        self._used_at = time.monotonic()
        try:
            leave = self._shares.enter(target.namespace, target.uid)
        except ShareExceededError as error:
            EXPOSED_CONNECTIONS.labels("refused").inc()
            log.debug("exposed connection refused", extra=kv(pod=f"{target.namespace}/{target.name}", error=error))
            close_with_reset(client)
            return
        thread = threading.Thread(target=self._serve, args=(client, target, leave), name="expose", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            leave()
            close_with_reset(client)

    def drain(self, seconds: float, is_named: Callable[[], bool]) -> None:
        """Wait until no connection was open for :data:`QUIET` seconds and no endpoint ``is_named``.

        It takes ``seconds`` at most.
        """
        self._used_at = now = time.monotonic()
        end = now + seconds
        while now < min(end, self._used_at + QUIET):
            time.sleep(POLL)
            now = time.monotonic()
            if self._shares.used or is_named():
                self._used_at = now

    def _serve(self, client: socket.socket, target: Target, leave: Callable[[], None]) -> None:
        connection = ForwardedSocket(client, EXPOSED_BYTES)
        begin, end, pool_name = time.monotonic(), "an unexpected error", ""
        try:
            with ExitStack() as undo:
                undo.callback(leave)
                undo.callback(connection.close)
                try:
                    pod, pool, connect = self._located(target)
                    pool_name = pool.name
                    session = connect(pod, target.port)
                except BridgeError:
                    EXPOSED_CONNECTIONS.labels("refused").inc()
                    raise
                undo.callback(session.close)
                EXPOSED_CONNECTIONS.labels("opened").inc()
                with EXPOSED_OPEN.track_inprogress():
                    end = connection.forward(session)
        except (BridgeError, OSError) as error:
            end = str(error)
        except Exception:
            log.exception("an exposed connection broken off")
        finally:
            counts = kv(
                pod=f"{target.namespace}/{target.name}",
                pool=pool_name,
                client=connection.peer,
                port=target.port,
                seconds=round(time.monotonic() - begin, 3),
                bytes_in=connection.sent,
                bytes_out=connection.received,
                end=end,
            )
            log.info("exposed connection ended", extra=counts)

    def _located(self, target: Target) -> tuple[Mapping[str, Any], Pool, Callable[..., Connection]]:
        found = self._find(target.namespace, target.name)
        pool = found[1] if found is not None and found[0]["metadata"]["uid"] == target.uid else None
        connect = pool.connections if pool is not None else None
        if found is None or pool is None or connect is None:
            raise SiteDownError("the pod is gone, or its pool forwards no ports at present")
        return found[0], pool, connect
