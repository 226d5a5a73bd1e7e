"""``podbridge brake``: what the brake on mass ending holds, and an administrator's answer to it."""

from __future__ import annotations

import json
from typing import Any

import click

from bridge import config as configuration
from bridge import names
from bridge.brake import WORD_SUFFIX, Word
from bridge.cli.main import Where
from bridge.errors import BridgeError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import CONFIGMAPS


def status(where: Where) -> None:
    """Print every engaged brake: the pods that it holds, and until when."""
    engaged, data = _read(*_client(where))
    if not engaged:
        click.echo("No brake is engaged.")
    for name, record in sorted(engaged.items()):
        word = data.get(name + WORD_SUFFIX, "")
        ends = f"their pods end after {record.get('endsAt')}"
        if word == Word.HOLD:
            ends = "their pods are held until podbridge brake confirm"
        elif word == f"{Word.CONFIRM} {record.get('since')}":
            ends = "confirmed: their pods are being ended"
        missing = f"the jobs of {record.get('missing')} of {record.get('known')} pods are missing"
        click.echo(f"{name}: engaged since {record.get('since')}; {missing}; {ends}")


def answer(where: Where, name: str, word: Word) -> None:
    """Write the answer for one engaged brake."""
    kube, path = _client(where)
    engaged, _ = _read(kube, path)
    if name not in engaged:
        allowed = ", ".join(sorted(engaged)) or "none, no brake is engaged"
        raise BridgeError(f"NAME: there is no engaged brake {name!r}; allowed: {allowed}")
    text = f"{word} {engaged[name].get('since')}" if word is Word.CONFIRM else str(word)
    kube.patch(path, {"data": {name + WORD_SUFFIX: text}}, kind="merge")
    click.echo(f"{name}: {word}")


def _client(where: Where) -> tuple[KubeClient, str]:
    namespace = configuration.load(where.config).leader_election.namespace
    kube = KubeClient.load(where.kubeconfig, where.context, user_agent="podbridge-cli", pool_size=2)
    return kube, CONFIGMAPS.path(namespace, names.BRAKE_CONFIG_MAP)


def _read(kube: KubeClient, path: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the records of the engaged brakes by name, and all of the ConfigMap's data."""
    try:
        data: dict[str, str] = kube.get(path).get("data") or {}
    except KubeNotFoundError as error:
        raise BridgeError(f"there is no ConfigMap {names.BRAKE_CONFIG_MAP}", hint="apply helm/rbac.yaml") from error
    return {key: json.loads(text) for key, text in data.items() if not key.endswith(WORD_SUFFIX)}, data
