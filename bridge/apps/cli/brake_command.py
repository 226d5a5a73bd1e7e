"""``podbridge brake``: the mass-termination guard, and an administrator's answers to it, in its ConfigMap."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from bridge import names
from bridge.apps.cli.connection_options import ConnectionOptions, connection_options
from bridge.control.brake import ANSWER_SUFFIX, BrakeAnswer
from bridge.errors import BridgeError, KubeNotFoundError
from bridge.kube.resources import CONFIGMAPS

if TYPE_CHECKING:
    from bridge.kube.kube_client import KubeClient


@click.group(
    epilog="Examples:\n\n  podbridge brake status\n\n  podbridge brake hold slurm\n\n  podbridge brake confirm slurm"
)
def brake() -> None:
    """Show the mass-termination guard, and confirm or hold it.

    The brake engages when many jobs disappear at once: from Slurm (brake "slurm") or from a pool (brake "pool.NAME").
    """


@brake.command("status", epilog="Example:\n\n  podbridge brake status")
@connection_options
def brake_status(connection: ConnectionOptions) -> None:
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


@brake.command("confirm", epilog="Example:\n\n  podbridge brake confirm slurm")
@connection_options
@click.argument("name")
def brake_confirm(connection: ConnectionOptions, name: str) -> None:
    """Confirm that the missing jobs are lost: podbridge terminates their pods now."""
    _answer(connection, name, BrakeAnswer.CONFIRM)


@brake.command("hold", epilog="Example:\n\n  podbridge brake hold pool.site-a")
@connection_options
@click.argument("name")
def brake_hold(connection: ConnectionOptions, name: str) -> None:
    """Keep the pods until their jobs are listed again, or until podbridge brake confirm."""
    _answer(connection, name, BrakeAnswer.HOLD)


def _answer(connection: ConnectionOptions, name: str, answer: BrakeAnswer) -> None:
    """Store the answer to one engaged brake in the ConfigMap. Raises :class:`BridgeError` for an unknown name."""
    kube, path = _client(connection)
    engaged, _ = _read(kube, path)
    if name not in engaged:
        allowed = ", ".join(sorted(engaged)) or "none: no brake is engaged"
        raise BridgeError(f"NAME: no brake {name!r} is engaged; allowed: {allowed}")
    text = f"{answer} {engaged[name].get('since')}" if answer is BrakeAnswer.CONFIRM else str(answer)
    kube.patch(path, {"data": {name + ANSWER_SUFFIX: text}}, kind="merge")
    click.echo(f"{name}: {answer}")


def _client(connection: ConnectionOptions) -> tuple[KubeClient, str]:
    """Return a client of the API server, and the path of the ConfigMap."""
    from bridge.apps.cli import hub_config
    from bridge.kube.kube_client import KubeClient

    kube = KubeClient.load(connection.kubeconfig, connection.context, user_agent="podbridge-cli", pool_size=2)
    config, _ = hub_config.of(connection, kube)
    return kube, CONFIGMAPS.path(config.leader_election.namespace, names.brake_config_map(config.installation))


def _read(kube: KubeClient, path: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the records of the engaged brakes by name, and the data of the ConfigMap."""
    try:
        data: dict[str, str] = kube.get(path).get("data") or {}
    except KubeNotFoundError as error:
        text = f"the ConfigMap {path.rpartition('/')[2]} does not exist"
        raise BridgeError(text, hint="apply config/rbac.yaml") from error
    return {key: json.loads(text) for key, text in data.items() if not key.endswith(ANSWER_SUFFIX)}, data
