"""A documented ``site.toml``, from its model: with all keys, or with those of a converted configuration."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bridge.config.base import section_in
from bridge.site.config.site_config import SiteConfig

FIRST = ("pool", "folder", "adopt_from", "sync", "one_cpu", "default_flavor", "header", "footer")
"""The keys that are outside of a section."""
_FLAVOR = """\
# Kinds of jobs, chosen by the annotation slurm-job.vk.io/flavor, or the first that covers the pod.
# [[flavors]]
# name = "gpu"
# description = "One node with A100s"
# partition = "gpu"
# account = "project"
# qos = "normal"
# reservation = "training"
# nodelist = "gpu[01-04]"
# generic_resources = ["gpu:a100"]
# max_time_seconds = 43200
# max_resources = { cpu = "32", memory = "256Gi", "nvidia.com/gpu" = "4" }
# max_group_resources = { cpu = "128", memory = "1Ti", "nvidia.com/gpu" = "16" }
# uid = 1000
# cpu = 8
# memory = "32Gi"
# flags = ["--exclusive"]
"""


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    text = str(value) if isinstance(value, Path) else value
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(value: Any) -> str:
    """Return a value, with a text of several lines as lines."""
    if isinstance(value, str) and "\n" in value and "'''" not in value and value.replace("\n", "").isprintable():
        return f"'''\n{value}'''"
    return toml(value)


def _line(key: str, field: FieldInfo, value: Any) -> str:
    return f"# {key} = {toml((field.examples or [''])[0])}" if value is None else f"{key} = {toml(value)}"


def _words(field: FieldInfo) -> str:
    annotation = field.annotation
    for kind in (annotation, *get_args(annotation)):
        choices = get_args(kind)
        if choices and all(isinstance(choice, str) for choice in choices):
            return "Values: " + ", ".join(choices) + "."
    return ""


def described(field: FieldInfo) -> str:
    """Return the description of a key and its allowed values."""
    return " ".join(text for text in (field.description or "", _words(field)) if text)


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield name, field and default of each key of a section."""
    for name, field in model.model_fields.items():
        yield name, field, field.get_default(call_default_factory=True)


def sample() -> str:
    """Return a documented ``site.toml`` that is valid: every key with its default; keys without one as comments."""
    fields = {name: (field, default) for name, field, default in fields_of(SiteConfig)}
    lines = ["# Configuration of a podbridge submitter. Every key is shown; all but pool may be left out.", ""]
    for name in FIRST:
        field, default = fields[name]
        if text := described(field):
            lines.append(f"# {text}")
        lines += [_line(name, field, default), ""]
    for name, (field, default) in fields.items():
        model = section_in(field.annotation)
        if name in FIRST or model is None or name == "flavors":
            continue
        about = (model.__doc__ or "").replace("``", "").partition(": ")[2].strip()
        lines += [f"# {about[0].upper()}{about[1:]}"] if about else []
        lines.append(f"[{name}]")
        for key, inner, _ in fields_of(model):
            if text := described(inner):
                lines.append(f"# {text}")
            value = getattr(default, key)
            lines.append(_line(key, inner, value))
        lines.append("")
    return "\n".join(lines) + "\n" + _FLAVOR


def documented(values: Mapping[str, Any], notes: Sequence[str]) -> str:
    """Return a ``site.toml`` with only these keys, each with its description; ``notes`` are comments at its top."""
    plain = ["".join(letter if letter.isprintable() else " " for letter in note) for note in notes]
    lines = [f"# {line}" for note in plain for line in textwrap.wrap(note, 118, subsequent_indent="  ")]
    sections: list[str] = []
    for name, field, _ in fields_of(SiteConfig):
        if name not in values:
            continue
        model = section_in(field.annotation)
        if model is None:
            lines += ["", *_comment(field), f"{name} = {_lines(values[name])}"]
            continue
        listed = values[name] if isinstance(values[name], list) else [values[name]]
        head = f"[[{name}]]" if isinstance(values[name], list) else f"[{name}]"
        for index, part in enumerate(listed):
            inner = {key: (inner_field, part[key]) for key, inner_field, _ in fields_of(model) if key in part}
            sections += ["", head] if inner else []
            for key, (inner_field, value) in inner.items():
                sections += [*(_comment(inner_field) if not index else ()), f"{key} = {toml(value)}"]
    return "\n".join([*lines, *sections]) + "\n"


def _comment(field: FieldInfo) -> list[str]:
    text = described(field)
    return [f"# {line}" for line in textwrap.wrap(text, 118)] if text else []
