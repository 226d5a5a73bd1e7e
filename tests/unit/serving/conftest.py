"""Servers that run in threads until the end of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from bridge.serving.https import Server

CHECK_PERIOD = 0.02
"""Seconds between two checks of deadlines, which a stop waits for, too."""


@pytest.fixture
def run_server() -> Iterator[Callable[[Server], Server]]:
    """Start a server; at the end of the test it has to stop within ten seconds."""
    running: list[tuple[threading.Event, threading.Thread]] = []

    def start(server: Server) -> Server:
        server._server.expiration_interval = CHECK_PERIOD
        server.start()
        stop = threading.Event()
        thread = threading.Thread(target=server.run, args=(stop,), daemon=True)
        thread.start()
        running.append((stop, thread))
        return server

    yield start
    for stop, _ in running:
        stop.set()
    for _, thread in running:
        thread.join(10)
        assert not thread.is_alive()
