"""``podbridge nats``: writes the configuration of a NATS server and the secrets of hubs and sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge import names
from bridge.apps.cli.connection_options import FILE, FOLDER, OLD_FOLDER
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.protocol.nats.nats_files import Written
    from bridge.protocol.nats.nats_server_config import Listeners

_SERVER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.:]*[A-Za-z0-9])?")
_EXAMPLES = """Examples:

\b
  podbridge nats config --pools alpha,beta --out /etc/podbridge/nats --websocket-port 8080
  podbridge nats config --out /etc/podbridge/nats --add-pool gamma
  podbridge nats config --out /etc/podbridge/nats --jetstream --force
  podbridge nats config --out /etc/podbridge/nats \\
      --hub prod=$(kubectl get namespace kube-system -o 'jsonpath={.metadata.uid}')
  podbridge nats config --pools alpha --out nats --websocket-port 443 --tls-cert chain.pem --tls-key key.pem
  podbridge nats config --pools alpha --out nats --listen 0.0.0.0:4222 --websocket-port 8443 --jetstream \\
      --tls-cert chain.pem --tls-key key.pem --tls-ca ca.pem --cluster n1=192.0.2.1,n2=192.0.2.2,n3=192.0.2.3
"""


@click.group("nats")
def nats() -> None:
    """Prepare a NATS server for pools."""


@nats.command("config", epilog=_EXAMPLES)
@click.option("--out", required=True, type=FOLDER, help="Directory to write to.")
@click.option("--pools", default="", help="Pools, separated by commas. Pools of earlier runs are kept.")
@click.option("--add-pool", multiple=True, metavar="NAME", help="One more pool. Can be repeated.")
@click.option(
    "--hub",
    multiple=True,
    metavar="NAME=UID",
    help="A hub with access to the jobs of its own Kubernetes cluster only. UID: of its namespace kube-system.",
)
@click.option("--listen", default="127.0.0.1:4222", show_default=True, help="Address for NATS clients (the hub).")
@click.option("--websocket-port", type=click.IntRange(1, 65535), help="Port for WebSocket (the sites). Default: none.")
@click.option("--websocket-host", help="Address for WebSocket. Default: 0.0.0.0 with --tls-cert, else 127.0.0.1.")
@click.option("--tls-cert", type=FILE, help="Certificate chain, for both ports.")
@click.option("--tls-key", type=FILE, help="Private key of the certificate.")
@click.option("--tls-ca", type=FILE, help="CA certificate of the servers of a NATS cluster.")
@click.option("--cluster", default="", metavar="NAME=HOST,...", help="Write a file for each server of a NATS cluster.")
@click.option("--cluster-port", type=click.IntRange(1, 65535), default=6222, show_default=True, help="Port for routes.")
@click.option("--prefix", default=names.SUBJECT_PREFIX, show_default=True, help="Prefix of all subjects.")
@click.option("--passwords", is_flag=True, help="Create passwords instead of nkeys for new users.")
@click.option(
    "--jetstream", is_flag=True, help="Add a key-value bucket for the hub (pools.store.kind nats). Kept in later runs."
)
@click.option("--bucket", default="", help="Name of the bucket (pools.store.nats.bucket). Default: podbridge.")
@click.option(
    "--secrets",
    "secrets_folder",
    type=OLD_FOLDER,
    help="Directory with the secrets of the hub and of all pools, instead of new ones in --out.",
)
@click.option("--keys", "keys_folder", type=OLD_FOLDER, help="Directory with public keys of sites: POOL.nkey.")
@click.option("--force", is_flag=True, help="Overwrite an existing nats-server.conf.")
def config(
    out: Path,
    pools: str,
    add_pool: tuple[str, ...],
    hub: tuple[str, ...],
    listen: str,
    websocket_port: int | None,
    websocket_host: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    cluster: str,
    cluster_port: int,
    prefix: str,
    **settings: Any,
) -> None:
    """Write a configuration for nats-server, and a separate secret for each hub and each pool.

    The directory gets nats-server.conf, hub.seed and pools/NAME.seed (written once; secrets have mode 0600) and
    users.conf (written by each run). With --hub, hubs/NAME.seed replaces hub.seed, and the user of hub.seed is
    removed. Existing secrets are kept. To revoke the access of a pool or a hub, remove its file and run this command
    again.

    With --secrets, the command creates no secret: the directory has hub.seed or hub.password, and a file in pools/ for
    each pool.

    With --cluster, the command writes nats-server-NAME.conf for each server. Copy the directory to the same path on
    each host.
    """
    from bridge.protocol.nats import nats_files
    from bridge.protocol.nats.nats_server_config import ServerCluster

    listeners = _listeners(listen, websocket_host, websocket_port, tls_cert, tls_key)
    servers = (
        ServerCluster(_hosts(cluster), cluster_port, str(tls_ca.absolute()) if tls_ca else "") if cluster else None
    )
    every_pool = [*(word for word in pools.split(",") if word), *add_pool]
    hubs = dict(_named(text) for text in hub)
    written = nats_files.write(out, prefix, every_pool, listeners, cluster=servers, hubs=hubs, **settings)
    _print_files(written)
    for text in _warnings(written, listen, encrypted=tls_cert is not None, clustered=servers is not None):
        click.echo(f"podbridge: {text}", err=True)
    _print_next_steps(written, out)


def _listeners(
    listen: str, websocket_host: str | None, websocket_port: int | None, cert: Path | None, key: Path | None
) -> Listeners:
    """Return the addresses and the TLS files of the server; raises :class:`ConfigError` for a cert without a key."""
    from bridge.protocol.nats.nats_server_config import Listeners

    if (cert is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key: set both or neither")
    host = websocket_host or ("0.0.0.0" if cert else "127.0.0.1")  # noqa: S104
    return Listeners(
        client=listen,
        websocket=f"{host}:{websocket_port}" if websocket_port else "",
        certificate=str(cert.absolute()) if cert else "",
        key=str(key.absolute()) if key else "",
    )


def _print_files(written: Written) -> None:
    for file in written.new:
        click.echo(f"written: {file}")
    for server in written.servers:
        if server not in written.new:
            click.echo(f"kept:    {server} (use --force to overwrite it)")
    click.echo(f"written: {written.users}")


def _warnings(written: Written, listen: str, *, encrypted: bool, clustered: bool) -> Iterator[str]:
    """Yield what is insecure or does not work with the written files. Kept files are only checked for JetStream."""
    loopback = listen.startswith(("127.", "localhost:", "[::1]:"))
    if clustered and loopback:
        yield f"--listen {listen}: a hub on another host cannot connect to this address"
    if not encrypted and all(server in written.new for server in written.servers):
        if not loopback:
            yield f"{listen} is not encrypted: use it on a trusted network only, or set --tls-cert and --tls-key"
        if clustered:
            yield "the routes between the servers are not encrypted: set --tls-cert, --tls-key and --tls-ca"
    for server in written.servers:
        if any(hub.bucket for hub in written.hubs.values()) and "jetstream" not in server.read_text():
            yield f"{server} does not enable JetStream: use --force, or see docs/admins/nats.md"


def _print_next_steps(written: Written, folder: Path) -> None:
    from bridge.protocol.nats.nats_files import KEY
    from bridge.protocol.nats.nats_server_config import HUB, INBOX

    click.echo("\nNext:")
    for server in written.servers:
        click.echo(f"  nats-server -t -c {server}    # checks the file")
        click.echo(f"  nats-server -c {server}       # if it already runs: nats-server --signal reload")
    replicas = f", replicas: {min(3, len(written.servers))}" if len(written.servers) > 1 else ""
    for name, hub in written.hubs.items():
        title = f"hub of {name} ({hub.owner})" if hub.owner else "hub"
        click.echo(f"  {title}: {hub.secret}, with the inbox prefix {INBOX}")
        if hub.bucket:
            click.echo(f"  {title}: pools.store: {{kind: nats, nats: {{bucket: {hub.bucket}{replicas}}}}}")
    if written.hubs.keys() != {HUB} and (folder / f"{HUB}.seed").exists():
        click.echo(f"  {folder / HUB}.seed is no longer a user: each hub has its own file")
    for pool, file in written.pools.items():
        known = "the site has the secret of this key" if file.suffix == KEY else "to be stored there with mode 0600"
        click.echo(f"  site {pool}: {file}, {known}")


def _hosts(words: str) -> dict[str, str]:
    """Parse ``NAME=HOST,...``; raises :class:`ConfigError` unless it names an odd number of servers, at least 3."""
    hosts: dict[str, str] = {}
    for word in words.split(","):
        name, _, host = word.strip().partition("=")
        if not _SERVER_NAME.fullmatch(name) or not _HOST.fullmatch(host):
            raise ConfigError(f"--cluster: {word.strip()!r}: must be NAME=HOST, e.g. n1=nats1.example.org")
        if name in hosts or host in hosts.values():
            raise ConfigError(f"--cluster: {word.strip()!r}: the name or the host is used twice")
        hosts[name] = host
    if len(hosts) < 3 or len(hosts) % 2 == 0:
        raise ConfigError(f"--cluster: {len(hosts)} servers: must be an odd number, at least 3")
    return hosts


def _named(text: str) -> tuple[str, str]:
    """Parse ``NAME=UID``; raises :class:`ConfigError`."""
    name, equals, owner = text.partition("=")
    if not (name and equals and owner):
        raise ConfigError(
            f"--hub {text!r}: must be NAME=UID",
            hint="kubectl get namespace kube-system -o 'jsonpath={.metadata.uid}' prints the UID.",
        )
    return name, owner
