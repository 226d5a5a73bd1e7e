"""The program ``podbridge``. It starts ``podbridge slurm-hint`` without the imports of the other commands."""

from __future__ import annotations

import faulthandler
import sys

from bridge.apps.cli import process_end


def main() -> None:
    """Run the command line and end the process."""
    if sys.argv[1:2] == ["slurm-hint"]:
        from bridge.apps.cli.slurm_hint import main as hint

        hint()
    faulthandler.enable()  # a crash in a library, for example of TLS, prints what each thread was doing
    from bridge.apps.cli.main import main as command_line

    process_end.run(command_line)
