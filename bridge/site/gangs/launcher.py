"""The script of the one job of a group: starts the scripts of all pods, or of none. See ``*.bash``."""

from __future__ import annotations

from importlib import resources

from bridge.script import library
from bridge.script.quoting import array, word
from bridge.site.batch.batch_interface import GangStarter

# mkdir succeeds for one process only, also on a shared file system: a second batch job of the group ends here
_HEAD = """\
#!/bin/bash
umask 077
cd -- "${BASH_SOURCE[0]%/*}" || exit 1
if [[ ! ${1-} ]]; then
    if ! mkdir started 2>/dev/null; then
        [[ -d started ]]
        exit
    fi
    printf '%s\\n' "${SLURM_JOB_ID:-${PBS_JOBID:-}}" >started/job
fi
"""
_TAIL = """\
case ${1-} in
member) member "${2-}" ;;
machine) machine "${2:-$PBS_NODENUM}" ;;
leftovers) leftovers ;;
*) launch ;;
esac
"""


def script(size: int, per_node: int, gpus: int, starter: GangStarter, grant_wait: float | None = None) -> str:
    """Return the script; ``per_node``: pods of a machine, ``gpus``: of each pod.

    ``grant_wait``: seconds for which it waits for the grant of all pods; ``None``: they need none.
    """
    folder = resources.files("bridge.site.gangs")
    functions = [library.stripped((folder / f"{name}.bash").read_text("utf-8")) for name in ("launcher", "wrapper")]
    # on every machine, also where the batch system starts this script with variables of its own
    variables = "".join(f"export {name}={word(text)}\n" for name, text in starter.variables.items())
    data = f"SIZE={size} PER_NODE={per_node} GPUS={gpus} TASK={starter.task}\n{array('STARTER', starter.command)}\n"
    wait = "" if grant_wait is None else f"GRANT_WAIT={round(grant_wait * 100)}\n"
    parts = (library.part("base"), library.part("grant"), *functions)
    return "".join((_HEAD, variables, *parts, data, wait, _TAIL))
