"""The pools of one cluster: nats-server and the sites."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Hosts
from cluster.systems import debian, images, nats, sites
from cluster.systems.kube import Api, is_ready
from cluster.systems.nats import NatsSetup
from cluster.systems.sites import CondorSite, Site, SlurmSite

NAMESPACE = "remote"
"""Pods of this namespace may use any pool."""
DEFAULT_SITES = ("slurm-site", "local-site")
_SITES: dict[str, Callable[[str, Path, int, str, int], Site]] = {
    "slurm-site": lambda name, folder, port, slurm, nodes: SlurmSite(name, folder, port, slurm, nodes),
    "local-site": lambda name, folder, port, slurm, nodes: Site(name, folder, port),
    "condor-site": lambda name, folder, port, slurm, nodes: CondorSite(name, folder, port),
    "apptainer-site": lambda name, folder, port, slurm, nodes: SlurmSite(name, folder, port, "26.05", nodes),
}
SITES = tuple(_SITES)
"""The allowed sites; the pool of a site has the same name."""


class Pools:
    """nats-server and the sites in the folder ``state``; their ports begin at ``first_port``."""

    def __init__(
        self,
        state: Path,
        first_port: int,
        names: Sequence[str],
        slurm: str,
        nodes: int,
        nats_servers: int = 1,
        readable: Sequence[Path] = (),
    ) -> None:
        """Describe them; ``slurm`` is the version of ``slurm-site``, ``nodes`` the number of each Slurm site's.

        Several ``nats_servers`` are a cluster with a bucket for the hub.
        """
        unknown = [name for name in names if name not in _SITES]
        if unknown:
            raise ClusterError(f"no site {', '.join(unknown)}; there are {', '.join(_SITES)}")
        self.nats = NatsSetup(state / "nats", first_port, tuple(names), nats_servers)
        self.sites: dict[str, Site] = {}
        self.ports = nats.PORTS if names else 0
        for name in names:
            site = _SITES[name](name, state / "sites" / name, first_port + self.ports, slurm, nodes)
            self.sites[name] = dataclasses.replace(site, readable=tuple(readable))
            self.ports += site.ports

    @property
    def hosts(self) -> list[Hosts]:
        """Return the networks of NATS and of the sites that have hosts of their own."""
        networks = [self.nats.hosts, *(site.hosts for site in self.sites.values())]
        return [hosts for hosts in networks if hosts.names]

    def needs(self) -> dict[str, list[str]]:
        """Return the arguments of :func:`cluster.systems.install.ensure` for them."""
        slurm = [site.version for site in self.sites.values() if isinstance(site, SlurmSite)]
        added = [name for name, (suite, *_) in debian.ADDED.items() if self._uses(name, suite)]
        return {"slurm": slurm, "added": added, "machine": ["busybox", "ip"] if self.sites else []}

    def _uses(self, name: str, suite: str) -> bool:
        if name == "htcondor":
            return "condor-site" in self.sites
        return any(isinstance(site, SlurmSite) and site.root.name == suite for site in self.sites.values())

    def write(self) -> None:
        """Write everything that the daemons need."""
        if not self.sites:
            return
        self.nats.write()
        for hosts in self.hosts:
            hosts.start()
        for name, site in self.sites.items():
            site.write()
            if site.runtime != "none":
                images.write_busybox(site.images)
            self.configure(name, {})

    def configure(self, name: str, overrides: Mapping[str, Any]) -> None:
        """Write a submitter's configuration; ``overrides`` are merged into it."""
        seed, authority = self.nats.seed(name), self.nats.ca_file
        self.site(name).configure(self.nats.websocket_urls, seed, authority, overrides)

    def site(self, name: str) -> Site:
        """Return a site by its name."""
        if name not in self.sites:
            raise ClusterError(f"no site {name}; there are {', '.join(self.sites) or 'none'}")
        return self.sites[name]

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting; a site's names begin with the site's."""
        result = dict(self.nats.daemons) if self.sites else {}
        for name, site in self.sites.items():
            result |= {f"{name}-{daemon}": command for daemon, command in site.daemons().items()}
        return result

    def answers(self, daemon: str) -> bool:
        """Return whether a daemon answers."""
        if daemon in self.nats.daemons:
            return self.nats.answers(daemon)
        site = next(site for name, site in self.sites.items() if daemon.startswith(f"{name}-"))
        return site.answers(daemon.removeprefix(f"{site.name}-"))

    def settings(self, kubelet_port: int) -> dict[str, Any]:
        """Return podbridge's settings for them."""
        if not self.sites:
            return {}
        hub = {"servers": self.nats.urls, "seedFile": str(self.nats.seed("hub")), "caFile": str(self.nats.ca_file)}
        remote: dict[str, Any] = {"nats": hub, "nodeAddress": "127.0.0.1", "kubeletPort": kubelet_port}
        if self.nats.hosts.names:
            remote["store"] = {"kind": "nats", "nats": {"bucket": nats.BUCKET, "replicas": self.nats.servers}}
        return {"managedNamespaces": ["slurm-bridge", NAMESPACE], "pools": remote}


def wait_nodes(api: Api, names: Iterable[str], timeout: float = 60) -> None:
    """Wait until the virtual nodes of these pools exist and are Ready."""
    waiting = set(names)
    end_at = time.monotonic() + timeout
    while waiting:
        for name in sorted(waiting):
            status, node = api.request("GET", f"/api/v1/nodes/{name}")
            if status == 200 and is_ready(node):
                waiting.remove(name)
        if waiting and time.monotonic() > end_at:
            raise ClusterError(f"no Ready virtual node after {timeout:.0f} s: {', '.join(sorted(waiting))}")
        time.sleep(0.1 if waiting else 0)


def end(state: Path) -> None:
    """Remove the remains of the sites in a cluster's folder, also jobs."""
    for folder in (state / "sites").glob("*"):
        sites.end(folder)
