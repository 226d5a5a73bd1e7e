"""Controllers of other projects beside the control plane, each a process with CRDs and webhooks."""

from __future__ import annotations

import base64
import http.client
import ssl
from pathlib import Path
from typing import Any, Protocol


class ControllerSetup(Protocol):
    """The controllers of one project in one cluster: their files, daemons and objects."""

    @property
    def user(self) -> str:
        """User name of the controllers at the API server."""

    @property
    def crds(self) -> Path:
        """Manifest of the CRDs, which exist before the controllers start."""

    def write(self) -> None:
        """Write configuration and serving certificates into an empty folder."""

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each controller."""

    def answers(self, name: str) -> bool:
        """Return whether a controller runs and serves its webhooks."""

    def webhook_objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return path and body of each webhook configuration, which exists after the controllers answer."""


def serves(port: int, path: str, authority: Path) -> bool:
    """Return whether a webhook server on the loopback has a handler for ``path``."""
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=context)
    try:
        connection.request("POST", path, "{}", {"Content-Type": "application/json"})
        return connection.getresponse().status != 404
    except OSError:
        return False
    finally:
        connection.close()


def paths(configurations: list[dict[str, Any]]) -> list[str]:
    """Return the paths of all webhooks of some webhook configurations."""
    return [hook["clientConfig"]["service"]["path"] for item in configurations for hook in item["webhooks"]]


def bundle(authority: Path) -> str:
    """Return a CA certificate as webhook configurations contain it: base64 of the file."""
    return base64.b64encode(authority.read_bytes()).decode()
