"""The script of the one job of a group: starts the scripts of all pods, or of none. See ``launcher.bash``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from bridge.script import library
from bridge.script.quoting import array

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
    printf '%s\\n' "${SLURM_JOB_ID-}" >started/job
fi
"""
_TAIL = """\
case ${1-} in
member) member "${2-}" ;;
leftovers) leftovers ;;
*) launch ;;
esac
"""


def script(size: int, per_node: int, gpus: int, starter: Sequence[str]) -> str:
    """Return the script.

    ``gpus``: of each pod. ``starter``: see :meth:`bridge.site.batch.batch_interface.BatchSystem.gang_starter`.
    """
    launcher = (resources.files("bridge.site.gangs") / "launcher.bash").read_text("utf-8")
    data = f"SIZE={size} PER_NODE={per_node} GPUS={gpus}\n{array('STARTER', starter)}\n"
    return "".join((_HEAD, data, library.part("base"), library.stripped(launcher), _TAIL))
