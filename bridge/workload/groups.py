"""The group of a pod: the pods that share one Slurm job. Pure.

A pod without the annotation ``bridge.vk.io/group`` is a group of one. Admission writes the annotation when the pod is
created, from the objects that :mod:`bridge.workload.kinds` names, and it cannot change afterwards. So the group can be
read from the pod alone, and stays the same if its owner is changed or deleted.

The value is a JSON object: ``{"kind": "jobset", "name": "train", "uid": "1f6e…", "index": "workers", "size": 8,
"minimum": 8, "slot": 3, "completed": 1}``. ``uid``, ``index``, ``slot`` and ``completed`` may be absent. The scheduler
adds ``"alone": true`` to a member for which the running job of its group has no place: it gets a job of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.errors import BridgeError
from bridge.slurm.models import GroupRef

KINDS = ("jobset", "lws", "podgroup", "workload", "kueue", "job")
"""The kinds of groups of more than one pod."""
MAX_SIZE = 100_000
MAX_TOGETHER = 1_000


class InvalidGroupError(BridgeError):
    """An invalid value in the pod's group; the message has the field, the value and the allowed values."""

    reason = "InvalidGroup"


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of one pod in its group.

    The group should have ``size`` members, and none starts without ``minimum`` of them; ``together`` may share a node.
    ``slot`` is the index of the pod, from 0 to ``size - 1``; ``None`` if the kind has none: slots follow the names.
    ``completed`` members had succeeded when the pod was created; their pods may be deleted. ``alone``: the pod has a
    job of its own.
    """

    key: GroupRef
    size: int
    minimum: int
    slot: int | None
    together: int = 1
    completed: int = 0
    alone: bool = False


def together(annotations: Mapping[str, str]) -> int:
    """Return the number of members that may share a node; raises :class:`InvalidGroupError`."""
    text = annotations.get(names.MEMBERS_PER_NODE, "1")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_TOGETHER):
        raise InvalidGroupError(
            f"annotation {names.MEMBERS_PER_NODE}: {text[:120]!r} is not allowed; allowed: a whole number from 1 to "
            f"{MAX_TOGETHER}"
        )
    return int(text)


def encode(member: Membership) -> str:
    """Return the value of the annotation: compact JSON, the same text for the same membership."""
    key = member.key
    value: dict[str, Any] = {"kind": key.kind, "name": key.name, "uid": key.uid or None, "index": key.index or None}
    value |= {"size": member.size, "minimum": member.minimum, "slot": member.slot}
    value |= {"completed": member.completed or None, "alone": member.alone or None}
    return json.dumps({name: item for name, item in value.items() if item is not None}, separators=(",", ":"))


def decode(text: str, namespace: str, together: int = 1) -> Membership:
    """Read the value of the annotation; raises :class:`InvalidGroupError`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidGroupError(f"annotation {names.GROUP}: {text[:120]!r} is not allowed; allowed: a JSON object")
    kind = value.get("kind")
    if kind not in KINDS:
        raise _invalid("kind", kind, ", ".join(KINDS))
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid("name", name, "a name")
    for field in ("uid", "index"):
        if not isinstance(value.get(field, ""), str):
            raise _invalid(field, value[field], "a string")
    size = _number(value, "size", 1, MAX_SIZE)
    minimum = _number(value, "minimum", 1, size)
    slot = None if value.get("slot") is None else _number(value, "slot", 0, size - 1)
    completed = _number({"completed": 0, **value}, "completed", 0, size)
    alone = value.get("alone", False)
    if not isinstance(alone, bool):
        raise _invalid("alone", alone, "true or false")
    key = GroupRef(kind, namespace, name, value.get("uid", ""), value.get("index", ""))
    return Membership(key, size, minimum, slot, together, completed, alone)


def _number(value: Mapping[str, Any], field: str, low: int, high: int) -> int:
    number = value.get(field)
    if type(number) is not int or not low <= number <= high:
        raise _invalid(field, number, f"a whole number from {low} to {high}")
    return number


def _invalid(field: str, value: object, allowed: str) -> InvalidGroupError:
    return InvalidGroupError(
        f"annotation {names.GROUP}: {field}: {str(value)[:120]!r} is not allowed; allowed: {allowed}"
    )
