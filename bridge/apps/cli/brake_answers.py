"""The engaged brakes on mass ending, and an administrator's answers to them, in the ConfigMap of the brake."""

from __future__ import annotations

import json
from typing import Any

import click

from bridge import names
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.config import hub as configuration
from bridge.control.brake import ANSWER_SUFFIX, BrakeAnswer
from bridge.errors import BridgeError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS


def status(connection: ConnectionOptions) -> None:
    """Print each engaged brake: how many jobs are missing, and when their pods will be terminated."""
    engaged, data = _read(*_client(connection))
    if not engaged:
        click.echo("No brake is engaged.")
    for name, record in sorted(engaged.items()):
        stored = data.get(name + ANSWER_SUFFIX, "")
        ends = f"their pods are terminated after {record.get('endsAt')}"
        if stored == BrakeAnswer.HOLD:
            ends = "their pods are held until podbridge brake confirm"
        elif stored == f"{BrakeAnswer.CONFIRM} {record.get('since')}":
            ends = "confirmed: their pods are being terminated"
        missing = f"the jobs of {record.get('missing')} of {record.get('known')} pods are missing"
        click.echo(f"{name}: engaged since {record.get('since')}; {missing}; {ends}")


def answer(connection: ConnectionOptions, name: str, given: BrakeAnswer) -> None:
    """Store the answer to one engaged brake in the ConfigMap. Raises :class:`BridgeError` for an unknown name."""
    kube, path = _client(connection)
    engaged, _ = _read(kube, path)
    if name not in engaged:
        allowed = ", ".join(sorted(engaged)) or "none: no brake is engaged"
        raise BridgeError(f"NAME: no brake {name!r} is engaged; allowed: {allowed}")
    text = f"{given} {engaged[name].get('since')}" if given is BrakeAnswer.CONFIRM else str(given)
    kube.patch(path, {"data": {name + ANSWER_SUFFIX: text}}, kind="merge")
    click.echo(f"{name}: {given}")


def _client(connection: ConnectionOptions) -> tuple[KubeClient, str]:
    config = configuration.load(connection.config)
    kube = KubeClient.load(connection.kubeconfig, connection.context, user_agent="podbridge-cli", pool_size=2)
    return kube, CONFIGMAPS.path(config.leader_election.namespace, names.brake_config_map(config.installation))


def _read(kube: KubeClient, path: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the records of the engaged brakes by name, and the data of the ConfigMap."""
    try:
        data: dict[str, str] = kube.get(path).get("data") or {}
    except KubeNotFoundError as error:
        raise BridgeError(
            f"the ConfigMap {path.rpartition('/')[2]} does not exist", hint="apply config/rbac.yaml"
        ) from error
    return {key: json.loads(text) for key, text in data.items() if not key.endswith(ANSWER_SUFFIX)}, data
