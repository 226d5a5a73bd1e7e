"""The request of a job, as the second line of ``job.sh``: a comment with a checksum of itself and of all that follows.

So one file, written to disk with one fsync, contains the script and the request, and shows whether it is complete.
"""

from __future__ import annotations

import zlib

from bridge.site.files.atomic_files import read_some
from bridge.site.files.beneath import Where

USUAL = 2048
"""Bytes at the start of ``job.sh`` that nearly always contain the whole request."""
_MARK = b"# podbridge: "
_BEGIN = len(_MARK) + len("00000000 ")


def put_in(script: str, request: bytes) -> bytes:
    """Insert a request, one line of JSON, into a script as its second line."""
    content = script.encode()
    first, newline, rest = content.partition(b"\n")
    if not first.startswith(b"#!") or not newline:
        first, rest = b"#!/bin/bash", content
    return _joined(first, request, rest)


def is_whole(content: bytes) -> bool:
    """Return whether a script has a request and is complete."""
    parts = _parts(content)
    return parts is not None and parts[0] == _checksum(*parts[1:])


def alone(content: bytes) -> bytes | None:
    """Return the first two lines of a script, as a complete one; ``None``: no request, or nothing after it."""
    parts = _parts(content)
    return None if parts is None or not parts[2] else _joined(content.partition(b"\n")[0], parts[1], b"")


def read(path: Where, most: int) -> bytes | None:
    """Read the request from the first ``most`` bytes of a script; ``None``: there is none."""
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
    """Return checksum, request and the rest of a script; ``None``: it has no request."""
    lines = content.split(b"\n", 2)
    if len(lines) < 3 or not lines[1].startswith(_MARK):
        return None
    return lines[1][len(_MARK) : _BEGIN], lines[1][_BEGIN:], lines[2]
