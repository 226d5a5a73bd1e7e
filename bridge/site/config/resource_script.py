"""``resources.script``: a program that prints the resources of the site, as upstream's ``ResourceScriptPath``.

It prints a JSON object: the ``resources`` of interLink's PingResponse, or a PingResponse that contains them.
"""

from __future__ import annotations

import json
import os
from typing import Any

from bridge.errors import BatchError
from bridge.site.batch.commands import Commands
from bridge.site.config.site_config import Resources
from bridge.workload import quantity

TIMEOUT = 30.0


def measured(resources: Resources) -> Resources:
    """Run the program and return the configuration with what it prints; raises :class:`BatchError`."""
    script = str(resources.script)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "USER") if name in os.environ}
    try:
        printed = Commands(None, TIMEOUT, environment).ask(script).out
        return resources.model_copy(update=parse(printed))
    except (BatchError, ValueError) as error:
        raise BatchError(f"resources.script: {error}", retryable=True) from error


def parse(text: str) -> dict[str, Any]:
    """Return ``cpu``, ``memory``, ``pods`` and ``extended``, as far as they are printed; raises ``ValueError``."""
    data = json.loads(text)
    if isinstance(data, dict) and isinstance(data.get("resources"), dict):
        data = data["resources"]
    if not isinstance(data, dict):
        raise ValueError("no JSON object was printed")  # noqa: TRY004 (a value of the program, not of a caller)
    values: dict[str, Any] = {}
    for name in ("cpu", "memory"):
        if data.get(name) is not None:
            quantity.parse(data[name])
            values[name] = str(data[name])
    if data.get("pods") is not None:
        values["pods"] = _count("pods", data["pods"])
    listed = data.get("accelerators") or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ValueError("accelerators: a list of objects is expected")
    extended = {str(item["resourceType"]): item.get("available") for item in listed if item.get("resourceType")}
    if extended:
        values["extended"] = {name: str(_count(name, value)) for name, value in extended.items()}
    return values


def _count(name: str, value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}: {value!r} is not allowed; allowed: a whole number")
    return int(text)
