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
from cluster.ports import http_status
from cluster.processes import run

PORTS = 3
PREFIX = "bridge.v1"


@dataclass(frozen=True)
class NatsSetup:
    """One nats-server: where it lies and who may use it."""

    folder: Path
    first_port: int
    """Ports: TCP, WebSocket, monitoring."""
    pools: Sequence[str]

    @property
    def url(self) -> str:
        """URL for the hub; TCP, with TLS as everywhere."""
        return f"tls://127.0.0.1:{self.first_port}"

    @property
    def websocket_url(self) -> str:
        """URL for the sites."""
        return f"wss://127.0.0.1:{self.first_port + 1}"

    @property
    def ca_file(self) -> Path:
        """The authority that signed the server's certificate."""
        return self.folder / "ca.crt"

    def seed(self, user: str) -> Path:
        """File with the nkey seed of a pool's site, or of ``hub``."""
        return self.folder / "hub.seed" if user == "hub" else self.folder / "pools" / f"{user}.seed"

    def command(self) -> list[str]:
        """Command line of the daemon."""
        return [str(_binary()), "-c", str(self.folder / "nats.conf")]

    def answers(self) -> bool:
        """Whether the daemon does its work."""
        return http_status(f"http://127.0.0.1:{self.first_port + 2}/healthz") == 200

    def monitor(self, path: str) -> Any:
        """Ask the daemon's monitoring port, e.g. for ``connz?subs=1``."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.first_port + 2}/{path}", timeout=5) as response:
                return json.load(response)
        except OSError as error:
            raise ClusterError(f"nats-server's monitoring port does not answer: {error}") from error

    def submitters(self, pool: str) -> int:
        """How many submitters of this pool listen for jobs now."""
        wanted = f"{PREFIX}.{pool}.submit."
        connections = self.monitor("connz?subs=1&limit=10000")["connections"]
        heard = [one.get("subscriptions_list") or () for one in connections]
        return sum(any(subject.startswith(wanted) for subject in subjects) for subjects in heard)

    def write(self) -> None:
        """Have ``podbridge nats config`` write configuration and seeds into an empty folder."""
        self.folder.mkdir(parents=True, mode=0o700)
        authority = pki.Authority(self.folder, "ca")
        certificate, key = authority.write(self.folder / "server", "nats-server", hosts=("127.0.0.1", "localhost"))
        arguments = {
            "--out": self.folder,
            "--pools": ",".join(self.pools),
            "--listen": f"127.0.0.1:{self.first_port}",
            "--websocket-host": "127.0.0.1",
            "--websocket-port": self.first_port + 1,
            "--tls-cert": certificate,
            "--tls-key": key,
        }
        run([*tools.PODBRIDGE, "nats", "config", *(str(word) for pair in arguments.items() for word in pair)])
        monitoring = f'http: "127.0.0.1:{self.first_port + 2}"'
        (self.folder / "nats.conf").write_text(f'{monitoring}\ninclude "nats-server.conf"\n')


def _binary() -> Path:
    beside = Path(sys.prefix) / "bin" / "nats-server"
    found = beside if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ClusterError("no nats-server: it comes with the Python packages of requirements-dev.lock")
    return Path(found)
