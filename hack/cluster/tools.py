"""Files for a shell that uses a cluster: ``bin/`` and ``env``; and the command line of podbridge there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster import places

SLURM_TOOLS = (
    "sacct",
    "sacctmgr",
    "salloc",
    "sbatch",
    "scancel",
    "scontrol",
    "sdiag",
    "sinfo",
    "sprio",
    "squeue",
    "srun",
)
ANYTHING = {field: ["*"] for field in ("partition", "account", "qos", "licenses", "wckey")}
"""Users who may create pods may use everything in the Slurm of a test cluster; a reservation needs a permission."""
PODBRIDGE_PORTS = 4
"""Number of ports: webhook, health, metrics, kubelet API of the virtual nodes."""
_START = "import sys; sys.argv[0] = 'podbridge'; from bridge.apps.cli.entry import main; sys.exit(main())"
_ENV = ("env", f"PYTHONPATH={places.CHECKOUT}")
PODBRIDGE = (*_ENV, sys.executable, "-c", _START)
"""Return the command that runs podbridge from the checkout; it is not installed."""

KUBECTL_PLUGIN = {"kubectl-podbridge": "plugin", "kubectl_complete-podbridge": "complete"}
"""The programs that kubectl runs for ``kubectl podbridge``, and their functions."""


def module(name: str) -> list[str]:
    """Return the command that runs a module of ``hack/``."""
    path = f"PYTHONPATH={places.CHECKOUT / 'hack'}:{places.CHECKOUT}"
    return ["env", path, sys.executable, "-m", name]


def write(state: Path, variables: Mapping[str, str], programs: Sequence[Path], enter: Path | None) -> None:
    """Write wrappers for the tools of this cluster, and a file to source that puts them first in ``PATH``."""
    folder = state / "bin"
    folder.mkdir()
    for program in programs:
        (folder / program.name).symlink_to(program)
    for tool in SLURM_TOOLS if enter else ():
        _script(folder / tool, f'exec {shlex.quote(str(enter))} {tool} "$@"')
    _script(folder / "podbridge", f'exec {shlex.join(PODBRIDGE)} "$@"')
    for name, function in KUBECTL_PLUGIN.items():
        code = f"from bridge.apps.cli.kubectl import {function}; {function}()"
        _script(folder / name, f'exec {shlex.join([*_ENV, sys.executable, "-c", code])} "$@"')
    lines = [f"export {key}={shlex.quote(value)}" for key, value in variables.items()]
    path = f'export PATH={shlex.quote(str(folder))}:"$PATH"'
    (state / "env").write_text("\n".join(["# source this file", *lines, path]) + "\n")


def podbridge_config(slurm_rest_url: str, first_port: int) -> dict[str, Any]:
    """Return the configuration of podbridge; the API server calls its webhook on the loopback."""
    return {
        "slurmRestApi": slurm_rest_url,
        "managedNamespaces": ["slurm-bridge"],
        "namespacePolicies": [{"namespaces": ["*"], "mayNameScheduler": True, "allowed": ANYTHING}],
        "admission": {"host": "127.0.0.1", "port": first_port, "url": f"https://127.0.0.1:{first_port}"},
        "serving": {"host": "127.0.0.1", "healthPort": first_port + 1, "metricsPort": first_port + 2},
    }


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with overrides merged into them."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _script(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)
