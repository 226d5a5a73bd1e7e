"""The commands that show the state of objects and of the installation: ``explain``, ``top`` and ``version``."""

from __future__ import annotations

import platform
import sys
from typing import Any

import click

from bridge import __version__
from bridge.apps.cli import completing
from bridge.apps.cli.connection_options import ConnectionOptions, connection_options
from bridge.apps.cli.kinds import KindType, ObjectName
from bridge.apps.cli.output import output_option, print_document
from bridge.errors import BridgeError


def _one_name(context: click.Context, _parameter: click.Parameter, name: str | None) -> str:
    """Return the name of the object, which is the second argument or a part of the first."""
    _, named = context.params["kind"]
    if bool(name) == bool(named):
        raise click.UsageError("Name one object: KIND NAME or KIND/NAME.")
    return name or str(named)


@click.command(
    epilog="Examples:\n\n  podbridge explain pod train-7 -n hpc\n\n  podbridge explain job train -n hpc\n\n"
    "  podbridge explain job 1234\n\n"
    "  podbridge explain node node-3 -o yaml\n\n  podbridge explain pool/site-a\n\n  podbridge explain queue batch"
)
@click.argument("kind", type=KindType())
@click.argument(
    "name",
    type=ObjectName(optional=True),
    required=False,
    metavar="NAME",
    shell_complete=completing.names(""),
    callback=_one_name,
)
@connection_options
@completing.namespace_option("Of a pod or of what makes pods. Default: the kubeconfig's, else default.")
@output_option("text", "wide", "json", "yaml", explained="; wide: all facts and all pending workloads")
def explain(
    kind: tuple[str, str], name: str, connection: ConnectionOptions, namespace: str | None, output: str
) -> None:
    """Print why an object is in its state and the next step, by Kubernetes and Slurm; -o wide: all facts.

    The object is a pod, a node, a pool, a MasterQueue, or what makes pods: a Job, JobSet, LeaderWorkerSet, PodGroup,
    TrainJob or RayCluster. A job whose name is a number is a job of Slurm. KIND/NAME, as in kubectl, is the same as
    KIND NAME.
    """
    from bridge.apps.cli.explain_objects import run

    run(connection, kind[0], name, namespace, output)


@click.command(epilog="Examples:\n\n  podbridge top\n\n  podbridge top --once\n\n  podbridge top -o json")
@connection_options
@click.option("--once", is_flag=True, help="Print the state once. Always so without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(min=1), default=2.0, show_default=True, help="Seconds between two reads."
)
@output_option("text", "json", "yaml")
def top(connection: ConnectionOptions, once: bool, interval: float, output: str) -> None:
    """Show pods, jobs, problems, and the use of nodes and pools on one screen, until Ctrl-C.

    JSON and YAML are printed once.
    """
    from bridge.apps.cli.top import run

    try:
        run(connection, output, once=once, interval=interval)
    except KeyboardInterrupt:
        sys.exit(130)


@click.command(epilog="Examples:\n\n  podbridge version\n\n  podbridge version --client\n\n  podbridge version -o json")
@connection_options
@click.option("--client", is_flag=True, help="Only the versions of podbridge and Python; no system is asked.")
@output_option("text", "json", "yaml")
def version(connection: ConnectionOptions, client: bool, output: str) -> None:
    """Print the versions of podbridge, Python, Kubernetes, Slurm and its REST API.

    The exit status is 1 if a configured system does not answer.
    """
    versions: dict[str, Any] = {"podbridge": __version__, "python": platform.python_version()}
    problems = {} if client else _add_servers(connection, versions)
    if output == "text":
        for name, number in versions.items():
            click.echo(f"{name}: {number}")
        for name, problem in problems.items():
            click.echo(f"{name}: {problem}", err=True)
    else:
        print_document(versions | ({"errors": problems} if problems else {}), output)
    sys.exit(1 if problems else 0)


def _add_servers(connection: ConnectionOptions, versions: dict[str, Any]) -> dict[str, str]:
    """Add the versions of Kubernetes and of Slurm; return the error of each that did not answer."""
    from bridge.apps.cli.session import CommandSession

    session, problems = CommandSession(connection), {}
    try:
        versions["kubernetes"] = session.kube.get("/version").get("gitVersion", "")
    except BridgeError as error:
        problems["kubernetes"] = str(error)
    if session.config.slurm_rest_api:
        try:
            versions["slurmrestd"] = session.slurm.version.name
            versions["slurm"] = session.slurm.slurm_release
        except BridgeError as error:
            problems["slurm"] = str(error)
    return problems
