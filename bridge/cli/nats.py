"""``podbridge nats``: what a NATS server needs to know about the hub and the sites."""

from __future__ import annotations

import re
from pathlib import Path

import click

from bridge import names
from bridge.errors import ConfigError

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
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder to write to.")
@click.option("--pools", default="", help="Pools, joined by commas. Those of an earlier run stay.")
@click.option("--add-pool", multiple=True, metavar="NAME", help="One more pool; may be given several times.")
@click.option(
    "--hub",
    multiple=True,
    metavar="NAME=UID",
    help="A hub that reaches the jobs of its own Kubernetes cluster alone. UID: of the namespace kube-system there.",
)
@click.option("--listen", default="127.0.0.1:4222", show_default=True, help="Address for NATS clients (the hub).")
@click.option("--websocket-port", type=click.IntRange(1, 65535), help="Port for WebSocket (the sites). Default: none.")
@click.option("--websocket-host", help="Address for WebSocket. Default: 0.0.0.0 with --tls-cert, else 127.0.0.1.")
@click.option("--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="Certificate chain, for both ports.")
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="Its key.")
@click.option("--tls-ca", type=click.Path(path_type=Path, dir_okay=False), help="CA of the servers of a cluster.")
@click.option("--cluster", default="", metavar="NAME=HOST,...", help="Write a file for each server of a NATS cluster.")
@click.option("--cluster-port", type=click.IntRange(1, 65535), default=6222, show_default=True, help="Port for routes.")
@click.option("--prefix", default=names.SUBJECT_PREFIX, show_default=True, help="Prefix of all subjects.")
@click.option("--passwords", is_flag=True, help="Passwords instead of nkeys, for users that are new.")
@click.option("--jetstream", is_flag=True, help="A key-value bucket for the hub (pools.store.kind nats). Stays on.")
@click.option("--bucket", default="", help="Its name (pools.store.nats.bucket). Default: podbridge.")
@click.option("--force", is_flag=True, help="Write nats-server.conf again, although it is there.")
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
    passwords: bool,
    jetstream: bool,
    bucket: str,
    force: bool,
) -> None:
    """Write a configuration for nats-server, and a secret of its own for each hub and for each pool.

    Into the folder go nats-server.conf (once), users.conf (each time), hub.seed and pools/NAME.seed (each once, mode
    0600). With --hub, hubs/NAME.seed takes the place of hub.seed, whose user is removed. A secret that is there
    stays as it is. To take a pool's or a hub's access away, remove its file and run this again.

    With --cluster, nats-server-NAME.conf is written for each server. Copy the folder to the same path on every host.
    """
    from bridge.wire import nats_files
    from bridge.wire.nats_server_config import HUB, INBOX, Listeners, ServerCluster

    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key: give both or none")
    host = websocket_host or ("0.0.0.0" if tls_cert else "127.0.0.1")  # noqa: S104
    listeners = Listeners(
        client=listen,
        websocket=f"{host}:{websocket_port}" if websocket_port else "",
        certificate=str(tls_cert.resolve()) if tls_cert else "",
        key=str(tls_key.resolve()) if tls_key else "",
    )
    servers = ServerCluster(_hosts(cluster), cluster_port, str(tls_ca.resolve()) if tls_ca else "") if cluster else None
    wanted = [*(word for word in pools.split(",") if word), *add_pool]
    written = nats_files.write(
        out,
        prefix,
        wanted,
        listeners,
        passwords=passwords,
        force=force,
        jetstream=jetstream,
        bucket=bucket,
        cluster=servers,
        hubs=dict(_named(text) for text in hub),
    )
    buckets = any(hub.bucket for hub in written.hubs.values())
    for file in written.new:
        click.echo(f"written: {file}")
    loopback = listen.startswith(("127.", "localhost:", "[::1]:"))
    kept = [server for server in written.servers if server not in written.new]
    for server in kept:
        click.echo(f"kept:    {server} (--force writes it again)")
    if servers and loopback:
        click.echo(f"podbridge: --listen {listen}: no hub on another host can connect there", err=True)
    if not kept and not tls_cert:
        if not loopback:
            click.echo(
                f"podbridge: {listen} is not encrypted: a network you trust, or --tls-cert and --tls-key", err=True
            )
        if servers:
            click.echo("podbridge: the servers' routes are not encrypted: --tls-cert, --tls-key and --tls-ca", err=True)
    click.echo(f"written: {written.users}")
    for server in written.servers:
        if buckets and "jetstream" not in server.read_text():
            click.echo(f"podbridge: {server} does not switch JetStream on: give --force, or see docs/nats.md", err=True)
    click.echo("\nNext:")
    for server in written.servers:
        click.echo(f"  nats-server -t -c {server}    # is it right?")
        click.echo(f"  nats-server -c {server}       # or, where it runs: nats-server --signal reload")
    replicas = f", replicas: {min(3, len(written.servers))}" if len(written.servers) > 1 else ""
    for name, found in written.hubs.items():
        who = f"hub of {name} ({found.owner})" if found.owner else "hub"
        click.echo(f"  {who}: {found.secret}, with the inbox prefix {INBOX}")
        if found.bucket:
            click.echo(f"  {who}: pools.store: {{kind: nats, nats: {{bucket: {found.bucket}{replicas}}}}}")
    if written.hubs.keys() != {HUB} and (out / f"{HUB}.seed").exists():
        click.echo(f"  {out / HUB}.seed is no user any more: each hub gets its own file")
    for pool, file in written.pools.items():
        click.echo(f"  site {pool}: {file}, to be kept there with mode 0600")


def _hosts(words: str) -> dict[str, str]:
    """Read ``NAME=HOST,...``; raises :class:`ConfigError` for anything else, and for fewer than three servers."""
    hosts: dict[str, str] = {}
    for word in words.split(","):
        name, _, host = word.strip().partition("=")
        if not _SERVER_NAME.fullmatch(name) or not _HOST.fullmatch(host):
            raise ConfigError(f"--cluster: {word.strip()!r}: must be NAME=HOST, e.g. n1=nats1.example.org")
        if name in hosts or host in hosts.values():
            raise ConfigError(f"--cluster: {word.strip()!r}: a name or a host that stands there twice")
        hosts[name] = host
    if len(hosts) < 3 or len(hosts) % 2 == 0:
        raise ConfigError(f"--cluster: {len(hosts)} servers: must be 3, 5 or more, an odd number")
    return hosts


def _named(text: str) -> tuple[str, str]:
    """Read ``NAME=UID``."""
    name, equals, owner = text.partition("=")
    if not (name and equals and owner):
        raise ConfigError(
            f"--hub {text!r}: must be NAME=UID",
            hint="kubectl get namespace kube-system -o 'jsonpath={.metadata.uid}' prints the UID.",
        )
    return name, owner
