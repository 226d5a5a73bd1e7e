"""PrologSlurmctld and EpilogSlurmctld of a cluster: a script that runs ``podbridge slurm-hint``."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import places
from cluster.core import Cluster
from cluster.slurm import SLURM_UID
from cluster.views import SEEN_AS

FOLDER = "hints"
PROGRAM = ("__init__.py", "cli/__init__.py", "cli/entry.py", "cli/slurm_hint.py")
"""What ``podbridge slurm-hint`` imports; slurmctld's root folder has Python, but none of podbridge's dependencies."""


def directory(cluster: Cluster) -> Path:
    """Return the value of podbridge's ``hints.directory``."""
    return cluster.state / "slurm" / FOLDER


def calls(cluster: Cluster) -> list[str]:
    """Return a line for each run of the script: context, job, exit status of ``podbridge slurm-hint``."""
    return (directory(cluster) / "calls").read_text().splitlines()


@contextmanager
def script(cluster: Cluster, command: str = "") -> Iterator[None]:
    """Restart slurmctld with a script that sends hints, and without it at the end. ``command`` sends a hint instead."""
    folder = directory(cluster)
    folder.mkdir()
    os.chown(folder, 0, SLURM_UID)
    folder.chmod(0o2770)
    for name in PROGRAM:
        target = folder / "program" / "bridge" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(places.CHECKOUT / "bridge" / name, target)
    folder.joinpath("calls").touch()
    folder.joinpath("calls").chmod(0o666)
    seen = f"{SEEN_AS}/{FOLDER}"
    code = "import sys; from bridge.cli.entry import main; main()"
    command = command or f"PYTHONPATH={seen}/program python3 -c {shlex.quote(code)} slurm-hint --directory {seen}"
    text = (
        f'#!/bin/sh\n{command} 2>>{seen}/errors\necho "$SLURM_SCRIPT_CONTEXT $SLURM_JOB_ID $?" >>{seen}/calls\nexit 0\n'
    )
    folder.joinpath("hint").write_text(text)
    folder.joinpath("hint").chmod(0o755)
    conf = cluster.state / "slurm" / "etc" / "slurm.conf"
    before = conf.read_text()
    conf.write_text(f"{before}PrologSlurmctld={seen}/hint\nEpilogSlurmctld={seen}/hint\n")
    _restart(cluster)
    try:
        yield
    finally:
        conf.write_text(before)
        _restart(cluster)
        shutil.rmtree(folder)


def _restart(cluster: Cluster) -> None:
    cluster.stop_daemon("slurmctld")
    cluster.start_daemon("slurmctld")
