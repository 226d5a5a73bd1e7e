"""``podbridge check``: checks connections, permissions, versions, clocks and certificates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import click

from admission.webhook_registration import is_managed
from bridge import names
from bridge.apps.cli import output
from bridge.apps.cli.check import (
    check_cluster,
    check_connections,
    check_install,
    check_permissions,
    check_pools,
    check_webhook,
)
from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.session import CommandSession
from bridge.clock import duration, parse_rfc3339
from bridge.config import policies
from bridge.config.hub import jwt_source
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError, SlurmUnavailableError
from bridge.kube.resources import LEASES, NAMESPACES
from bridge.slurm.models import Partition

Step = tuple[str, Callable[[CommandSession], Iterator[Finding]]]
"""The name of a check for its errors, and the check."""
WIDTH = 19
"""Characters of the longest name of a check."""
FILE_RENEWAL = (
    "write a new token to the same file, or with Helm to its Secret (slurm-bridge-token by default); podbridge reads "
    "it again; docs/admins/install.md has the command"
)


def run(connection: ConnectionOptions, form: str, before_install: bool = False) -> int:
    """Print the findings; return the exit status, 1 if a check has failed.

    As text, each finding is printed when its check has it: a system that hangs does not hide the findings before.
    """
    as_text, results = form in ("table", "wide"), list[Finding]()
    if as_text:
        click.echo(_line("RESULT", "WHAT", "FOUND"))
    for finding in findings(connection, before_install):
        results.append(finding)
        if as_text:
            click.echo(_line(finding.result, finding.what, finding.found))
            if finding.fix:
                click.echo(output.printable(f"         fix: {finding.fix}"))
    count = Counter(finding.result for finding in results)
    if as_text:
        warnings = f"{count['warn']} warning{'' if count['warn'] == 1 else 's'}"
        click.echo(f"\n{count['ok']} ok, {warnings}, {count['FAIL']} failed")
    else:
        output.print_document([asdict(finding) for finding in results], form)
    return 1 if count["FAIL"] else 0


def _line(result: str, what: str, found: str) -> str:
    """Return a line of the table. The columns have fixed widths: the next findings are not known yet."""
    cells = (result, what, output.printable(found))
    return output.line(("RESULT", "WHAT", "FOUND"), cells, (6, WIDTH, 0))


def findings(connection: ConnectionOptions, before_install: bool = False) -> Iterator[Finding]:
    """Run all checks, or those that need no object of podbridge (``before_install``).

    A check that raises :class:`BridgeError` yields a finding with result ``FAIL``.

    If the API server does not answer or refuses this user, run only the checks that do not need it.
    """
    try:
        session = CommandSession(connection)
    except BridgeError as error:
        yield Finding("FAIL", "configuration", str(error), error.hint or "see podbridge config schema")
        return
    yield Finding("ok", "configuration", session.config_source)
    steps = _steps(session, before_install=before_install)
    try:
        yield from _kubernetes(session)
    except BridgeError as error:
        fix = error.hint or "check the kubeconfig (--kubeconfig, --context) and the API server"
        yield Finding("FAIL", "Kubernetes API", str(error), fix)
        yield Finding("warn", "all others", "not checked without the Kubernetes API", "fix the API server first")
        steps = [(what, step) for what, step in steps if step in (_token, _slurm)]
    for what, step in steps:
        try:
            yield from step(session)
        except BridgeError as error:
            yield _failure(session, what, error)


def _failure(session: CommandSession, what: str, error: BridgeError) -> Finding:
    if isinstance(error, SlurmUnavailableError):
        # the checks that follow do not wait for it again: they run as without a Slurm
        session.config = session.config.model_copy(update={"slurm_rest_api": ""})
    if isinstance(error, KubeForbiddenError):
        call = str(error).partition(": Forbidden")[0]
        return Finding("warn", what, f"this user may not: {call}", "run it as an administrator")
    return Finding("FAIL", what, str(error), error.hint or "check that it runs and that its address is correct")


def _steps(session: CommandSession, *, before_install: bool) -> list[Step]:
    own: list[Step] = [("Slurm token", _token), ("Slurm", _slurm)] if session.config.slurm_rest_api else []
    if before_install:
        return [*own, ("nodes", _nodes), ("pods", check_install.evictions), ("clocks", check_connections.clocks)]
    return [
        ("permissions", check_permissions.permissions),
        ("managed namespaces", _namespaces),
        ("webhook", check_webhook.webhook),
        ("policies", check_webhook.policies),
        ("other installations", check_cluster.collisions),
        ("leases", _leases),
        *own,
        *([("nodes", _nodes)] if own else []),
        ("NATS", check_pools.nats),
        ("configured pools", check_pools.configured),
        ("pools", check_pools.pools),
        ("Kueue", check_cluster.kueue),
        ("clocks", check_connections.clocks),
        ("certificates", check_connections.certificates),
    ]


def _kubernetes(session: CommandSession) -> Iterator[Finding]:
    before = time.time()
    version = session.kube.get("/version")
    yield Finding("ok", "Kubernetes API", f"{session.kube.server} {version.get('gitVersion')}")
    lag = time.time() - before
    if lag > 1:
        yield Finding("warn", "Kubernetes API", f"answered after {lag:.1f} s", "check the load of the API server")


def _namespaces(session: CommandSession) -> Iterator[Finding]:
    yield from _pools_without_effect(session)
    if session.config.managed_namespace_selector is not None:
        yield Finding("ok", "managed namespaces", "selected by managedNamespaceSelector")
        return
    for name in session.config.managed_namespaces:
        try:
            session.kube.get(NAMESPACES.path(name=name))
            yield Finding("ok", "managed namespaces", name)
        except KubeNotFoundError:
            yield Finding("warn", "managed namespaces", f"{name} does not exist", f"kubectl create namespace {name}")


def _pools_without_effect(session: CommandSession) -> Iterator[Finding]:
    """Find unmanaged namespaces with the annotation for pools. The webhook refuses new ones, but not existing ones."""
    config = session.config
    for metadata in session.namespaces:
        name, labels = metadata["name"], metadata.get("labels") or {}
        opened = names.POOLS in (metadata.get("annotations") or {})
        privileged = policies.find(config.namespace_policies, name, labels).may_name_scheduler
        if opened and not privileged and not is_managed(config, name, labels):
            yield Finding(
                "warn",
                "managed namespaces",
                f"{name} has the annotation {names.POOLS}, but is not managed: its pods cannot run on pools",
                f"add it to the managed namespaces, or run: kubectl annotate namespace {name} {names.POOLS}-",
            )


def _leases(session: CommandSession) -> Iterator[Finding]:
    for part in ("scheduler", "controllers"):
        name = names.lease(part, session.config.installation)
        try:
            spec = session.kube.get(LEASES.path(session.config.leader_election.namespace, name)).get("spec") or {}
        except KubeNotFoundError:
            spec = {}
        if "renewTime" not in spec:
            yield Finding("warn", part, "has never run in this cluster", f"start podbridge {part}")
            continue
        holder, renewed = spec.get("holderIdentity"), parse_rfc3339(spec["renewTime"])
        silent = time.time() - renewed
        if not holder:
            yield Finding("warn", part, "no process holds its lease", f"start podbridge {part}")
        elif silent > spec.get("leaseDurationSeconds", 15):
            yield Finding(
                "FAIL", part, f"{holder} has not renewed its lease for {silent:.0f} s", "check its log, and restart it"
            )
        elif silent < -5:
            text = f"the clock of {holder} is {-silent:.0f} s ahead of the local clock"
            yield Finding("warn", "clocks", text, "synchronize both hosts by NTP")
        else:
            yield Finding("ok", part, f"leader: {holder}")


def _token(session: CommandSession) -> Iterator[Finding]:
    if (source := jwt_source(session.config)) is None:
        fix = "set SLURM_JWT_FILE or slurm.jwtFile; scontrol token creates one"
        if session.has_file:
            yield Finding("FAIL", "Slurm token", "not configured", fix)
            return
        # the configuration of podbridge may have one that this user does not see
        session.config = session.config.model_copy(update={"slurm_rest_api": ""})
        yield Finding("warn", "Slurm token", "this user has none, so Slurm is not checked", fix)
        return
    renewal = FILE_RENEWAL if isinstance(source, Path) else "set SLURM_JWT to a new one; scontrol token creates it"
    left = session.slurm.token_expires_in()
    if left is None:
        yield Finding("ok", "Slurm token", "has no expiry time")
    elif left <= 0:
        yield Finding("FAIL", "Slurm token", f"expired {duration(-left)} ago", renewal)
    else:
        soon = left <= 3600
        fix = renewal if soon else ""
        yield Finding("warn" if soon else "ok", "Slurm token", f"expires in {duration(left)}", fix)


def _slurm(session: CommandSession) -> Iterator[Finding]:
    if not session.config.slurm_rest_api:
        return
    version = session.slurm.version
    session.slurm.ping()
    yield Finding("ok", "Slurm", f"{session.config.slurm_rest_api} Slurm {session.slurm.slurm_release}, {version.name}")
    for text in version.missing():
        fix = "a newer Slurm has this feature; see docs/admins/install.md"
        yield Finding("warn", "Slurm", f"not supported: {text}", fix)
    partitions = {partition.name: partition for partition in session.slurm.partitions()}
    default = session.config.partition
    if missing := sorted({*session.config.partitions, *([default] if default else ())} - set(partitions)):
        fix = f"one of: {', '.join(sorted(partitions))}"
        yield Finding("FAIL", "Slurm partition", f"{', '.join(missing)} does not exist", fix)
    elif not default and not version.default_partition:
        yield Finding("ok", "Slurm partition", "Slurm's default")
    elif not default and not any(partition.default for partition in partitions.values()):
        yield Finding("FAIL", "Slurm partition", "no partition is the default", "set partition in the configuration")
    else:
        yield Finding("ok", "Slurm partition", default or next(p.name for p in partitions.values() if p.default))
    yield from _memory(session, partitions)


def _memory(session: CommandSession, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Find partitions whose jobs get all memory of a node if their pods request none."""
    if session.config.defaults.memory_per_cpu is not None or session.config.exclusive:
        return
    usable = session.config.partitions or partitions
    if bare := [name for name in sorted(usable) if name in partitions and not partitions[name].default_memory]:
        text = f"{', '.join(bare)}: no DefMemPerCPU or DefMemPerNode: a pod that requests no memory gets all of a node"
        fix = "set DefMemPerCPU in Slurm, or defaults.memoryPerCpu here; slurm.conf's own default is not visible here"
        yield Finding("warn", "default memory", text, fix)


def _nodes(session: CommandSession) -> Iterator[Finding]:
    if not session.config.slurm_rest_api:
        yield Finding("warn", "nodes", "not checked without Slurm", "fix Slurm first")
        return
    yield from check_cluster.taken_nodes(session)
    yield from check_cluster.nodes(session)
