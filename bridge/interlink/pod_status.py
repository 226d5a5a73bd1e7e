"""A plugin's PodStatus from the state of a job: the server's direction.

interLink's virtual kubelet replaces the status of each container by the plugin's and derives the phase from them. These
rules make its result right:

- The answer has exactly the pod's containers, in the order of its spec, and never none: no container at all counts as
  Succeeded.
- Once the job has ended, every container is terminated, also those that never ran: otherwise the pod never ends.
- Until the job has ended, not all containers are terminated, and no init container has failed: the virtual kubelet
  never changes a final phase, and the script may restart a container.
- A failed job has a container with an exit code other than 0.
- A sidecar that runs counts as terminated, and so does each init container once a container has begun: the virtual
  kubelet keeps a pod Pending while an init container runs or waits.
- A container with probes that have not succeeded is waiting: the virtual kubelet takes each running one for ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bridge.interlink.job_status import KILLED, NOT_READY, NOT_STARTED, SIDECAR
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.pod_status import container_statuses, time_of

Pod = Mapping[str, Any]
Entry = dict[str, Any]

_PROBES = ("readinessProbe", "startupProbe")


def pod_status(pod: Pod, job: JobStatus | None) -> dict[str, Any]:
    """Return the PodStatus of a pod as JSON data; ``job`` is ``None`` if the pool does not know the job.

    The pod must have at least one container.
    """
    metadata = pod["metadata"]
    if job is None:
        main = [_unknown(container) for container in pod["spec"]["containers"]]
        init: list[Entry] = []
    else:
        init, main = _entries(pod, job)
    return {
        "name": metadata["name"],
        "UID": metadata["uid"],
        "namespace": metadata["namespace"],
        "JID": job.job_id if job is not None else "",
        "containers": main,
        "initContainers": init,
    }


def _unknown(container: Mapping[str, Any]) -> Entry:
    return {
        "name": container["name"],
        "image": container.get("image") or "",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {},
        "lastState": {},
    }


def _entries(pod: Pod, job: JobStatus) -> tuple[list[Entry], list[Entry]]:
    spec = pod["spec"]
    if job.phase == "unknown":  # the batch system does not answer; the last known state stands
        began = job.started_at is not None or any(each.state != "waiting" for each in job.containers)
        job = replace(job, phase="running" if began else "queued")
    # without the status of the virtual kubelet, whose entries are older answers of this function
    init, main = container_statuses({"metadata": pod["metadata"], "spec": spec}, job)
    sidecars = [container.get("restartPolicy") == "Always" for container in spec.get("initContainers") or ()]
    if job.phase == "ended":
        _end(job, init, main, sidecars)
        return init, main
    begun = any("waiting" not in entry["state"] or entry["lastState"] for entry in main)
    for entry, sidecar in zip(init, sidecars, strict=True):
        over = entry["state"].get("terminated")
        if sidecar and (begun or entry["started"]) and over is None:
            running = entry["state"].get("running") or {}
            entry["state"] = _terminated(0, SIDECAR, "", running.get("startedAt"), None)
        elif begun and over is None:  # its end is not recorded, and containers start only after it
            entry["state"] = _terminated(0, "Completed", "", None, None)
        elif over is not None and over["exitCode"] != 0:
            entry["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": f"exit code {over['exitCode']}"}}
    for container, entry in zip(spec["containers"], main, strict=True):
        if "running" in entry["state"] and not entry["ready"] and any(container.get(probe) for probe in _PROBES):
            entry["state"] = {"waiting": {"reason": NOT_READY, "message": "the probes have not succeeded yet"}}
    if all("terminated" in entry["state"] for entry in main):
        over = main[-1]["state"]["terminated"]
        main[-1]["state"] = {"running": {"startedAt": over["startedAt"]}}
    return init, main


def _end(job: JobStatus, init: list[Entry], main: list[Entry], sidecars: list[bool]) -> None:
    ended_at = time_of(job.ended_at)
    for entry in (*init, *main):
        if "terminated" not in entry["state"]:
            text = f"the container did not start: {job.reason or 'the job has ended'}"
            entry["state"] = _terminated(KILLED, NOT_STARTED, text, None, ended_at)
            entry["ready"] = False
    for entry, sidecar in zip(init, sidecars, strict=True):
        over = entry["state"]["terminated"]
        # sidecars do not decide how a pod ends, and containers start only after the other init containers succeeded
        if (sidecar or job.outcome == "Succeeded") and over["exitCode"] != 0:
            over["message"] = f"exit code {over['exitCode']}"
            over["exitCode"] = 0
    if job.outcome == "Succeeded" or any(entry["state"]["terminated"]["exitCode"] != 0 for entry in (*init, *main)):
        return
    over = main[0]["state"]["terminated"]
    over["message"] = job.message or "the container exited with 0, and the job has failed"
    over["exitCode"], over["reason"] = KILLED, job.reason or "Error"


def _terminated(code: int, reason: str, message: str, started: str | None, finished: str | None) -> Entry:
    terminated: Entry = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": finished}
    if message:
        terminated["message"] = message
    return {"terminated": terminated}
