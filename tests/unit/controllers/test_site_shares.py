"""What one namespace gets of a hub leaves places at a site for other namespaces of the cluster."""

from __future__ import annotations

import pytest

from bridge.protocol.nats import request_server
from bridge.protocol.nats.request_table import CONNECT, EXEC, LOGS
from bridge.serving.streaming import LIMIT
from controllers.expose import exposed_connection
from controllers.kubelet import port_forward
from controllers.reach import reach_connections

PORTS = (port_forward.MOST_CONNECTIONS, exposed_connection.MOST_CONNECTIONS, reach_connections.MOST_CONNECTIONS)


@pytest.mark.parametrize(
    ("of_hub", "at_site"),
    [
        pytest.param((LIMIT,), request_server.MOST_LOGS, id=LOGS.name),
        pytest.param((LIMIT,), request_server.MOST_SESSIONS, id=EXEC.name),
        pytest.param(PORTS, request_server.MOST_CONNECTIONS, id=CONNECT.name),
    ],
)
def test_a_namespace_leaves_places_at_a_site(of_hub: tuple[int, ...], at_site: int) -> None:
    """A group alone has half of the shares: a namespace of those of the hub, a cluster of those of the site."""
    assert sum(limit // 2 for limit in of_hub) <= at_site // 2 * 3 / 4
