"""Jobs written by hand: small scripts that keep to the contract of the job's folder, with one container ``main``."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

from bridge.protocol.nats.messages import CancelMessage, SubmitMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from cluster.polling import eventually

_SCRIPT = r"""#!/bin/bash
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
mkdir started 2>/dev/null || exit 0
if [[ ${SLURM_ARRAY_TASK_ID-} ]]; then SLURM_JOB_ID=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
echo "${SLURM_JOB_ID:-${PBS_JOBID:-}}" >started/job
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


TICKET = "11111111-2222-4333-8444-555555555555"
_UNUSED = r"""#!/bin/bash
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
mkdir started 2>/dev/null || exit 0
echo "${SLURM_JOB_ID:-}" >started/job
mkdir -p state
put() { printf '%s\n' "$1" >state/.pod && mv -f state/.pod state/pod.json; : >"../../changed/${PWD##*/}"; }
put '{"phase":"Asking","ticket":"@TICKET@"}'
sleep 1
put '{"phase":"Failed","reason":"NoGrant","ticket":"@TICKET@"}'
sleep @LATER@
exit 1
"""


def unused(later: float = 0) -> SubmitMessage:
    """Return the request for a job whose script gets no grant; it ends ``later`` seconds after it has recorded this."""
    text = _UNUSED.replace("@TICKET@", TICKET).replace("@LATER@", f"{later:g}")
    return submit("").model_copy(update={"script": text, "grant_wait": 1.0})


def script(command: str) -> str:
    """Give the script of a job whose container runs ``command`` in bash."""
    return _SCRIPT.replace("@COMMAND@", shlex.quote(command))


def submit(command: str, **more: object) -> SubmitMessage:
    """Give the request for such a job."""
    asked = {"namespace": "default", "name": "pod", "cpus": 1, "memory": 2**27, "grace": 1, **more}
    return SubmitMessage.model_validate({"script": script(command), **asked})


def submit_pod(site: Any, command: str, **more: Any) -> str:
    """Submit a pod with a real script, wait until it runs, and return its UID; ``more``: of its container."""
    job = uid()
    message = submit("").model_copy(update={"script": built(site, job, command, **more), "time_limit": 600.0})
    site.client.call(SUBMIT, job, message)
    site.wait(job, "running")
    await_container(site, job)
    return job


def built(site: Any, job: str, command: str, **more: Any) -> str:
    """Return a real script for a pod whose container is a process of the site."""
    container = {"name": "main", "image": "none", "command": ["sh", "-c", command], **more}
    metadata = {"namespace": "default", "name": "pod", "uid": job}
    config = BuildConfig.model_validate({"runtime": {"kind": "none"}})
    pod = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return build(pod, config, Objects({}, {}, {}), site.pool).script


def await_container(site: Any, job: str) -> None:
    """Wait until the container of a running pod runs."""
    eventually(lambda: [state for state in site.status(job).containers if state.state == "running"], "it runs")


def cancel(site: Any, job: str, *, forget: bool = True) -> None:
    """Cancel a job without a grace period."""
    site.client.call(CANCEL, job, CancelMessage(grace=0, forget=forget))


def uid() -> str:
    """Make a UID."""
    return str(uuid.uuid4())


def check_replaced_after_unused(site: Any, later: float) -> None:
    """Submit a job that ends unused, then its successor; the batch job of the first may end ``later`` (seconds)."""
    job = uid()
    site.client.call(SUBMIT, job, unused(later))
    eventually(lambda: site.status(job).asks == TICKET, "asks")
    eventually(lambda: site.status(job).unused, "ended unused")
    answer = site.client.call(SUBMIT, job, submit("echo second; sleep 2; echo end"))
    assert (answer.existed, answer.status.unused) == (False, False)
    done = site.wait(job, "ended", 40)
    assert (done.outcome, done.unused, site.log(job)) == ("Succeeded", False, b"second\nend\n")
