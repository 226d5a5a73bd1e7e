"""How interLink's virtual kubelet derives the phase of a pod from a plugin's PodStatus (execute.go, July 2026)."""

from __future__ import annotations

from typing import Any


def phase(status: dict[str, Any]) -> str:
    """Return the phase; an entry that would crash the virtual kubelet is an assertion error."""
    init, main = status["initContainers"] or [], status["containers"]
    for entry in (*init, *main):
        kinds = [kind for kind in ("waiting", "running", "terminated") if kind in entry["state"]]
        assert len(kinds) <= 1, entry
    if init:
        if any("running" in entry["state"] for entry in init):
            return "Pending"
        if any("waiting" in entry["state"] for entry in init):
            return "Pending"
        if any(entry["state"]["terminated"]["exitCode"] for entry in init if "terminated" in entry["state"]):
            return "Failed"
    over = [entry["state"]["terminated"]["exitCode"] for entry in main if "terminated" in entry["state"]]
    if len(over) == len(main):  # also 0 of 0
        return "Failed" if any(over) else "Succeeded"
    return "Running" if any("running" in entry["state"] for entry in main) else "Pending"
