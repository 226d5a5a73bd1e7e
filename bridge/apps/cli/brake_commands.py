"""``podbridge brake``: the commands about the mass-termination guard."""

from __future__ import annotations

import click

from bridge.apps.cli.connection_options import ConnectionOptions, connection_options


@click.group(
    epilog="Examples:\n\n  podbridge brake status\n\n  podbridge brake hold slurm\n\n  podbridge brake confirm slurm"
)
def brake() -> None:
    """Show the mass-termination guard, and confirm or hold it.

    The brake engages when many jobs disappear at once: from Slurm (brake "slurm") or from a pool (brake "pool.NAME").
    """


@brake.command("status", epilog="Example:\n\n  podbridge brake status")
@connection_options
def brake_status(connection: ConnectionOptions) -> None:
    """Print each engaged brake: how many jobs are missing, and when their pods will be terminated."""
    from bridge.apps.cli.brake_answers import status

    status(connection)


@brake.command("confirm", epilog="Example:\n\n  podbridge brake confirm slurm")
@connection_options
@click.argument("name")
def brake_confirm(connection: ConnectionOptions, name: str) -> None:
    """Confirm that the missing jobs are lost: podbridge terminates their pods now."""
    from bridge.apps.cli.brake_answers import answer
    from bridge.control.brake import BrakeAnswer

    answer(connection, name, BrakeAnswer.CONFIRM)


@brake.command("hold", epilog="Example:\n\n  podbridge brake hold pool.site-a")
@connection_options
@click.argument("name")
def brake_hold(connection: ConnectionOptions, name: str) -> None:
    """Keep the pods until their jobs are listed again, or until podbridge brake confirm."""
    from bridge.apps.cli.brake_answers import answer
    from bridge.control.brake import BrakeAnswer

    answer(connection, name, BrakeAnswer.HOLD)
