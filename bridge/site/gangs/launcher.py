"""The script of the one job of a group: starts the scripts of all pods, or of none. See ``*.bash``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources

from bridge.script import library
from bridge.script.quoting import array, word
from bridge.site.batch.batch_interface import BatchJobRequest, GangStarter

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
member)
    begin
    member "${2:-$SLURM_PROCID}"
    ;;
machine) machine "${2:-$PBS_NODENUM}" ;;
leftovers) leftovers ;;
*) launch ;;
esac
"""


def script(
    components: Sequence[BatchJobRequest],
    starter: GangStarter,
    grant_wait: float | None = None,
    *,
    one_machine: bool = False,
) -> str:
    """Return the script; ``one_machine``: all components share one.

    ``grant_wait``: seconds for which it waits for the grant of all pods; ``None``: they need none.
    """
    folder = resources.files("bridge.site.gangs")
    functions = [library.stripped((folder / f"{name}.bash").read_text("utf-8")) for name in ("launcher", "wrapper")]
    # on every machine, also where the batch system starts this script with variables of its own
    variables = "".join(f"export {name}={word(text)}\n" for name, text in starter.variables.items())
    size = sum(part.members for part in components)
    data = f"SIZE={size} TASK={starter.task}\n{array('STARTER', starter.command)}\n"
    data += f"{array('PARTS', list(_parts(components, one_machine)))}\n"
    wait = "" if grant_wait is None else f"GRANT_WAIT={round(grant_wait * 100)}\n"
    parts = (*map(library.part, ("base", "grant", "namespace")), *functions)
    return "".join((_HEAD, variables, *parts, data, wait, _TAIL))


def _parts(components: Sequence[BatchJobRequest], one_machine: bool) -> Iterator[str]:
    """Return for each component: pods, pods of a machine, GPUs of a pod, its first machine, its first GPU there."""
    machine = device = 0
    for part in components:
        yield f"{part.members} {part.together} {part.gpus} {machine} {device}"
        if one_machine:
            device += part.members * part.gpus
        else:
            machine += part.machines
