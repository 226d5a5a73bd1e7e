"""The hub's configuration for a command: from the file of ``--config``, or what the cluster publishes."""

from __future__ import annotations

import os

from bridge import names
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.config import hub, public_config
from bridge.config.hub import Config
from bridge.errors import ConfigError, KubeError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS

INSTALLATION = "PODBRIDGE_INSTALLATION"
"""Environment variable: the name of the installation whose configuration is read; default: ``podbridge``."""
PATIENCE = 2.0
"""Seconds for the answer of the API server. A command that cannot have it tells so at its own first request."""


def of(connection: ConnectionOptions, kube: KubeClient) -> tuple[Config, str]:
    """Return the configuration, and where it is from. Raises :class:`ConfigError` for one that cannot be used.

    An installation that publishes none, and a user who may not read it, get the defaults of all keys.
    """
    if connection.config is not None:
        return hub.load(connection.config), str(connection.config)
    name = public_config.name(os.environ.get(INSTALLATION) or names.COMPONENT)
    source = f"{public_config.NAMESPACE}/{name}"
    try:
        found = kube.hurried(PATIENCE).get(CONFIGMAPS.path(public_config.NAMESPACE, name))
    except KubeError:
        return hub.load(None), f"defaults; there is no ConfigMap {source} that this user may read"
    text = (found.get("data") or {}).get(public_config.KEY)
    if text is None:
        raise ConfigError(f"ConfigMap {source}: the key {public_config.KEY} is missing", hint="install the chart again")
    return public_config.read(text, f"ConfigMap {source}"), f"ConfigMap {source}"
