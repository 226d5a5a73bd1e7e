"""Servers that stop soon after a test."""

from __future__ import annotations

from bridge.serving.https import Server

PERIOD = 0.02


def make_quick(server: Server) -> Server:
    """Let a server, before its start, answer for :data:`PERIOD` seconds after a stop, and look for one as often."""
    server._drain = server._server.expiration_interval = PERIOD
    return server
