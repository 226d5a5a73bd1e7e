"""A script that makes its job directory itself, for a plugin that only runs what it gets as ``jobScript``.

A submitter prepares the directory of a job, and reads logs and states there. Without one, this script makes the
directory, runs the script of the pod in it, and stores logs and exit codes where the interLink Slurm plugin expects
them: ``run-<container>.out``, ``run-<container>.status`` and, for init containers, ``init-<container>.*`` in the
directory ``$workingPath`` (its ``prepare.go``; see ``docs/sites/interlink-slurm.md``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from bridge.script.quoting import array, word

_BEGIN = """\
#!/bin/bash
umask 077
base=${workingPath:-$PWD}
"""
_BODY = """\
job=$base/podbridge/jobs/$UID_OF_POD
mkdir -p "$job" "$base/podbridge/changed" || exit 1
for i in "${!NAMES[@]}"; do
    ln -sfn "$job/logs/${NAMES[i]}.log" "$base/${KINDS[i]}-${NAMES[i]}.out"
done
"""
# the loop: wait also returns when bash has received a signal with a trap, before the child has ended
_END = """\
"$BASH" "$job/job.sh" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' TERM INT
code=1
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
worst=0
for i in "${!NAMES[@]}"; do
    state=
    read -r state <"$job/state/${NAMES[i]}.json"
    [[ $state =~ '"ended":{"exitCode":'([0-9]+) ]] || continue
    printf '%s\\n' "${BASH_REMATCH[1]}" >"$base/${KINDS[i]}-${NAMES[i]}.status"
    ((BASH_REMATCH[1] <= worst)) || worst=${BASH_REMATCH[1]}
done
((code == 0 || worst == 0)) || code=$worst
exit "$code"
"""


def wrap(script: str, pod: Mapping[str, Any]) -> str:
    """Return a script that runs ``script``, the complete script of ``pod``, in a directory that it makes.

    It ends with the highest exit code of a container, or with 1 if the pod failed otherwise. A second run of the same
    job, for example after a requeue, runs no container.
    """
    spec = pod["spec"]
    kinds = [("init", each) for each in spec.get("initContainers") or ()]
    kinds += [("run", each) for each in spec["containers"]]
    lines = [
        _BEGIN,
        f"UID_OF_POD={word(str(pod['metadata']['uid']))}\n",
        f"{array('NAMES', [str(container['name']) for _, container in kinds])}\n",
        f"{array('KINDS', [kind for kind, _ in kinds])}\n",
        _BODY,
        f"[[ -e $job/job.sh ]] || cat >\"$job/job.sh\" <<'{(end := _free_word(script))}' || exit 1\n",
        script if script.endswith("\n") else f"{script}\n",
        f"{end}\n",
        _END,
    ]
    return "".join(lines)


def _free_word(script: str) -> str:
    """Return a word for the end of a heredoc that no line of the script has."""
    lines = set(script.splitlines())
    return next(text for text in map("PODBRIDGE_SCRIPT_{}".format, itertools.count()) if text not in lines)
