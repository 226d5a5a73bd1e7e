"""What was asked for, as the second line of ``job.sh``: a comment with a checksum of it and of all that follows.

So one file, forced to disk once, holds the script and the request, and tells whether all of it is there.
"""

from __future__ import annotations

import zlib

from bridge.site.files import read_some

USUAL = 2048
"""Bytes at the head of ``job.sh`` that hold all of the request, nearly always."""
_MARK = b"# podbridge: "
_BEGIN = len(_MARK) + len("00000000 ")


def put_in(script: str, request: bytes) -> bytes:
    """Put a request, one line of JSON, into a script as its second line."""
    content = script.encode()
    first, newline, rest = content.partition(b"\n")
    if not first.startswith(b"#!") or not newline:
        first, rest = b"#!/bin/bash", content
    return _joined(first, request, rest)


def is_whole(content: bytes) -> bool:
    """Whether a script has such a line, and all of what follows it."""
    parts = _parts(content)
    return parts is not None and parts[0] == _checksum(*parts[1:])


def alone(content: bytes) -> bytes | None:
    """Return the first two lines of a script, as a whole one; ``None``: it has no request, or nothing after it."""
    parts = _parts(content)
    return None if parts is None or not parts[2] else _joined(content.partition(b"\n")[0], parts[1], b"")


def read(path: str, most: int) -> bytes | None:
    """Read the request from a script, of which ``most`` bytes at most are read; ``None``: there is none."""
    for size in (USUAL, most):
        content = read_some(path, size) or b""
        if (parts := _parts(content)) is not None:
            return parts[1]
        if len(content) < size:  # that was all of it
            break
    return None


def _joined(first: bytes, request: bytes, rest: bytes) -> bytes:
    return b"\n".join((first, _MARK + _checksum(request, rest) + request, rest))


def _checksum(request: bytes, rest: bytes) -> bytes:
    return b"%08x " % zlib.crc32(rest, zlib.crc32(request))


def _parts(content: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Take a script apart: checksum, request, and what comes after its line; ``None``: there is no such line."""
    lines = content.split(b"\n", 2)
    if len(lines) < 3 or not lines[1].startswith(_MARK):
        return None
    return lines[1][len(_MARK) : _BEGIN], lines[1][_BEGIN:], lines[2]
