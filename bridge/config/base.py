"""Base classes and types of the sections of the configuration file.

:func:`explain` makes the texts of the errors in the hub's configuration and in a site's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from bridge import names

Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]
_DNS_NAME = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
DnsName = Annotated[str, Field(pattern=f"^{_DNS_NAME}$", max_length=253)]
NameOrAny = Annotated[str, Field(pattern=rf"^({_DNS_NAME}|\*)$", max_length=253)]
"""A name, or ``*`` for all; one type, since an error would name each alternative of two."""
Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,15}([kMGTP]|[KMGTP]i)?$")]
ObjectName = Annotated[str, Field(pattern=f"^{names.DNS_LABEL}$")]
"""A name of a namespace, a Service or a pool."""
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$")]

_LONGEST_VALUE = 200
"""Characters of a wrong value in a message: that of a section is all of the section."""
_MESSAGES = {"model_type": "must be a mapping of keys", "path_type": "must be a path"}
"""Messages by the type of an error, instead of those that name classes of Python."""
_CREDENTIALS = re.compile(r"(:(?://)?)\S.*@")
"""The password of ``user:password@host``, with a scheme or without; with a scheme, the user too."""


class Section(BaseModel):
    """A section of the configuration: camelCase keys, unknown keys are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class LabelSelectorRequirement(Section):
    """One expression of a label selector, as in Kubernetes."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[LabelValue] = []

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # the API server refuses these in a webhook's selector, when podbridge has started already
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"values: must not be empty with operator {self.operator}")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"values: must be empty with operator {self.operator}")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the expression."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelector(Section):
    """A label selector, as in Kubernetes."""

    match_labels: dict[LabelKey, LabelValue] = {}
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
    message = _MESSAGES.get(problem["type"]) or _masked(str(problem["msg"]).removeprefix("Value error, "))
    value = _masked(repr(problem.get("input")))
    shown = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."
    return f"{key}: {message} (value: {shown})" if key else message


def _section_at(root: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel]:
    model = root
    for step in path:
        for name, field in model.model_fields.items():
            if step in (name, field.alias):
                model = section_in(field.annotation) or model
    return model


def _masked(text: str) -> str:
    return _CREDENTIALS.sub(r"\1***@", text)
