"""The script of a job, ``job.sh``: with its library, and with the settings that only the site makes.

Its second line is the request of the job: a comment with a checksum of itself and of all that follows. So one file,
written to disk with one fsync, contains the script and the request, and shows whether it is complete.
"""

from __future__ import annotations

import zlib

from bridge.errors import SiteRefusedError
from bridge.protocol.nats import messages
from bridge.script import library
from bridge.site.config.site_config import SiteConfig
from bridge.site.files.atomic_files import read_some
from bridge.site.files.beneath import Where

LARGEST_SCRIPT = 32 * 2**20
USUAL = 2048
"""Bytes at the start of ``job.sh`` that nearly always contain the whole request."""
_MARK = b"# podbridge: "
_BEGIN = len(_MARK) + len("00000000 ")


def whole(script: str | messages.ScriptWithoutLibrary, config: SiteConfig) -> str:
    """Return the script with the library, if it came without, and with the site's settings before all else."""
    if isinstance(script, messages.ScriptWithoutLibrary):
        text = library.of_digest(script.library)
        if text is None:
            raise SiteRefusedError(
                f"no library {script.library!r} here", reason=messages.UNKNOWN_LIBRARY, retryable=True
            )
        script = f"{script.before}{text}{script.after}"
    if len(script) > LARGEST_SCRIPT:
        raise SiteRefusedError(f"the script is larger than {LARGEST_SCRIPT} bytes", reason="ScriptTooLarge")
    logs = config.container_logs
    # as bridge/script/lib/logs.bash reads them; later lines can't change them
    settings = f"readonly PODBRIDGE_LOG_MAX_SIZE={logs.max_bytes} PODBRIDGE_LOG_MAX_FILES={logs.max_files}"
    first, newline, rest = script.partition("\n")
    return f"{first}\n{settings}\n{rest}" if newline and first.startswith("#!") else f"{settings}\n{script}"


def put_request_in(script: str, request: bytes) -> bytes:
    """Insert a request, one line of JSON, into a script as its second line."""
    content = script.encode()
    first, newline, rest = content.partition(b"\n")
    if not first.startswith(b"#!") or not newline:
        first, rest = b"#!/bin/bash", content
    return _joined(first, request, rest)


def is_complete(content: bytes) -> bool:
    """Return whether a script has a request and is complete."""
    parts = _parts(content)
    return parts is not None and parts[0] == _checksum(*parts[1:])


def request_alone(content: bytes) -> bytes | None:
    """Return the first two lines of a script, as a complete one; ``None``: no request, or nothing after it."""
    parts = _parts(content)
    return None if parts is None or not parts[2] else _joined(content.partition(b"\n")[0], parts[1], b"")


def read_request(path: Where, most: int) -> bytes | None:
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
