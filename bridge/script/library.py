"""The bash library: read once, without comments and indentation, so that scripts are small.

A site that has the same library, as its digest tells, is sent scripts without it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources

from bridge.script.runtimes import runtime_table as runtimes

_PARTS = (
    "base",
    "environment",
    "logs",
    "containers",
    "probes",
    "watching",
    "volumes",
    "hosts",
    "fuse",
    "grant",
    "pod",
    "sessions",
    "channel",
)
_DIRECTIVE = "# shellcheck disable=SC20"
_NEEDLE = 100
_HEREDOC = re.compile(r"<<-?\s*'?[A-Z]")


@functools.cache
def text(runtime: str) -> str:
    """Return the functions of every job, with those of the runtimes that share one library."""
    driver = next(driver for driver in runtimes.RUNTIMES.values() if driver.library == runtime)
    names = [*_PARTS, "runtime", *(["images", "cache"] if driver.schemes else ["namespace", "machine_tree"])]
    return "".join((*map(part, names), stripped(driver.bash())))


@functools.cache
def digest(runtime: str) -> str:
    """Return the SHA-256 of :func:`text`, in hexadecimal."""
    return hashlib.sha256(text(runtime).encode()).hexdigest()


def of_digest(library_digest: str) -> str | None:
    """Return the library of a digest; ``None``: no library of this version has it."""
    return _by_digest().get(library_digest)


def split(script: str, library_digest: str) -> tuple[str, str] | None:
    """Return what stands before and after the library of a digest in a script.

    Return ``None`` if no library of this version has the digest, or if the script does not contain the library.
    """
    library = of_digest(library_digest)
    if library is None:
        return None
    at = script.find(library[:_NEEDLE])  # a search for the complete library takes longer
    if at < 0 or not script.startswith(library, at):
        return None
    return script[:at], script[at + len(library) :]


@functools.cache
def _by_digest() -> dict[str, str]:
    libraries = {runtime.library for runtime in runtimes.RUNTIMES.values()}
    return {digest(library): text(library) for library in libraries}


def part(name: str) -> str:
    """Return the functions of one part of the library."""
    return stripped((resources.files("bridge.script") / "lib" / f"{name}.bash").read_text("utf-8"))


def stripped(source: str) -> str:
    """Return bash without comments and indentation."""
    if _HEREDOC.search(source):
        raise ValueError("the library must hold no heredoc: its lines are stripped")
    lines = (line.strip() for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line and (line[0] != "#" or line.startswith(_DIRECTIVE)))
