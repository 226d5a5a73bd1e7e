"""The annotation ``bridge.vk.io/expose``: the ports by which Services reach a pod at a site. Pure.

A Service may name any port of a pod, also one that the pod does not declare; so may the annotation. ``true`` stands for
all declared TCP ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bridge import names

MOST = 16
"""Ports of one pod."""
_NUMBER = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_ALL = "true"
_ALLOWED = f"true (all declared TCP ports), or 1 to {MOST} port numbers from 1 to 65535, comma separated"
Pod = Mapping[str, Any]


def is_exposed(pod: Pod) -> bool:
    """Return whether the pod has the annotation."""
    return names.EXPOSE in (pod["metadata"].get("annotations") or {})


def ports(pod: Pod) -> tuple[int, ...]:
    """Return the exposed ports in ascending order; empty without the annotation. Raises ValueError with the problem."""
    text = (pod["metadata"].get("annotations") or {}).get(names.EXPOSE)
    if text is None:
        return ()
    if text.strip() == _ALL:
        numbers = {port["containerPort"] for port in declared(pod)}
        if not 1 <= len(numbers) <= MOST:
            raise ValueError(_problem(text, f"the pod declares {len(numbers)} TCP ports"))
        return tuple(sorted(numbers))
    words = [word.strip() for word in text[:256].split(",")]
    if len(text) > 256 or not all(_NUMBER.fullmatch(word) and int(word) < 2**16 for word in words):
        raise ValueError(_problem(text))
    if len(words) > MOST:
        raise ValueError(_problem(text, f"these are {len(words)}"))
    return tuple(sorted(set(map(int, words))))


def declared(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """Yield the declared TCP ports of the containers, then of the sidecars."""
    spec = pod["spec"]
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    for container in (*(spec.get("containers") or ()), *sidecars):
        yield from (port for port in container.get("ports") or () if port.get("protocol", "TCP") == "TCP")


def target_port(port: Mapping[str, Any], pod: Pod) -> int:
    """Return the port of the pod that a port of a Service names; 0: none."""
    if port.get("protocol", "TCP") != "TCP":
        return 0
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    return next((int(each["containerPort"]) for each in declared(pod) if each.get("name") == target), 0)


def _problem(text: str, why: str = "") -> str:
    shown = repr(text if len(text) <= 120 else text[:120] + "...")
    reason = f" ({why})" if why else ""
    return f"annotation {names.EXPOSE}: {shown} is not allowed{reason}; allowed: {_ALLOWED}"
