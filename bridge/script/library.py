"""The bash library: read once, stripped of comments and indentation, so that a script stays small.

A site that has the same library, as its digest tells, is sent scripts without it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources

_PARTS = ("base", "environment", "logs", "containers", "probes", "watching", "volumes", "fuse", "pod")
_DIRECTIVE = "# shellcheck disable=SC20"
_HEREDOC = re.compile(r"<<-?\s*'?[A-Z]")


@functools.cache
def text(runtime: str) -> str:
    """Give the functions of every job, with those of one runtime."""
    folder = resources.files("bridge.script") / "lib"
    names = [*_PARTS, "runtime", *([] if runtime == "none" else ["images", "cache"]), f"runtime_{runtime}"]
    parts = [(folder / f"{name}.bash").read_text("utf-8") for name in names]
    return "".join(_stripped(part) for part in parts)


@functools.cache
def digest(runtime: str) -> str:
    """Give the SHA-256 of :func:`text`, in hexadecimal."""
    return hashlib.sha256(text(runtime).encode()).hexdigest()


def known(wanted: str) -> str | None:
    """Give the library of a digest; ``None``: it is none of this version."""
    return _by_digest().get(wanted)


@functools.cache
def _by_digest() -> dict[str, str]:
    files = (file.name for file in (resources.files("bridge.script") / "lib").iterdir())
    found = (re.fullmatch(r"runtime_(\w+)\.bash", name) for name in files)
    return {digest(match[1]): text(match[1]) for match in found if match}


def _stripped(source: str) -> str:
    if _HEREDOC.search(source):
        raise ValueError("the library must hold no heredoc: its lines are stripped")
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and (line[0] != "#" or line.startswith(_DIRECTIVE)))
