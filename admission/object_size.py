"""The size of objects that podbridge keeps in memory, counted in values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.kube.prune import prune_pod

MOST_OF_POD = 10_000
"""Values of a pod that the caches of scheduler and controllers keep, about 1 MiB: of common pods they keep 100 to 300.

With 1.5 MiB in etcd, a pod could need 40 MiB there, and a few of them the memory of these processes."""
_TEXT = 200
"""Characters that count as one value."""


def is_larger(value: Any, most: int) -> bool:
    """Whether a JSON value has more than ``most`` values; a long text counts as several."""
    waiting, units = [value], 0
    while waiting and units + len(waiting) <= most:
        one = waiting.pop()
        units += 1 + (len(one) // _TEXT if isinstance(one, str) else 0)
        if isinstance(one, Mapping):
            units += sum(len(key) // _TEXT for key in one)
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return units + len(waiting) > most


def excess(pod: Mapping[str, Any]) -> list[str]:
    """Return the problem of a pod that is too large, with its largest fields; empty if it is not."""
    kept = prune_pod(dict(pod))
    if not is_larger(kept, MOST_OF_POD):
        return []
    parts = [(f"{section}.{key}", value) for section in ("metadata", "spec") for key, value in kept[section].items()]
    large = [path for path, value in parts if is_larger(value, MOST_OF_POD // 10)]
    where = ", ".join(large) or "metadata, spec"
    return [f"{where}: the pod is too large; allowed: at most {MOST_OF_POD} values in what podbridge reads of it"]
