"""The bodies of interLink's REST API in ``tests/contract/interlink/bodies``, and answers to ``/status``."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "contract" / "interlink" / "bodies"
BEGAN = {"startedAt": "2026-07-14T09:00:05Z"}
RUNNING = {"running": BEGAN}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}


def _ended(code: int, **texts: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **texts, **BEGAN, "finishedAt": "2026-07-14T09:00:35Z"}}


COMPLETED, ERROR = _ended(0, reason="Completed"), _ended(1, reason="Error")
TIMEOUT = _ended(1, reason="SlurmJobTimeout", message="the time limit of the job was reached")
PENDING = {"waiting": {"reason": "Pending", "message": "Job 4242 is pending: Resources"}}
STATES: dict[str, tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any]]] = {
    "queued": (None, PENDING, {"waiting": {"reason": "Pending"}}),
    "init_running": (RUNNING, INITIALIZING, INITIALIZING),
    "init_failed": (_ended(3, reason="Error"), ERROR, ERROR),
    "running": (COMPLETED, RUNNING, COMPLETED),
    "running_no_init": (None, RUNNING, RUNNING),
    "succeeded": (_ended(0), COMPLETED, COMPLETED),
    "failed": (_ended(0), _ended(42, reason="Error"), COMPLETED),
    "timeout": (None, TIMEOUT, COMPLETED),
    "unknown": (None, {}, {}),
}
"""The states of the init container, which may be absent, and of the containers ``main`` and ``side``, by answer."""


def body(name: str) -> Any:
    """Return a body by its name; those with the pod of ``pod.json`` are put together here."""
    match name:
        case "create_hop_a" | "create_hop_b":
            return {"pod": _read("pod"), **_read(name)}
        case "status":
            return [_read("pod")]
        case "delete":
            pod = _read("pod")
            pod["metadata"] |= {"deletionTimestamp": "2026-07-14T09:01:00Z", "deletionGracePeriodSeconds": 10}
            return pod
    return _read(name)


def status_answer(name: str) -> list[dict[str, Any]]:
    """Return an answer of the plugin about the pod, by a name in :data:`STATES`."""
    pod, (first, *others) = _read("pod")["metadata"], STATES[name]
    return [
        {
            "name": pod["name"],
            "UID": pod["uid"],
            "namespace": pod["namespace"],
            "JID": "" if name in ("running_no_init", "unknown") else "4242",
            "containers": [_container(*each) for each in zip(("main", "side"), others, strict=True)],
            "initContainers": [_container("fetch", first)] if first is not None else None,
        }
    ]


def _container(name: str, state: dict[str, Any]) -> dict[str, Any]:
    fixed = {"lastState": {}, "restartCount": 0, "image": "busybox:1.36", "imageID": ""}
    return {"name": name, "state": state, "ready": "running" in state, **fixed}


def _read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())
