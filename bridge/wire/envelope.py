"""Messages as bytes: JSON, above 64 KiB compressed; and back again, from whoever may have sent them."""

from __future__ import annotations

import zlib
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from bridge.errors import SiteError
from bridge.wire.messages import VERSION, Announce, BuildConfigMessage, Event, LogAck, LogChunk, Message

M = TypeVar("M", bound=Message)

COMPRESS_ABOVE = 64 * 1024
"""A pod of one container is below it: compressing it would cost more than sending it."""
MOST = 64 * 1024 * 1024
"""Bytes of a message, uncompressed."""
LIMITS: dict[type[Message], int] = {
    Announce: 2**20,
    BuildConfigMessage: 4 * 2**20,
    Event: 2 * 2**20,
    LogAck: 2**12,
    LogChunk: 2**16,
}
"""Bytes, uncompressed, of messages that are sent unasked, or many times; ``LogChunk`` is the line before the log."""
_LEVEL = 1
_ZLIB = 0x78
_PROBLEMS = 3


class GarbledError(SiteError):
    """A message that is none of the protocol's: not JSON, too large, another version, a field missing or wrong."""

    reason = "GarbledMessage"


def pack(message: Message) -> bytes:
    """Write a message."""
    try:
        data = message.model_dump_json().encode()
    except (PydanticSerializationError, UnicodeError) as error:  # a lone surrogate
        raise GarbledError(f"{type(message).__name__}: can't be written as JSON") from error
    if len(data) > MOST:
        raise GarbledError(f"{type(message).__name__}: {len(data)} bytes, at most {MOST} are allowed")
    return zlib.compress(data, _LEVEL) if len(data) > COMPRESS_ABOVE else data


def unpack(data: bytes, most: int | None = None) -> bytes:
    """Give the JSON of a message of at most ``most`` bytes (:data:`MOST`); its first byte and size are looked at."""
    most = MOST if most is None else most
    if data[:1] == b"{":
        text = data
    elif data[:1] == bytes((_ZLIB,)):
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise GarbledError("a compressed message that can't be read") from error
        if len(text) <= most and not inflater.eof:
            raise GarbledError("a compressed message that is cut off")
    else:
        raise GarbledError("neither JSON nor compressed JSON")
    if len(text) > most:
        raise GarbledError(f"more than {most} bytes")
    return text


def parse(kind: type[M], data: bytes) -> M:
    """Read a message of one kind."""
    try:
        return kind.model_validate_json(unpack(data, LIMITS.get(kind, MOST)))
    except ValidationError as error:
        raise GarbledError(f"{kind.__name__}: {explain(error)}") from None


def parse_body(kind: type[M], body: object) -> M:
    """Read the body of a request or of a reply."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise GarbledError(f"{kind.__name__}: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """Name the fields that are wrong, and why; never their values, which may be secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    if any(problem["loc"] == ("v",) for problem in found):
        return f"v: another version of the protocol; this side speaks {VERSION}"
    words = [f"{'.'.join(map(str, problem['loc'])) or 'message'}: {problem['msg']}" for problem in found[:_PROBLEMS]]
    return "; ".join(words) + ("; ..." if len(found) > _PROBLEMS else "")


def pack_chunk(head: LogChunk, data: bytes) -> bytes:
    """Write a chunk of a log: one line of JSON, then the raw bytes."""
    return head.model_dump_json().encode() + b"\n" + data


def parse_chunk(data: bytes) -> tuple[LogChunk, bytes]:
    """Read a chunk of a log."""
    line, _, rest = data.partition(b"\n")
    return parse(LogChunk, line), rest
