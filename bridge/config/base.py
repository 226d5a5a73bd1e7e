"""Base classes and types of the sections of the configuration file.

:func:`explain` makes the texts of the errors in the hub's configuration and in a site's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,15}([kMGTP]|[KMGTP]i)?$")]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]

_CREDENTIALS = re.compile(r"(:(?://)?)\S.*@")
"""The password of ``user:password@host``, with a scheme or without; with a scheme, the user too."""


class Section(BaseModel):
    """A section of the configuration: camelCase keys, unknown keys are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class LabelSelectorRequirement(Section):
    """One expression of a label selector, as in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the expression."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelector(Section):
    """A label selector, as in Kubernetes."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector selects an object with these labels; an empty selector selects all."""
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(expression.matches(labels) for expression in self.match_expressions)


def has_host(url: str) -> bool:
    """Return whether a URL has a host, and a port other than 0 or none."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a malformed address of IPv6, or no number
        return False


def known_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section, as written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section in the type of a field: the type itself, optional, or in a list; ``None``: a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def explain(problem: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Return one of pydantic's errors of a configuration with the model ``root``, without the passwords of URLs."""
    path = tuple(problem["loc"])
    key = ".".join(str(step) for step in path)
    if problem["type"] == "extra_forbidden":
        keys = known_keys(_section_at(root, path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        return f"unknown key {key}" + (f" (did you mean {near[0]}?)" if near else f" (known keys: {', '.join(keys)})")
    message = _masked(str(problem["msg"]).removeprefix("Value error, "))
    return f"{key}: {message} (value: {_masked(repr(problem.get('input')))})" if key else message


def _section_at(root: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel]:
    model = root
    for step in path:
        for name, field in model.model_fields.items():
            if step in (name, field.alias):
                model = section_in(field.annotation) or model
    return model


def _masked(text: str) -> str:
    return _CREDENTIALS.sub(r"\1***@", text)
