"""``podbridge token``: writes a new Slurm token to the Secret from which podbridge reads it."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.apps.cli.connection_options import FILE, ConnectionOptions, connection_options
from bridge.clock import rfc3339
from bridge.errors import KubeForbiddenError, KubeNotFoundError, SlurmAuthError, SlurmError
from bridge.kube.resources import SECRETS

if TYPE_CHECKING:
    from bridge.kube.kube_client import KubeClient


@click.group(epilog="Example:\n\n  podbridge token renew")
def token() -> None:
    """Renew the token with which podbridge calls slurmrestd."""


@token.command(
    "renew",
    epilog="Examples:\n\n  podbridge token renew\n\n  podbridge token renew --lifespan 2592000 --dry-run\n\n"
    "  podbridge token renew --key-file /etc/slurm/jwt_hs256.key",
)
@connection_options
@click.option(
    "--lifespan", type=click.IntRange(60, 10 * 31536000), default=31536000, show_default=True, help="In seconds."
)
@click.option("--user", default="slurm", show_default=True, help="User of Slurm whose token it is.")
@click.option("--key-file", type=FILE, help="Slurm's jwt_key. Default: scontrol token makes the token.")
@click.option("--secret", default="slurm-bridge-token", show_default=True, help="Secret; created if it is missing.")
@click.option("-n", "--namespace", default="podbridge", show_default=True, help="Namespace of the Secret.")
@click.option("--key", default="auth-token", show_default=True, help="Key of the Secret.")
@click.option("--dry-run", is_flag=True, help="Make the token and let the API server check the Secret; write nothing.")
def renew(
    connection: ConnectionOptions,
    lifespan: int,
    user: str,
    key_file: Path | None,
    secret: str,
    namespace: str,
    key: str,
    dry_run: bool,
) -> None:
    """Write a new token to the Secret, and print when it expires.

    Run it as SlurmUser or root on a host of Slurm. With --config, the Slurm of the configuration must accept the token
    before it is written. podbridge reads the new token within two minutes. Tokens that exist stay valid until they
    expire.
    """
    from bridge.kube.kube_client import KubeClient
    from bridge.slurm import auth

    if key_file is None:
        made = auth.by_scontrol(user, lifespan)
    else:
        made = auth.signed(auth.read_key(key_file), user, lifespan, int(time.time()))
    if connection.config is not None:
        _try(connection.config, made)
    kube = KubeClient.load(connection.kubeconfig, connection.context, user_agent="podbridge-cli", pool_size=2)
    data = {key: base64.b64encode(made.encode()).decode()}
    _write(kube, namespace, secret, data, {"dryRun": "All"} if dry_run else None)
    end = auth.expiry(made)
    expires = f"it expires at {rfc3339(end)}" if end is not None else "it does not expire"
    done = "not written (--dry-run)" if dry_run else "renewed"
    click.echo(f"Secret {namespace}/{secret}: {done}; {expires}")


def _try(config_file: Path, made: str) -> None:
    """Raise :class:`bridge.errors.SlurmError` unless the Slurm of a configuration accepts the token."""
    from bridge.config import hub as configuration
    from bridge.slurm.slurm_client import SlurmClient

    config = configuration.load(config_file)
    if not config.slurm_rest_api:
        return
    try:
        SlurmClient(config, made, pool_size=1).ping()
    except SlurmError as error:
        hint = "is the key the jwt_key of this Slurm, and does it answer?"
        raise SlurmAuthError(f"Slurm did not accept the new token, which is not written: {error}", hint=hint) from error


def _write(
    kube: KubeClient, namespace: str, secret: str, data: Mapping[str, str], params: Mapping[str, str] | None
) -> None:
    """Write keys of a Secret, and create it if it does not exist; raise :class:`bridge.errors.KubeError`."""
    try:
        kube.patch(SECRETS.path(namespace, secret), {"data": data}, kind="merge", params=params)
        return
    except KubeNotFoundError:
        metadata = {"name": secret, "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    try:
        kube.create(SECRETS.path(namespace), body, params)
    except KubeNotFoundError as error:
        message = f"the namespace {namespace} does not exist; create it, or name another one with --namespace"
        raise KubeNotFoundError(message, status=error.status) from error
    except KubeForbiddenError as error:
        raise KubeForbiddenError(
            f"the Secret {namespace}/{secret} does not exist; {error}", status=error.status
        ) from error
