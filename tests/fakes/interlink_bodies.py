"""The bodies of interLink's REST API in ``tests/contract/interlink/bodies``."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "contract" / "interlink" / "bodies"


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


def _read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())
