"""Readers of single values in the JSON of slurmrestd, in the formats of all versions.

A number may be ``5``, ``"5"``, ``{"set": true, "infinite": false, "number": 5}``, -1 or null; a list may be a list or a
text with commas; a state may be one word or several.
"""

from __future__ import annotations

from bridge.errors import SlurmError
from bridge.slurm import hostlist
from bridge.slurm.models import JsonObject

LATEST = 253402300799
"""The last second of the year 9999, since 1970."""


def job_id(obj: JsonObject) -> int:
    """Read a plain job id; raises ``ValueError`` if there is none."""
    value = obj.get("job_id")
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"not a job id: {value!r}")
    return value


def text(value: object) -> str:
    """Read a text; other values, and Slurm's ``(null)``, are read as empty."""
    return value if isinstance(value, str) and value != "(null)" else ""


def words(value: object) -> tuple[str, ...]:
    """Read a list of words, or words in a text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(item.strip() for item in items if isinstance(item, str) and item.strip())


def states(*values: object) -> frozenset[str]:
    """Read states and flags, in capitals for every version."""
    return frozenset(word.upper() for value in values for word in words(value))


def number(value: object) -> float:
    """Read a number; unset, infinite and negative numbers (infinite in 22.05) are read as 0."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True and value.get("infinite") is not True else 0
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        return 0
    return value


def time_of(value: object) -> float:
    """Read a time in seconds since 1970; one after the year 9999, which Python cannot format, is read as 0."""
    seconds = number(value)
    return seconds if seconds <= LATEST else 0


def exit_code(value: object) -> int:
    """Read the exit code of a script."""
    if isinstance(value, dict):
        return int(number(value.get("return_code")))
    return int(number(value)) >> 8  # 22.05 returns the status of wait()


def name_of(obj: JsonObject) -> str:
    """Read the name of an object; raises ``ValueError`` if there is none."""
    name = text(obj.get("name"))
    if not name:
        raise ValueError("no name")
    return name


def hosts_of(value: str) -> tuple[str, ...]:
    """Read a list of hosts; one that cannot be read is empty."""
    try:
        return hostlist.expand(value)
    except SlurmError:
        return ()
