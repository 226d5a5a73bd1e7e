"""Jobs written by hand: small scripts that keep to the contract of the job's folder, with one container ``main``."""

from __future__ import annotations

import shlex
import uuid

from bridge.wire.messages import Submit

_SCRIPT = r"""#!/bin/bash
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
mkdir started 2>/dev/null || exit 0
echo "${SLURM_JOB_ID:-}" >started/job
mkdir -p state logs control termination volumes
put() { printf '%s\n' "$2" >"state/.$1" && mv -f "state/.$1" "state/$1.json"; : >"../../changed/${PWD##*/}"; }
began=$(date +%s)
put main "{\"state\":\"running\",\"startedAt\":$began,\"ended\":null,\"restarts\":0,\"started\":true,\"ready\":true}"
put pod "{\"phase\":\"Running\",\"reason\":\"\",\"host\":\"$(hostname)\",\"ip\":\"127.0.0.1\",\"startedAt\":$began}"
reason=
setsid bash -c @COMMAND@ >logs/main.log 2>&1 &
pid=$!
trap 'reason=Terminated; kill -KILL -- -$pid 2>/dev/null' TERM INT
while kill -0 $pid 2>/dev/null; do
    size=$(stat -c %s logs/main.log)
    [[ $size == "$last" ]] || echo "$size $(date +%s.%N)" >>logs/main.index
    last=$size
    if [[ -e control/stop && ! $reason ]]; then read -r _ reason <control/stop; kill -KILL -- -$pid; fi
    sleep 0.1
done
wait $pid; code=$?
ended=$(date +%s)
phase=Succeeded; [[ $code == 0 ]] || phase=Failed
printf 'said at the end' >termination/main
put main "{\"state\":\"terminated\",\"startedAt\":$began,\"restarts\":0,\"started\":true,\"ready\":false,\
\"ended\":{\"exitCode\":$code,\"signal\":0,\"reason\":\"Error\",\"startedAt\":$began,\"finishedAt\":$ended}}"
put pod "{\"phase\":\"$phase\",\"reason\":\"$reason\",\"startedAt\":$began,\"finishedAt\":$ended}"
"""


def script(command: str) -> str:
    """Give the script of a job whose container runs ``command`` in bash."""
    return _SCRIPT.replace("@COMMAND@", shlex.quote(command))


def submit(command: str, **more: object) -> Submit:
    """Give the request for such a job."""
    asked = {"namespace": "default", "name": "pod", "cpus": 1, "memory": 2**27, "grace": 1, **more}
    return Submit.model_validate({"script": script(command), **asked})


def uid() -> str:
    """Make a UID."""
    return str(uuid.uuid4())
