"""The table of all keys of ``site.toml`` in docs/sites/sites.md, from its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from bridge.config.base import section_in
from bridge.site.config import sample
from bridge.site.config.site_config import SiteConfig
from generate.marked import ROOT, between

PAGE = ROOT / "docs/sites/sites.md"


def files() -> dict[Path, str]:
    """Return the page with the current table."""
    rows = ["| key | default | meaning |", "|---|---|---|"]

    def row(key: str, field: FieldInfo, default: Any) -> None:
        shown = "required" if field.is_required() else "" if default is None else f"`{sample.toml(default)}`"
        rows.append(f"| `{key}` | {shown} | {sample.described(field)} |".replace("  |", " |"))

    fields = {name: (field, default) for name, field, default in sample.fields_of(SiteConfig)}
    for name in (*sample.FIRST, *(name for name in fields if name not in sample.FIRST)):
        field, default = fields[name]
        model = section_in(field.annotation)
        if model is None:
            row(name, field, default)
            continue
        prefix = f"{name}[]" if isinstance(default, list) else name
        for key, inner, value in sample.fields_of(model):
            row(f"{prefix}.{key}", inner, value)
    return {PAGE: between(PAGE, "\n".join(rows) + "\n")}
