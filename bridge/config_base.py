"""What the sections of the configuration file are built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Seconds = Annotated[float, Field(gt=0, le=86400)]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class Section(BaseModel):
    """A part of the configuration: camelCase keys, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class LabelSelectorRequirement(Section):
    """One expression of a label selector, as in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels of an object satisfy the expression."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelector(Section):
    """A label selector, as in Kubernetes."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected; an empty selector selects every object."""
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(expression.matches(labels) for expression in self.match_expressions)


def known_keys(model: type[BaseModel]) -> list[str]:
    """List the keys that a section takes, as written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]
