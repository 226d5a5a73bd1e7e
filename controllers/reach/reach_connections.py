"""Connections of pods to Services: each is checked, connected and forwarded on threads of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bridge.core.shares import Shares
from bridge.errors import BridgeError, ServiceRefusedError
from bridge.logs import kv
from bridge.relay.relayed import RelayedConnection
from bridge.telemetry.metrics import REACH_BYTES, REACH_CONNECTIONS, REACH_OPEN
from bridge.workload import services
from bridge.workload.services import Target
from controllers.forwarded_socket import ForwardedSocket
from controllers.reach.service_resolver import Connect

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
MOST_CONNECTIONS = 1024
"""Connections of one process; a pod has an eighth of them at most."""
PAUSE = 1.0
"""Seconds until a connection that is refused ends: its pod may open the next one at once, and each is logged."""


@dataclass(frozen=True, slots=True)
class Client:
    """A pod that reaches Services."""

    namespace: str
    name: str
    uid: str
    pool: str


class ReachConnections:
    """All connections.

    ``find`` returns the pod of a client; ``None``: it may reach nothing any more. ``check`` raises
    ServiceRefusedError if pods of a namespace may not reach a target. ``refused`` gets a pod and
    why a connection of it was refused.
    """

    def __init__(
        self,
        find: Callable[[Client], Pod | None],
        check: Callable[[str, Target], None],
        connect: Connect,
        refused: Callable[[Pod, str], None],
    ) -> None:
        self._find, self._check, self._connect, self._refused = find, check, connect, refused
        self._shares = Shares(MOST_CONNECTIONS, "connections", "namespace", "pod")

    def accept(self, client: Client, text: str, connection: RelayedConnection) -> None:
        """Serve a connection whose site says that it leads to ``text``."""
        thread = threading.Thread(target=self._serve, args=(client, text, connection), name="reach", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            connection.closed("no thread for one more connection")

    def _serve(self, client: Client, text: str, connection: RelayedConnection) -> None:
        begin, end, forwarded = time.monotonic(), "an unexpected error", None
        try:
            with ExitStack() as undo:
                undo.callback(connection.close)
                try:
                    undo.callback(self._shares.enter(client.namespace, client.uid))
                    forwarded = ForwardedSocket(self._connected(client, text), REACH_BYTES)
                except BridgeError:
                    REACH_CONNECTIONS.labels("refused").inc()
                    time.sleep(PAUSE)
                    raise
                undo.callback(forwarded.close)
                REACH_CONNECTIONS.labels("opened").inc()
                with REACH_OPEN.track_inprogress():
                    end = forwarded.forward(connection)
        except (BridgeError, OSError) as error:
            end = str(error)
        except Exception:
            log.exception("a connection to a Service broken off")
        finally:
            counts = kv(
                pod=f"{client.namespace}/{client.name}",
                pool=client.pool,
                target=text[:300],
                endpoint=forwarded.peer if forwarded is not None else "",
                seconds=round(time.monotonic() - begin, 3),
                bytes_in=forwarded.sent if forwarded is not None else 0,
                bytes_out=forwarded.received if forwarded is not None else 0,
                end=end,
            )
            log.info("connection to a Service ended", extra=counts)

    def _connected(self, client: Client, text: str) -> socket.socket:
        pod = self._find(client)
        if pod is None:
            raise ServiceRefusedError("the pod has ended, or may reach no Services any more")
        try:
            # the site belongs to others: the annotation counts, and as it is now
            target = next((each for each in _targets(pod) if each.text == text), None)
            if target is None:
                raise ServiceRefusedError("the site requests a target that is not in the annotation of the pod")
            self._check(client.namespace, target)
            return self._connect(target)
        except ServiceRefusedError as error:
            self._refused(pod, str(error))
            raise


def _targets(pod: Pod) -> tuple[Target, ...]:
    try:
        return services.reached(pod)
    except ValueError as error:
        raise ServiceRefusedError(str(error)) from error
