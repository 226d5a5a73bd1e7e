"""``podbridge pool``: adds a pool at the hub, and runs a pod there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge import names
from bridge.apps.cli import completing
from bridge.apps.cli.connection_options import FOLDER, ConnectionOptions, connection_options
from bridge.apps.cli.output import print_document, printable
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.kube.kube_client import KubeClient

RELOAD_TIMEOUT = 60.0
"""Seconds for the command of ``--reload``."""


@click.group(epilog="Examples:\n\n  podbridge pool add site-a --key KEY --test\n\n  podbridge pool test site-a")
def pool() -> None:
    """Add a pool at the hub, or run a pod there."""


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the pod that runs on the pool."""
    options = (
        click.option("--pod-namespace", help="Of the pod. Default: the first managed one."),
        click.option("--image", default="docker.io/library/busybox:stable", show_default=True, help="Of the pod."),
        click.option("--timeout", type=click.IntRange(1), default=300, show_default=True, help="In seconds."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@pool.command(
    "add",
    epilog="""Examples:

\b
  podbridge pool add site-a --key KEY --test
  podbridge pool add site-a --key KEY --nats-dir /etc/podbridge/nats --reload 'nats-server --signal reload'
""",
)
@click.argument("name", metavar="POOL")
@click.option("--key", required=True, help="What podbridge submitter init prints.")
@connection_options
@click.option("-n", "--namespace", default="podbridge", show_default=True, help="Of the release.")
@click.option("--nats-dir", type=FOLDER, help="For another server: the directory of podbridge nats config.")
@click.option("--reload", "reload_command", help="Command that reloads that server.")
@click.option("--prefix", default=names.SUBJECT_PREFIX, show_default=True, help="Prefix of all subjects.")
@click.option(
    "--print",
    "printed",
    type=click.Choice(["nats", "yaml"]),
    help="Only print the user for nats-server, or the ConfigMap.",
)
@click.option("--force", is_flag=True, help="Replace another key.")
@click.option("--dry-run", is_flag=True, help="Change nothing.")
@click.option("--test", is_flag=True, help="Wait for the site, and run a pod there.")
@run_options
def add(
    name: str,
    key: str,
    connection: ConnectionOptions,
    namespace: str,
    nats_dir: Path | None,
    reload_command: str | None,
    prefix: str,
    printed: str | None,
    force: bool,
    dry_run: bool,
    test: bool,
    **pod: Any,
) -> None:
    """Give the site's public key to the NATS server, with the permissions of POOL alone.

    The server of a release gets it in a ConfigMap and is restarted, which takes seconds.
    """
    from bridge.apps.cli.sites import pool_keys
    from bridge.apps.cli.sites.site_plan import checked_pool
    from bridge.protocol.nats.user_keys import checked_public_key

    name, key = checked_pool(name, "POOL"), checked_public_key(key)
    if reload_command and nats_dir is None:
        raise ConfigError("--reload requires --nats-dir")
    if printed == "nats":
        click.echo(pool_keys.server_user(prefix, name, key))
        return
    if printed is not None:
        server = pool_keys.find_server(_client(connection), namespace)
        print_document(pool_keys.config_map(server, name, key), printed)
        return
    if nats_dir is not None:
        changed = pool_keys.add_to_folder(nats_dir, prefix, name, key, force=force, dry_run=dry_run)
        _say(f"{nats_dir}: {_done(name, changed=changed, dry_run=dry_run)}")
        if not dry_run:
            _reload(reload_command)
    else:
        _add_to_release(connection, namespace, name, key, force=force, dry_run=dry_run, timeout=pod["timeout"])
    if test and not dry_run:
        _run_pod(connection, name, **pod)


def _add_to_release(
    connection: ConnectionOptions, namespace: str, name: str, key: str, *, force: bool, dry_run: bool, timeout: int
) -> None:
    from bridge.apps.cli.sites import pool_keys

    kube = _client(connection)
    server = pool_keys.find_server(kube, namespace)
    changed = pool_keys.add_to_release(kube, server, name, key, force=force, dry_run=dry_run)
    _say(f"ConfigMap {namespace}/{server.config_map}: {_done(name, changed=changed, dry_run=dry_run)}")
    if not dry_run and (changed or force or pool_keys.is_outdated(kube, server)):
        pool_keys.restart(kube, server, timeout)
        _say(f"StatefulSet {namespace}/{server.name}: restarted")


def _client(connection: ConnectionOptions) -> KubeClient:
    from bridge.kube.kube_client import KubeClient

    return KubeClient.load(connection.kubeconfig, connection.context, user_agent="podbridge-cli", pool_size=2)


@pool.command("test", epilog="Example:\n\n  podbridge pool test site-a")
@click.argument("name", metavar="POOL", shell_complete=completing.names("pool"))
@connection_options
@run_options
@click.option("--keep", is_flag=True, help="Do not delete the pod.")
def test_pool(name: str, connection: ConnectionOptions, **pod: Any) -> None:
    """Run a pod on POOL and print its log. The exit status is 1 if it did not succeed."""
    _run_pod(connection, name, **pod)


def _run_pod(
    connection: ConnectionOptions, name: str, *, pod_namespace: str | None, image: str, timeout: int, keep: bool = False
) -> None:
    from bridge.apps.cli.session import CommandSession
    from bridge.apps.cli.sites import pool_run

    session = CommandSession(connection)
    namespace = pod_namespace or next(iter(session.config.managed_namespaces), "")
    if not namespace:
        raise ConfigError("--pod-namespace is missing: the configuration names no managed namespace")
    test = pool_run.PodTest(name, namespace, session.config.scheduler_name, image, timeout, keep)
    pool_run.run(session.kube, test, _say)


def _reload(command: str | None) -> None:
    """Run the command that makes the server read its users again, or print what to do; no shell reads it."""
    if command is None:
        _say("Next: nats-server --signal reload; with a NATS cluster, copy users.conf to all hosts first")
        return
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=RELOAD_TIMEOUT, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--reload: {command}: {error}") from error
    if done.returncode != 0:
        raise ConfigError(f"--reload: {command}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    _say(f"done: {command}")


def _done(name: str, *, changed: bool, dry_run: bool) -> str:
    if not changed:
        return f"has this key of pool {name} already"
    return f"{'would have' if dry_run else 'has'} the key of pool {name}"


def _say(text: str) -> None:
    click.echo(printable(text))
