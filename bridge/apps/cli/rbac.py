"""``podbridge rbac``: prints the RBAC manifests of namespaces whose pods may run on pools."""

from __future__ import annotations

import re

import click
import yaml

from bridge import names
from bridge.errors import ConfigError

_NAMESPACE = re.compile(names.DNS_LABEL)


@click.group("rbac")
def rbac() -> None:
    """Print RBAC manifests."""


@rbac.command("pools", epilog="Example:\n\n  podbridge rbac pools research physics | kubectl apply -f -")
@click.argument("namespaces", nargs=-1, required=True, metavar="NAMESPACE...")
@click.option(
    "--installation",
    default=names.COMPONENT,
    show_default=True,
    help="Name of the installation, the prefix of its objects.",
)
@click.option(
    "--account",
    "accounts",
    multiple=True,
    show_default="INSTALLATION-controllers",
    help="Service account of the controllers; with podbridge run: INSTALLATION. Can be repeated.",
)
@click.option("--account-namespace", show_default="INSTALLATION", help="Namespace of that service account.")
def pools(
    namespaces: tuple[str, ...], installation: str, accounts: tuple[str, ...], account_namespace: str | None
) -> None:
    """Print the RoleBindings that let podbridge read the ConfigMaps and Secrets of pods on pools.

    Each grants the controllers the ClusterRole INSTALLATION-pools (config/rbac-pools.yaml) in one namespace:
    ConfigMaps, Secrets and service account tokens.
    """
    account_namespace = account_namespace or installation
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"NAMESPACE: {namespace!r} is not a valid name; allowed: a-z, 0-9 and -, at most 63 characters"
            )
        if namespace in (*names.KUBERNETES_NAMESPACES, account_namespace):
            raise ConfigError(
                f"NAMESPACE: {namespace!r} is not allowed: its Secrets and tokens give access to the whole cluster; "
                f"allowed: any but {', '.join(sorted({*names.KUBERNETES_NAMESPACES, account_namespace}))}"
            )
    accounts = accounts or (names.part_account("controllers", installation),)
    role = names.pools_role(installation)
    bindings = [role_binding(role, namespace, accounts, account_namespace) for namespace in namespaces]
    click.echo(yaml.safe_dump_all(bindings, sort_keys=False, explicit_start=True), nl=False)


def role_binding(role: str, namespace: str, accounts: tuple[str, ...], account_namespace: str) -> dict[str, object]:
    """Build the RoleBinding that grants the service accounts the ClusterRole ``role`` in ``namespace``."""
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": account_namespace} for name in accounts]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    }
