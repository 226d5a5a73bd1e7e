"""The installations of podbridge in one Kubernetes cluster, and how their configurations collide. Pure.

Each installation writes a record of its configuration, as JSON, into an annotation of its mutating webhook
configuration. The others read it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError

from bridge import names
from bridge.config.base import LabelSelector, Section
from bridge.config.hub import Config

WEBHOOK_SUFFIX = f".mutate.{names.PERMISSION_GROUP}"
"""Suffix of the names of all webhooks in a mutating configuration of podbridge."""
Json = Mapping[str, Any]


class Installation(Section):
    """What others must know of an installation. ``slurm`` is the URL of slurmrestd; empty: no colocated Slurm.

    Keys of later versions are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    scheduler: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    node_selector: LabelSelector | None = None
    slurm: str = ""
    partitions: tuple[str, ...] = ()
    pools: bool = False

    def manages(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the installation manages a namespace with these labels."""
        if self.namespace_selector is None:
            return namespace in self.namespaces
        return self.namespace_selector.matches(labels)


def pools_binding_command(config: Config, namespace: str, account: str = "") -> str:
    """Return the command that lets the controllers of this installation read what pods on pools refer to.

    ``account`` is their service account, if it has not the default name.
    """
    installation, home = config.installation, config.leader_election.namespace
    options = [
        *([f"--installation {installation}"] if installation != names.COMPONENT else []),
        *([f"--account {account}"] if account not in ("", names.part_account("controllers", installation)) else []),
        *([f"--account-namespace {home}"] if home != installation else []),
    ]
    return " ".join(["podbridge rbac pools", namespace, *options, "| kubectl apply -f -"])


def of(config: Config) -> Installation:
    """Return the record of a configuration."""
    return Installation(
        name=config.installation,
        scheduler=config.scheduler_name,
        namespaces=tuple(sorted(config.managed_namespaces)) if config.managed_namespace_selector is None else (),
        namespace_selector=config.managed_namespace_selector,
        node_selector=config.nodes.selector,
        slurm=config.slurm_rest_api,
        partitions=tuple(sorted(config.partitions)),
        pools=config.pools.enabled,
    )


def encode(installation: Installation) -> str:
    """Return the value of the annotation."""
    return installation.model_dump_json(by_alias=True, exclude_defaults=True)


def others(configurations: Iterable[Json], own: str) -> Iterator[tuple[str, Installation | None]]:
    """Yield the other installations among mutating webhook configurations, by the name of their configuration.

    ``own`` is the name of this installation's configuration. ``None`` stands for one without a readable record: it is
    of an earlier version.
    """
    for configuration in configurations:
        metadata, webhooks = configuration["metadata"], configuration.get("webhooks") or ()
        if metadata["name"] == own or not any(str(w.get("name", "")).endswith(WEBHOOK_SUFFIX) for w in webhooks):
            continue
        text = (metadata.get("annotations") or {}).get(names.INSTALLATION, "")
        try:
            yield metadata["name"], Installation.model_validate_json(text)
        except ValidationError:
            yield metadata["name"], None


def collisions(one: Installation, other: Installation, namespaces: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return what two installations must not share, as texts; ``namespaces`` are labels by the name of the namespace.

    Slurm clusters are the same if their URLs are. Nodes are not compared: a node that has been taken shows a collision.
    """
    known = {key: namespaces.get(key, {}) for key in {*one.namespaces, *other.namespaces, *namespaces}}
    both = sorted(name for name, labels in known.items() if one.manages(name, labels) and other.manages(name, labels))
    same_slurm = one.slurm and one.slurm == other.slurm
    shared = sorted(set(one.partitions) & set(other.partitions))
    unlimited = [each.name for each in (one, other) if not each.partitions]
    checks = (
        (one.name == other.name, f"both have the name {one.name}: set installation"),
        (one.scheduler == other.scheduler, f"both schedule the pods of {one.scheduler}: set schedulerName"),
        (both, f"both manage namespace {', '.join(both)}: set managedNamespaces or managedNamespaceSelector"),
        (same_slurm and shared, f"both use partition {', '.join(shared)} of {one.slurm}: set partitions"),
        (
            same_slurm and unlimited and one.node_selector == other.node_selector,
            f"{' and '.join(unlimited)} may use all partitions of {one.slurm}: set partitions",
        ),
        (one.pools and other.pools, "both have pools: configure pools in one of them"),
    )
    return [reason for collides, reason in checks if collides]
