"""The bash library: read once, stripped of comments and indentation, so that a script stays small on the wire."""

from __future__ import annotations

import functools
import re
from importlib import resources

_PARTS = ("base", "environment", "containers", "probes", "watching", "volumes", "fuse", "pod")
_DIRECTIVE = "# shellcheck disable=SC20"
_HEREDOC = re.compile(r"<<-?\s*'?[A-Z]")


@functools.cache
def text(runtime: str) -> str:
    """Give the functions of every job, with those of one runtime."""
    folder = resources.files("bridge.script") / "lib"
    names = [*_PARTS, "runtime", *([] if runtime == "none" else ["images"]), f"runtime_{runtime}"]
    parts = [(folder / f"{name}.bash").read_text("utf-8") for name in names]
    return "".join(_stripped(part) for part in parts)


def _stripped(source: str) -> str:
    if _HEREDOC.search(source):
        raise ValueError("the library must hold no heredoc: its lines are stripped")
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and (line[0] != "#" or line.startswith(_DIRECTIVE)))
