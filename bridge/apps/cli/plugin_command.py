"""``podbridge plugin``: interLink's REST API in front of pools."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge import logs, names
from bridge.apps.cli.connection_options import FILE
from bridge.apps.cli.output import print_document
from bridge.apps.plugin import listen
from bridge.clock import SYSTEM_CLOCK
from bridge.core.threads import Supervisor
from bridge.errors import ConfigError
from bridge.telemetry import trace_export, tracing

if TYPE_CHECKING:
    from bridge.pools.registry import PoolSource
    from bridge.site.interlink_slurm.conversion import Conversion
    from bridge.site.service import LiveConfig

SUBMIT_TIMEOUT = 40.0
"""Seconds to wait for a site's answer to a submission over NATS. With the time for which submissions are repeated, this
is less than the 120 s that an API server waits."""
_EXAMPLES = """Examples:

\b
  podbridge plugin --site site.toml
  podbridge plugin --slurm-config /etc/interlink/SlurmConfig.yaml
  podbridge plugin --site site.toml --listen unix:///run/user/1000/interlink.sock
  podbridge plugin --site site.toml --listen 127.0.0.1:4000 --allow-local-users
  podbridge plugin --site site.toml --listen 0.0.0.0:4000 --token-file token \\
      --tls-cert tls.crt --tls-key tls.key
  podbridge plugin --nats tls://nats.example.org:4222 --seed-file hub.seed --ca-file ca.crt \\
      --owner $(kubectl get namespace kube-system -o 'jsonpath={.metadata.uid}')
  podbridge plugin openapi > openapi.json
"""


@click.group(
    "plugin", invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES
)
@click.option("--site", type=FILE, help="Configuration file (TOML) of a site, whose batch system runs the pods.")
@click.option("--slurm-config", type=FILE, help="SlurmConfig.yaml of the interLink Slurm plugin, instead of --site.")
@click.option("--nats", multiple=True, metavar="URL", help="NATS server, whose pools run the pods. Can be repeated.")
@click.option("--nunet", type=FILE, help="Configuration file of a hub, whose section pools.nunet runs the pods.")
@click.option(
    "--listen",
    "address",
    metavar="ADDRESS",
    help="unix:///PATH, which only the user of the plugin can open, or HOST:PORT or [IPv6]:PORT, which require "
    "--token-file or --client-ca. Default: with --slurm-config, Socket, or SidecarPort on 127.0.0.1; else "
    "unix://HOME/.interlink/plugin.sock.",
)
@click.option(
    "--allow-local-users",
    "local_users",
    is_flag=True,
    help="Serve a loopback address without a token: every user of this machine can run pods as the user of the plugin.",
)
@click.option("--token-file", type=FILE, help="File with the bearer token that clients must send. Read on change.")
@click.option("--tls-cert", type=FILE, help="Certificate chain of this server. Read on change.")
@click.option("--tls-key", type=FILE, help="Private key of the certificate. Read on change.")
@click.option("--client-ca", type=FILE, help="CA certificates of clients, which must then have one. Read on change.")
@click.option("--health", metavar="ADDRESS", help="Address of /livez and /readyz. Default: not served.")
@click.option("--metrics", metavar="ADDRESS", help="Address of /metrics. Default: not served.")
@click.option("--owner", metavar="UID", help="Owner of the jobs. Required with --nats: the UID of a hub's cluster.")
@click.option("--seed-file", type=FILE, help="With --nats: file with the hub's nkey seed.")
@click.option("--user", help="With --nats: user name, instead of a seed.")
@click.option("--password-file", type=FILE, help="With --nats: file with the user's password.")
@click.option("--ca-file", type=FILE, help="With --nats: CA certificates, instead of those of the machine.")
@click.option("--prefix", default=names.SUBJECT_PREFIX, show_default=True, help="With --nats: prefix of all subjects.")
@click.option(
    "--inbox-prefix", default="_INBOX.hub", show_default=True, help="With --nats: prefix of the subjects of answers."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default: the site's, else info."
)
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help="Default: the site's, else auto.")
@click.pass_context
def plugin(
    context: click.Context,
    /,
    site: Path | None,
    slurm_config: Path | None,
    nats: tuple[str, ...],
    nunet: Path | None,
    address: str | None,
    local_users: bool,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    health: str | None,
    metrics: str | None,
    owner: str | None,
    log_level: str | None,
    log_format: str | None,
    **access: Any,
) -> None:
    """Serve interLink's REST API: an interLink API server or virtual kubelet runs its pods on podbridge's pools."""
    if context.invoked_subcommand is not None:
        return
    if [site is not None, slurm_config is not None, bool(nats), nunet is not None].count(True) != 1:
        raise click.UsageError("exactly one of --site FILE, --slurm-config FILE, --nats URL, --nunet FILE is required")
    from bridge.apps.plugin.process import Options, run
    from bridge.serving.client_access import Files

    live, conversion = _opened(slurm_config, log_level, log_format) if slurm_config is not None else (None, None)
    if address is None:
        address = conversion.listen if conversion is not None else listen.default(Path.home())
    options = Options(
        listen.parse(address),
        Files(token_file, tls_cert, tls_key, client_ca),
        None if health is None else listen.parse(health),
        None if metrics is None else listen.parse(metrics),
        local_users,
    )
    supervisor = Supervisor()
    if live is not None:
        source = _in_process(live, owner, supervisor)
    elif site is not None:
        source = _site(site, owner, supervisor, log_level, log_format)
    elif nunet is not None:
        from bridge.config import hub
        from bridge.pools import registry
        from bridge.pools.registry import PoolContext

        logs.setup(log_level or "info", log_format or "auto")
        source = registry.make(PoolContext(hub.load(nunet), SYSTEM_CLOCK, interlink=True), ["nunet"])
        if not source.pools():
            raise ConfigError("pools.nunet has no entry: --nunet requires one")
    else:
        logs.setup(log_level or "info", log_format or "auto")
        from bridge.config.pools import NatsSection
        from bridge.pools.submitter.submitter_source import SubmitterSource
        from bridge.protocol.nats.nats_link import Link

        if owner is None:
            raise click.UsageError("--nats requires --owner UID")
        section = NatsSection.model_construct(servers=[*nats], **access)  # Link checks it
        link = Link(section, f"{names.COMPONENT} plugin", f"{section.inbox_prefix}.{_checked_owner(owner)}")
        source = SubmitterSource(link, section.prefix, owner, submit_timeout=SUBMIT_TIMEOUT)
    trace_export.setup("podbridge-plugin")
    status = run(source, options, supervisor)
    tracing.stop()
    sys.exit(status)


def _site(path: Path, owner: str | None, supervisor: Supervisor, level: str | None, style: str | None) -> PoolSource:
    from bridge.site.service import LiveConfig

    live = LiveConfig(path, None)
    logs.setup(level or live.config.logging.level, style or live.config.logging.format)
    return _in_process(live, owner, supervisor)


def _opened(path: Path, level: str | None, style: str | None) -> tuple[LiveConfig, Conversion]:
    from bridge.site.live_slurm_config import open_config, report

    live, conversion = open_config(path)
    logs.setup(level or live.config.logging.level, style or live.config.logging.format)
    report(live.config, conversion)
    return live, conversion


def _in_process(live: LiveConfig, owner: str | None, supervisor: Supervisor) -> PoolSource:
    from bridge.apps.plugin.in_process import OWNER, InProcessSite
    from bridge.site.cpus import keep_to_one
    from bridge.site.service import Service

    if live.config.one_cpu:
        keep_to_one()
    return InProcessSite(Service(live, supervisor=supervisor), _checked_owner(owner or OWNER))


def _checked_owner(owner: str) -> str:
    from bridge.protocol.model.identifiers import UID_PATTERN

    if not re.fullmatch(UID_PATTERN, owner):
        raise ConfigError(f"--owner: {owner!r} is not allowed; allowed: letters, digits and -, at most 64")
    return owner


@plugin.command("openapi", epilog="Example:\n\n  podbridge plugin openapi > openapi.json")
def show_openapi() -> None:
    """Print the OpenAPI document of the API (JSON)."""
    from bridge.apps.plugin.openapi import document

    print_document(document(), "json")
