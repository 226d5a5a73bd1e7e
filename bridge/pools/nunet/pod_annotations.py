"""The annotations ``nunet.bridge.vk.io/*`` of a pod: one table. Pure.

Everything that only the DMS reads is in one annotation, ``request``. docs/admins/nunet.md has the same table; a test
compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import ScriptError

PREFIX = "nunet.bridge.vk.io/"
NO_JOB = f"{PREFIX}no-job"
_FIELDS = {"requiredCapability", "network"}
_LONGEST, _DEEPEST = 16 * 1024, 16
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:/+-]{0,127}")


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation. ``read`` raises ValueError."""

    read: Callable[[str], Any]
    allowed: str
    meaning: str


def _price(text: str) -> float | int:
    value = float(text)
    if not 0 <= value <= 1e12:
        raise ValueError
    return int(value) if value.is_integer() else value


def _seconds(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        raise ValueError
    return int(text)


def _words(text: str) -> list[str]:
    return [_word(word.strip()) for word in text.split(",")]


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError
    return text


def _fields(text: str) -> dict[str, Any]:
    content = json.loads(text) if len(text) <= _LONGEST else None
    if not isinstance(content, dict) or content.keys() - _FIELDS or _levels(content) > _DEEPEST:
        raise ValueError
    if not all(isinstance(value, dict) for value in content.values()):
        raise ValueError
    json.dumps(content, allow_nan=False)  # raises ValueError: neither NaN nor 1e999, which is infinite, is JSON
    return content


def _levels(value: object) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(_levels, children), default=0)


KEYS = {
    "max-price-per-hour": Key(_price, "a number, at least 0", "maximum price per hour"),
    "max-time": Key(
        _seconds, "whole number of seconds, at least 1", "time limit, if shorter than `activeDeadlineSeconds`"
    ),
    "peers": Key(_words, "a comma list", "the only peers for the job"),
    "request": Key(
        _fields,
        "JSON object with `requiredCapability` or `network`, at most 16 KiB and 16 levels",
        "further fields of the request: see [below](#fields-of-the-request)",
    ),
    "no-job": Key(_word, "word such as `true`", "the DMS has no job of this pod: see [below](#no-job-twice)"),
}


def values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of annotations, by key without the prefix. Raises ValueError, whose text names the key."""
    read_values: dict[str, Any] = {}
    for name, text in sorted(texts.items()):
        if name not in KEYS:
            allowed = f"{', '.join(KEYS)} (fields that only the DMS reads are in request)"
            raise ValueError(f"{name}: unknown; allowed: {allowed}")
        try:
            read_values[name] = KEYS[name].read(text.strip())
        except (ValueError, OverflowError, RecursionError) as error:
            allowed = KEYS[name].allowed.replace("`", "")
            raise ValueError(f"{name}: {text[:100]!r} is not allowed; allowed: {allowed}") from error
    return read_values


def read(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a pod's annotations; raises ``ScriptError`` for an unknown or invalid one."""
    annotations = (pod["metadata"].get("annotations") or {}).items()
    try:
        return values({key.removeprefix(PREFIX): str(text) for key, text in annotations if key.startswith(PREFIX)})
    except ValueError as error:
        raise ScriptError(f"annotation {PREFIX}{error}") from error


def no_job(pod: Mapping[str, Any]) -> str:
    """Return the word with which the user has stated that the DMS has no job of the pod; empty: not stated."""
    return str((pod["metadata"].get("annotations") or {}).get(NO_JOB, ""))
