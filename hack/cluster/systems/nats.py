"""nats-server of one cluster: TCP for the hub, WebSocket with TLS for the sites, credentials of each."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import pki, tools
from cluster.errors import ClusterError
from cluster.hosts import Hosts
from cluster.ports import http_status
from cluster.processes import run

PORTS = 3
PREFIX = "bridge.v1"
BUCKET = "podbridge"
"""The hub's bucket, where the servers are a cluster."""
DAEMON = "nats-server"


@dataclass(frozen=True)
class NatsSetup:
    """A nats-server or a NATS cluster: folder, ports and credentials.

    The servers of a cluster run on hosts of their own (:mod:`cluster.hosts`), all on the same ports.
    """

    folder: Path
    first_port: int
    """Ports: TCP, WebSocket, monitoring."""
    pools: Sequence[str]
    servers: int = 1

    @property
    def hosts(self) -> Hosts:
        """The hosts of a cluster's servers; none for a single server, which is on the loopback."""
        return Hosts(self.first_port, [f"n{number + 1}" for number in range(self.servers if self.servers > 1 else 0)])

    @property
    def daemons(self) -> dict[str, list[str]]:
        """Command line of each server, by the name of its daemon: ``nats-server``, or ``nats-server-n1`` and so on."""
        binary, hosts = str(_binary()), self.hosts
        if not hosts.names:
            return {DAEMON: [binary, "-c", str(self.folder / "nats.conf")]}
        return {
            f"{DAEMON}-{name}": [*hosts.enter(name), binary, "-c", str(self.folder / f"nats-{name}.conf")]
            for name in hosts.names
        }

    @property
    def url(self) -> str:
        """URL for the hub; TCP, with TLS as everywhere."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """URLs for the hub, one for each server."""
        return [f"tls://{address}:{self.first_port}" for address in self._addresses.values()]

    @property
    def websocket_url(self) -> str:
        """URL for the sites."""
        return self.websocket_urls[0]

    @property
    def websocket_urls(self) -> list[str]:
        """URLs for the sites, one for each server."""
        return [f"wss://{address}:{self.first_port + 1}" for address in self._addresses.values()]

    @property
    def ca_file(self) -> Path:
        """The authority that signed the servers' certificate."""
        return self.folder / "ca.crt"

    def seed(self, user: str) -> Path:
        """File with the nkey seed of a pool's site, or of ``hub``."""
        return self.folder / "hub.seed" if user == "hub" else self.folder / "pools" / f"{user}.seed"

    def answers(self, daemon: str = DAEMON) -> bool:
        """Return whether a server answers."""
        return http_status(f"http://{self._addresses[daemon]}:{self.first_port + 2}/healthz") == 200

    def monitor(self, path: str, daemon: str = "") -> Any:
        """Return an answer of a server's monitoring port (by default the first server's), e.g. for ``connz?subs=1``."""
        address = self._addresses[daemon or next(iter(self._addresses))]
        try:
            with urllib.request.urlopen(f"http://{address}:{self.first_port + 2}/{path}", timeout=5) as response:
                return json.load(response)
        except OSError as error:
            raise ClusterError(f"nats-server's monitoring port does not answer: {error}") from error

    def submitters(self, pool: str) -> int:
        """Return how many submitters of this pool are subscribed to submissions."""
        wanted = f"{PREFIX}.{pool}.submit."
        heard = []
        for daemon in self._addresses:
            connections = self.monitor("connz?subs=1&limit=10000", daemon)["connections"]
            heard += [one.get("subscriptions_list") or () for one in connections]
        return sum(any(subject.startswith(wanted) for subject in subjects) for subjects in heard)

    def write(self) -> None:
        """Run ``podbridge nats config``: it writes configuration and seeds into an empty folder."""
        self.folder.mkdir(parents=True, mode=0o700)
        authority = pki.Authority(self.folder, "ca")
        addresses = list(self._addresses.values())
        certificate, key = authority.write(self.folder / "server", "nats-server", hosts=(*addresses, "localhost"))
        everywhere = "0.0.0.0" if self.hosts.names else "127.0.0.1"
        arguments: dict[str, Any] = {
            "--out": self.folder,
            "--pools": ",".join(self.pools),
            "--listen": f"{everywhere}:{self.first_port}",
            "--websocket-host": everywhere,
            "--websocket-port": self.first_port + 1,
            "--tls-cert": certificate,
            "--tls-key": key,
        }
        if self.hosts.names:
            hosts = ",".join(f"{name}={self.hosts.address(name)}" for name in self.hosts.names)
            arguments |= {"--cluster": hosts, "--tls-ca": self.ca_file, "--bucket": BUCKET}
        more = ["--jetstream"] if self.hosts.names else []
        words = [str(word) for pair in arguments.items() for word in pair]
        run([*tools.PODBRIDGE, "nats", "config", *words, *more])
        monitoring = f'http: "{everywhere}:{self.first_port + 2}"'
        for name in self.hosts.names or ("",):
            own = f"-{name}" if name else ""
            (self.folder / f"nats{own}.conf").write_text(f'{monitoring}\ninclude "nats-server{own}.conf"\n')

    @property
    def _addresses(self) -> dict[str, str]:
        """The address of each server, by the name of its daemon."""
        hosts = self.hosts
        return {f"{DAEMON}-{name}": hosts.address(name) for name in hosts.names} or {DAEMON: "127.0.0.1"}


def _binary() -> Path:
    beside = Path(sys.prefix) / "bin" / "nats-server"
    found = beside if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ClusterError("no nats-server: it comes with the Python packages of requirements-dev.lock")
    return Path(found)
