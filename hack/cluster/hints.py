"""PrologSlurmctld and EpilogSlurmctld of a cluster: the script of the documentation, or another one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from cluster import places
from cluster.core import Cluster
from cluster.systems.slurm import SLURM_UID
from cluster.views import SEEN_AS

FOLDER = "hints"
SEEN = f"{SEEN_AS}/{FOLDER}"
"""The folder as slurmctld sees it."""
PROGRAM = (
    "__init__.py",
    "apps/__init__.py",
    *(f"apps/cli/{name}.py" for name in ("__init__", "entry", "process_end", "slurm_hint")),
)
"""What ``podbridge slurm-hint`` imports; slurmctld's root folder has Python, but none of podbridge's dependencies."""


def directory(cluster: Cluster) -> Path:
    """Return the value of podbridge's ``hints.directory``."""
    return cluster.state / "slurm" / FOLDER


@dataclass(frozen=True)
class Call:
    """A run of the script: its context, e.g. ``prolog_slurmctld`` or ``jobcomp``, and its time (epoch seconds)."""

    context: str
    job_id: int
    began: float
    ended: float


def calls(cluster: Cluster) -> list[Call]:
    """Return the runs of the script so far."""
    lines = (directory(cluster) / "calls").read_text().splitlines()
    return [Call(what, int(job), float(began), float(ended)) for what, job, began, ended in map(str.split, lines)]


def documented() -> str:
    """Return the script of the documentation, without its first and its last line."""
    page = (places.CHECKOUT / "docs/admins/slurm-hints.md").read_text()
    [script] = re.findall(r"^ +#!/bin/sh\n( +for pipe in .*?\n +done\n) +exit 0$", page, re.MULTILINE | re.DOTALL)
    return dedent(script)


def _documented_jobcomp() -> str:
    page = (places.CHECKOUT / "docs/admins/slurm-hints.md").read_text()
    [script] = re.findall(r"^#!/bin/sh\nSLURM_JOB_ID=\$JOBID .*\n", page, re.MULTILINE)
    return str(script)


def command(port: int | None = None) -> str:
    """Return a script that runs ``podbridge slurm-hint``: for the pipes, or for HTTPS on ``port``.

    Over HTTPS, it needs the files ``token`` and ``ca.pem`` in the folder.
    """
    code = "import sys; from bridge.apps.cli.entry import main; main()"
    target = f"--directory {SEEN}"
    if port is not None:
        target = f"--url https://127.0.0.1:{port} --token-file {SEEN}/token --ca-file {SEEN}/ca.pem"
    return f"PYTHONPATH={SEEN}/program python3 -c {shlex.quote(code)} slurm-hint {target}"


@contextmanager
def script(cluster: Cluster, text: str = "", *, jobcomp: bool = False) -> Iterator[None]:
    """Restart slurmctld with a script that sends hints, and without it at the end.

    ``text`` replaces the script of the documentation. ``jobcomp``: the plugin ``jobcomp/script`` runs the script too.
    """
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
    text = (text or documented()).strip().replace("/run/podbridge", SEEN)
    folder.joinpath("hint").write_text(  # only bash has a clock, without starting a process
        f"#!/bin/bash\nbegan=$EPOCHREALTIME\n{text}\n"
        f'echo "${{SLURM_SCRIPT_CONTEXT:-jobcomp}} $SLURM_JOB_ID $began $EPOCHREALTIME" >>{SEEN}/calls\nexit 0\n'
    )
    folder.joinpath("jobcomp").write_text(_documented_jobcomp().replace("/etc/slurm/podbridge-hint", f"{SEEN}/hint"))
    for name in ("hint", "jobcomp"):
        folder.joinpath(name).chmod(0o755)
    plugin = f"JobCompType=jobcomp/script\nJobCompLoc={SEEN}/jobcomp\n" if jobcomp else ""
    conf = cluster.state / "slurm" / "etc" / "slurm.conf"
    before = conf.read_text()
    conf.write_text(f"{before}PrologSlurmctld={SEEN}/hint\nEpilogSlurmctld={SEEN}/hint\n{plugin}")
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
