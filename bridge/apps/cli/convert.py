"""``podbridge convert``: values and manifests of other bridges as those of podbridge."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click
import yaml

from bridge.apps.cli.output import output_option, print_document
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.apps.conversion.values_reader import Converted

_file = click.argument("file", type=click.File("r", "utf-8"))


@click.group("convert", epilog="Example:\n\n  podbridge convert slurm-bridge values.yaml > podbridge.yaml")
def convert() -> None:
    """Convert values and manifests of other bridges to those of podbridge.

    The result goes to standard output. Standard error names what changes, what is dropped, and what you have to do. The
    configuration of a site is converted by podbridge submitter convert.
    """


@convert.command(
    "slurm-bridge",
    epilog="Examples:\n\n  podbridge convert slurm-bridge values.yaml > podbridge.yaml\n\n"
    "  helm get values slurm-bridge -n slinky -o yaml | podbridge convert slurm-bridge - --allow-all --exclusive",
)
@_file
@click.option(
    "--allow-all",
    is_flag=True,
    help="Add a policy that allows every namespace every partition, account, QOS, license, reservation and WCKey.",
)
@click.option("--exclusive", is_flag=True, help="Give each pod a whole node by default.")
@output_option("yaml", "json")
def slurm_bridge(file: IO[str], allow_all: bool, exclusive: bool, output: str) -> None:
    """Convert the values of slurm-bridge's chart to values of podbridge's chart.

    FILE is a values.yaml or a config.yaml of slurm-bridge; - is standard input. With --allow-all and --exclusive, pods
    may do what slurm-bridge lets them do, and get the nodes that slurm-bridge gives them.
    """
    from bridge.apps.conversion.slurm_bridge import convert as converted

    _show(converted(_text(file), file.name, allow_all=allow_all, exclusive=exclusive), output)


@convert.command(
    "nats-plugin",
    epilog="Example:\n\n  podbridge convert nats-plugin values.yaml --pools alpha,beta --namespaces research",
)
@_file
@click.option(
    "--pools", default="", help="Names of the pools, separated by commas: the option --pool of each provider."
)
@click.option("--namespaces", default="", help="Namespaces whose pods may use pools, separated by commas.")
@output_option("yaml", "json")
def nats_plugin(file: IO[str], pools: str, namespaces: str, output: str) -> None:
    """Convert the values of the NATS plugin's chart (interlink-all-in-one) to values of podbridge's chart.

    FILE is its values.yaml; - is standard input. Passwords are not copied.
    """
    from bridge.apps.conversion.nats_plugin import convert as converted

    _show(converted(_text(file), file.name, _names(pools), _names(namespaces)), output)


@convert.command(
    "kueue-nats",
    epilog="Examples:\n\n  podbridge convert kueue-nats queues.yaml | kubectl apply -f -\n\n"
    "  kubectl get masterqueues -o yaml | podbridge convert kueue-nats -",
)
@_file
@output_option("yaml", "json")
def kueue_nats(file: IO[str], output: str) -> None:
    """Convert MasterQueues for kueue-nats to MasterQueues for podbridge.

    FILE has one or more objects; - is standard input. Objects of Kueue stay as they are, others are dropped.
    """
    from bridge.apps.conversion.master_queues import convert as converted

    _show(converted(_text(file), file.name), output)


def _text(file: IO[str]) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8: {error}") from error


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _show(result: Converted, output: str) -> None:
    for note in result.notes:
        click.echo(str(note), err=True)
    if output == "json":
        single = result.documents[0] if len(result.documents) == 1 else None
        print_document(single or {"apiVersion": "v1", "kind": "List", "items": list(result.documents)}, "json")
    else:
        click.echo(yaml.safe_dump_all(result.documents, sort_keys=False), nl=False)
