"""Reads the values of another Helm chart by path, and records which of them have been read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from bridge.config.documents import yaml_document
from bridge.errors import ConfigError

Object = dict[str, Any]
Kind = Literal["text", "count", "yes or no", "mapping", "list", "amount"]
_ALLOWED: dict[Kind, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a string"),
    "count": ((int,), "a whole number from 0"),
    "yes or no": ((bool,), "true or false"),
    "mapping": ((dict,), "a mapping"),
    "list": ((list,), "a list"),
    "amount": ((int, str), "a whole number from 0, or a percentage such as 50%"),
}


@dataclass(frozen=True, slots=True)
class Note:
    """What a conversion does to one field; ``to do``: what the administrator has to do."""

    kind: Literal["changed", "dropped", "to do"]
    field: str
    text: str

    def __str__(self) -> str:
        """Return the line for the user."""
        return f"{self.kind}: {self.field}: {self.text}"


@dataclass(frozen=True, slots=True)
class Converted:
    """The objects of a conversion, each a YAML document, and the notes for the user."""

    documents: tuple[Object, ...]
    notes: tuple[Note, ...]


class ValuesReader:
    """Values by their paths, for example ``scheduler.pdb.enabled``. A value ``null`` is as good as none."""

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        """Read a copy of ``data``; ``source`` names the file in errors."""
        self.source = source
        self._rest = deepcopy(dict(data))

    def take(self, path: str, kind: Kind) -> Any:
        """Return the value and mark it as read; ``None``: it is not set. Raises :class:`ConfigError`."""
        *sections, key = path.split(".")
        holder: Any = self._rest
        for section in sections:
            holder = holder.get(section)
            if not isinstance(holder, dict):
                return None
        value = holder.pop(key, None)
        if value is None:
            return None
        types, allowed = _ALLOWED[kind]
        wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        if kind == "amount" and isinstance(value, str):
            wrong = not value.removesuffix("%").isdecimal()
        if wrong or (isinstance(value, int | float) and value < 0):
            raise ConfigError(f"{self.source}: {path}: {value!r} is not allowed; allowed: {allowed}")
        return value

    def sections(self, *names: str) -> None:
        """Check that each of these values is a mapping or not set. Raises :class:`ConfigError`."""
        for name in names:
            value = self._rest.get(name)
            if value is not None and not isinstance(value, dict):
                raise ConfigError(f"{self.source}: {name}: {value!r} is not allowed; allowed: a mapping")

    def rest(self) -> list[str]:
        """Return the paths of the values that are set and have not been read."""
        return list(_leaves(self._rest, ""))


def put(values: Object, path: str, value: Any) -> None:
    """Set the value at a path of dots."""
    *sections, key = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[key] = value


def mapping_of(text: str, source: str) -> Object:
    """Read a file with one YAML mapping; raises :class:`ConfigError`."""
    data = yaml_document(text, source)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{source}: not the values of a Helm chart; allowed: a YAML mapping")
    return data


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the path of each value that is neither a mapping nor unset."""
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}.")
        elif value is not None:
            yield path
