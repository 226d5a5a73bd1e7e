"""Base classes and types of the sections of the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Seconds = Annotated[float, Field(gt=0, le=86400)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
]


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


def known_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section, as written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]
