"""The list of commands in ``--help``: those for users and administrators, then the parts of podbridge."""

from __future__ import annotations

import click

DAEMONS = ("run", "admission", "scheduler", "controllers", "submitter", "plugin", "slurm-hint")
"""The commands that a chart, a systemd unit or slurmctld runs."""


class CommandGroup(click.Group):
    """A group whose help has two lists, each description as its whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two lists."""
        shown = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        parts = [(name, shown[name]) for name in DAEMONS if name in shown]
        users = [(name, command) for name, command in shown.items() if name not in DAEMONS]
        for title, listed in (("Commands", users), ("Parts of podbridge, which run as services", parts)):
            with formatter.section(title):
                # without a limit, click shortens no description, and the formatter wraps the lines
                formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in listed])
