"""The pools that a pod selects: remote pools, the colocated Slurm, or both. Pure.

A pod may go to the pools whose taint ``pool.vk.io`` it tolerates. It selects pools with the annotation
``bridge.vk.io/pools``, or with a toleration that names this taint (Kueue adds one; admission adds one for the
annotation). The annotation also sets the order of preference. Only the annotation can select both remote pools and the
colocated Slurm. A toleration of every taint selects nothing: without the annotation, such a pod goes to the colocated
Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bridge import names
from bridge.workload.tolerations import tolerates

Pod = Mapping[str, Any]

_EFFECT = "NoSchedule"
ALLOWED = f"a comma list of pools, {names.ANY_POOL!r} for any, {names.LOCAL_POOL!r} for the colocated Slurm"
NO_POOL = (
    "the pod requests no pool, and no Slurm is configured (slurmRestApi is empty); create the pod again with the "
    f"annotation {names.POOLS} on it or on its namespace"
)
_NAME = re.compile(names.DNS_LABEL)


@dataclass(frozen=True, slots=True)
class PoolSelector:
    """The selected pools.

    ``named`` is in the order of preference; ``*`` stands for every pool that is not named. ``remote``: the pod may go
    to remote pools.
    """

    named: tuple[str, ...]
    remote: bool

    @property
    def local(self) -> bool:
        """Whether the pod may go to the colocated Slurm."""
        return names.LOCAL_POOL in self.named

    def ordered(self, pools: Iterable[str]) -> list[str]:
        """Return the selected ones of ``pools``, and ``local`` if selected, in the order of preference."""
        others = sorted(set(pools) - set(self.named))
        available = {*pools, names.LOCAL_POOL}
        result: list[str] = []
        for name in self.named:
            if name == names.ANY_POOL:
                result += others
            elif name in available:
                result.append(name)
        return result


VIRTUAL_TOLERATION = {"key": names.VIRTUAL_TAINT, "operator": "Equal", "value": "true", "effect": _EFFECT}
LOCAL = PoolSelector((names.LOCAL_POOL,), remote=False)


@lru_cache(maxsize=1024)  # a decision reads the annotations of all waiting pods
def parse(text: str) -> tuple[str, ...]:
    """Read the annotation; raises ``ValueError``."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if len(text) > 4096 or not all(word == names.ANY_POOL or _NAME.fullmatch(word) for word in words):
        raise ValueError(f"{text[:100]!r} is not {ALLOWED}")
    return words


def of(pod: Pod) -> PoolSelector:
    """Return the selection of a pod: only the colocated Slurm if the pod selects no pool that it tolerates."""
    tolerations = pod["spec"].get("tolerations") or ()
    # by a toleration alone, a user could send a pod to Slurm that admission has checked for pools only
    tolerated = [name for name in tolerated_by_name(tolerations) if name != names.LOCAL_POOL]
    text = (pod["metadata"].get("annotations") or {}).get(names.POOLS)
    if text is not None:
        try:
            named = parse(text)
        except ValueError:
            pass  # admission refuses it; for a pod that bypassed admission, the tolerations count
        else:
            return PoolSelector(named, remote=True) if tolerated or _tolerates_one(tolerations, named) else LOCAL
    return PoolSelector(tuple(tolerated), remote=True) if tolerated else LOCAL


def asks(pod: Pod) -> bool:
    """Whether a pod has the annotation for pools, or a toleration that names a pool."""
    annotated = names.POOLS in (pod["metadata"].get("annotations") or {})
    return annotated or bool(tolerated_by_name(pod["spec"].get("tolerations") or ()))


def tolerations(named: Iterable[str]) -> list[dict[str, str]]:
    """Return the tolerations for the named pools; the colocated Slurm needs none."""
    pools = [name for name in named if name != names.LOCAL_POOL]
    if not pools:
        return []
    if names.ANY_POOL in pools:
        return [VIRTUAL_TOLERATION, {"key": names.POOL_TAINT, "operator": "Exists", "effect": _EFFECT}]
    by_name = ({"key": names.POOL_TAINT, "operator": "Equal", "value": pool, "effect": _EFFECT} for pool in pools)
    return [VIRTUAL_TOLERATION, *by_name]


def is_virtual(node: Mapping[str, Any]) -> bool:
    """Whether a Kubernetes node is the virtual node of a pool."""
    return names.POOL_LABEL in (node["metadata"].get("labels") or {})


def tolerated_by_name(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the pools that tolerations of the pool taint name; ``*`` for a toleration without a value."""
    pools = [
        names.ANY_POOL if entry.get("operator") == "Exists" else str(entry.get("value") or "")
        for entry in entries
        if entry.get("key") == names.POOL_TAINT
        and entry.get("effect") in (None, "", _EFFECT)
        and entry.get("operator") in (None, "", "Equal", "Exists")  # the others compare numbers
    ]
    return list(dict.fromkeys(name for name in pools if name))


def _tolerates_one(entries: Sequence[Mapping[str, Any]], named: Iterable[str]) -> bool:
    """Whether the taint of one of the pools is tolerated, by the rules of the Kubernetes API."""
    pools = (name for name in named if name != names.LOCAL_POOL)
    possible = [entry for entry in entries if entry.get("key") in (None, "", names.POOL_TAINT)]
    # no pool has the name "*": only a toleration of every value matches it
    return any(tolerates(possible, {"key": names.POOL_TAINT, "value": pool, "effect": _EFFECT}) for pool in pools)
