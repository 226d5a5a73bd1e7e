"""``podbridge rbac``: prints the RBAC manifests of namespaces whose pods may run on pools."""

from __future__ import annotations

import re

import click
import yaml

from bridge import names
from bridge.errors import ConfigError

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLOSED = ("kube-system", "kube-public", "kube-node-lease")


@click.group("rbac")
def rbac() -> None:
    """Print RBAC manifests."""


@rbac.command("pools", epilog="Example:\n\n  podbridge rbac pools research physics | kubectl apply -f -")
@click.argument("namespaces", nargs=-1, required=True, metavar="NAMESPACE...")
@click.option(
    "--account",
    "accounts",
    multiple=True,
    default=[names.part_account("controllers")],
    show_default=True,
    help="Service account of the controllers; with podbridge run: podbridge. Can be repeated.",
)
@click.option(
    "--account-namespace", default=names.SYSTEM_NAMESPACE, show_default=True, help="Namespace of that service account."
)
def pools(namespaces: tuple[str, ...], accounts: tuple[str, ...], account_namespace: str) -> None:
    """Print the RoleBindings that let podbridge read the ConfigMaps and Secrets of pods on pools.

    Each grants the controllers the ClusterRole podbridge-pools (config/rbac-pools.yaml) in one namespace: ConfigMaps,
    Secrets and service account tokens.
    """
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"NAMESPACE: {namespace!r} is not a valid name; allowed: a-z, 0-9 and -, at most 63 characters"
            )
        if namespace in (*_CLOSED, account_namespace):
            raise ConfigError(
                f"NAMESPACE: {namespace!r} is not allowed: its Secrets and tokens give access to the whole cluster; "
                f"allowed: any but {', '.join(sorted({*_CLOSED, account_namespace}))}"
            )
    bindings = [role_binding(namespace, accounts, account_namespace) for namespace in namespaces]
    click.echo(yaml.safe_dump_all(bindings, sort_keys=False, explicit_start=True), nl=False)


def role_binding(namespace: str, accounts: tuple[str, ...], account_namespace: str) -> dict[str, object]:
    """Build the RoleBinding that grants the service accounts the ClusterRole in ``namespace``."""
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": account_namespace} for name in accounts]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": names.POOLS_ROLE, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.POOLS_ROLE},
        "subjects": subjects,
    }
